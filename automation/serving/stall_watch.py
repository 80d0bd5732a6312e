"""Finds replicas that accept requests and make no token, while they stay healthy.

`replicas` sets the engines to follow. A few threads read the metrics of each through the pod proxy, spread over time.
Engines without metrics are not checked. Counters alone do not decide: a replica without progress gets a request for a
completion, and counts as stalled only when that fails too. llama.cpp answers /metrics only between two batches, so a
missing answer counts only after some time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import structlog

from automation.serving.completion_check import Proof
from automation.serving.engine_progress import Reading, read_progress
from automation.serving.engine_start import EngineStart
from automation.workqueue.queue import WorkQueue
from kubeapi.client import KubeClient
from program.runtimes.base import CompletionRequest, ProgressMetrics

log = structlog.get_logger(__name__)

THREADS = 4
BLIND_FACTOR = 5
"""Missing answers of the metrics count after this many times `stall_s`."""


@dataclass(frozen=True)
class Progress:
    """The result of the readings so far."""

    tokens: float | None
    since: float
    """Time of the last sign of life: a token, an idle engine, or the first reading."""
    blind: bool = False
    """The latest reading was empty."""


def update_progress(before: Progress | None, reading: Reading, *, now: float) -> Progress:
    """Return the progress with one more reading. Pure."""
    if reading.absent:
        return Progress(None, now)
    if before is None:
        return Progress(reading.tokens, now, blind=reading.running is None)
    if reading.running is None:
        return Progress(before.tokens, before.since, blind=True)
    moved = reading.tokens is None or reading.tokens != before.tokens or before.tokens is None
    if moved or reading.running <= 0:
        return Progress(reading.tokens, now)
    return Progress(reading.tokens, before.since)


def should_probe(progress: Progress, *, stall_s: float, now: float) -> bool:
    """Return whether the engine should be checked by a completion. Pure."""
    return now - progress.since >= stall_s * (BLIND_FACTOR if progress.blind else 1)


@dataclass
class _Followed:
    metrics: ProgressMetrics
    request: CompletionRequest
    stalled: Callable[[str], None]
    progress: Progress | None = None


class StallWatch:
    """Follows engines. Thread-safe; `close` ends its threads.

    `prove` requests a completion from an engine now (`CompletionCheck.check`). `every_s` is the time between two
    readings of one engine, `stall_s` how long it may show no progress.
    """

    def __init__(
        self,
        client: KubeClient,
        prove: Callable[[EngineStart, CompletionRequest, ProgressMetrics], Proof],
        *,
        every_s: float,
        stall_s: float,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
        threads: int = THREADS,
    ) -> None:
        self._client = client
        self._prove = prove
        self._every_s = every_s
        self._stall_s = stall_s
        self._clock = clock
        self._dice = dice
        self._lock = threading.Lock()
        self._followed: dict[EngineStart, _Followed] = {}
        self._of: dict[Hashable, frozenset[EngineStart]] = {}
        self._due: WorkQueue[EngineStart] = WorkQueue(clock=clock)
        self._threads = [
            threading.Thread(target=self._work, name=f"stall-watch-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def follow(
        self,
        who: Hashable,
        starts: frozenset[EngineStart],
        metrics: ProgressMetrics | None,
        request: CompletionRequest | None,
        stalled: Callable[[EngineStart, str], None],
    ) -> None:
        """Follow exactly these engines of a service from now on; without metrics or a request, none.

        `stalled` is called from a thread with the engine and the problem; that engine is then not followed any more.
        """
        if metrics is None or request is None:
            new: dict[EngineStart, _Followed] = {}
        else:
            new = {start: _Followed(metrics, request, partial(stalled, start)) for start in starts}
        with self._lock:
            known = self._of.pop(who, frozenset())
            for gone in known - new.keys():
                self._followed.pop(gone, None)
            new = {start: followed for start, followed in new.items() if start not in known}
            self._followed.update(new)
            if metrics is not None and request is not None and starts:
                self._of[who] = starts
        for start in new:
            # Spread over the interval, so that services that were added together are not read together.
            self._due.add_after(start, self._every_s * self._dice())

    def unfollow(self, who: Hashable) -> None:
        """Follow no engine of a service any more."""
        with self._lock:
            for gone in self._of.pop(who, frozenset()):
                self._followed.pop(gone, None)

    def followed(self) -> int:
        """Return the number of followed engines."""
        with self._lock:
            return len(self._followed)

    def close(self) -> None:
        self._due.shutdown()

    def _work(self) -> None:
        while (start := self._due.get()) is not None:
            try:
                with self._lock:
                    followed = self._followed.get(start)
                if followed is not None:
                    self._probe(start, followed)
            except Exception:
                log.exception("A check of an engine's progress failed because of a defect of Herdsman", pod=start.pod)
            finally:
                self._due.done(start)
            with self._lock:
                goes_on = start in self._followed
            if goes_on:
                self._due.add_after(start, self._every_s * (1.0 - 0.1 * self._dice()))

    def _probe(self, start: EngineStart, followed: _Followed) -> None:
        reading = read_progress(self._client, start, followed.metrics)
        now = self._clock()
        followed.progress = update_progress(followed.progress, reading, now=now)
        if not should_probe(followed.progress, stall_s=self._stall_s, now=now):
            return
        silent_s = now - followed.progress.since
        log.info("An engine shows no progress", pod=start.pod, namespace=start.namespace, silent_s=round(silent_s))
        proof = self._prove(start, followed.request, followed.metrics)
        followed.progress = None
        if proof.state != "failed":
            return
        with self._lock:
            if self._followed.pop(start, None) is None:
                return
        seen = "its metrics did not answer" if reading.running is None else "its running requests produced no token"
        followed.stalled(f"{seen} for {silent_s:.0f} s, and it does not answer a completion: {proof.message}")
