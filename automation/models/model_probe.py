"""Probes the sources of models without a download: whether the file exists, its header, and its checksum.

Called by `model_controller`, whose workers never wait: `latest` returns the last result and starts a probe in a small
pool of threads when one is due; a finished probe calls back. A failed probe is repeated with back-off, a good one is
confirmed once an hour by size and ETag. `source_probe` makes a probe. A probe that was under way when an earlier
process ended may be the cause of that end: `probe_marks` decides for how long it is not repeated.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import structlog

from agent.sources.source_policy import SourcePolicy
from automation.models.fair_queue import FairQueue
from automation.models.probe_marks import ProbeMarks
from automation.models.source_probe import ReadSecret, SourceProbe, SourceProbeSettings
from automation.workqueue.backoff import backoff_s
from program.desired.facts import ProbeFacts
from program.desired.hub import HUB
from program.desired.model import ModelSource
from program.desired.web_address import shown
from program.dialects.llmkube.status.model_phase import NOT_FOUND

__all__ = ["ModelProbe", "ProbeSettings", "SourcePolicy"]

log = structlog.get_logger(__name__)

Changed = Callable[[], None]


@dataclass(frozen=True)
class ProbeSettings(SourceProbeSettings):
    """The intervals and limits of probes."""

    threads: int = 4
    confirm_s: float = 3600.0
    retry_base_s: float = 10.0
    retry_cap_s: float = 900.0
    drop_after_s: float = 4 * 3600.0


class _Key(NamedTuple):
    address: str
    sha256: str
    format: str
    files: tuple[str, ...]
    secret: str
    """`namespace/name` of the Secret for the probe. Other namespaces do not get results that need this Secret."""


@dataclass
class _Entry:
    source: ModelSource
    asked_at: float
    facts: ProbeFacts | None = None
    due_at: float = 0.0
    looking: bool = False
    queued: set[str] = field(default_factory=set)
    """Namespaces in whose share the next probe waits; empty while it runs."""
    failures: int = 0
    waiting: dict[str, Changed] = field(default_factory=dict)


class ModelProbe:
    """Remembers the last result for each source. Thread-safe; `close` ends its threads."""

    def __init__(
        self,
        policy: SourcePolicy,
        *,
        hub_url: str = HUB,
        read_secret: ReadSecret | None = None,
        settings: ProbeSettings = ProbeSettings(),
        marks: ProbeMarks | None = None,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self._settings = settings
        self._marks = marks or ProbeMarks(None)
        self._clock = clock
        self._dice = dice
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}
        self._cancel = threading.Event()
        self._source_probe = SourceProbe(
            policy, hub_url=hub_url, read_secret=read_secret, settings=settings, cancel=self._cancel
        )
        self._wanted: FairQueue[tuple[_Key, _Entry]] = FairQueue(settings.threads)
        self._threads: list[threading.Thread] = []
        self._pending = 0

    def latest(
        self,
        source: ModelSource,
        *,
        sha256: str | None,
        model_format: str,
        who: str,
        changed: Changed,
        files: Sequence[str] = (),
        secret: str = "",
    ) -> ProbeFacts | None:
        """Return the last result for `source`; None until the first one. Never blocks.

        `files` is the set of files below the source, beginning with the one to open; `secret` names, as
        `namespace/name`, the Secret with the credentials. Starts a probe if one is due. `changed` is called from a
        probe thread when the result differs; of several callbacks by the same `who` (`namespace/name`) the last one
        counts. Namespaces get equal shares of the threads.
        """
        key = _Key(source.address, (sha256 or "").lower(), model_format, tuple(files), secret)
        now = self._clock()
        with self._lock:
            self._drop_unused(now)
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = self._first(key, source, now)
            entry.asked_at = now
            entry.waiting[who] = changed
            namespace = who.partition("/")[0]
            due = now >= entry.due_at if not entry.looking else bool(entry.queued) and namespace not in entry.queued
            if due and not self._cancel.is_set():
                entry.looking = True
                entry.queued.add(namespace)
                self._submit(namespace, key, entry)
            return entry.facts

    def due_in_s(
        self,
        source: ModelSource,
        *,
        sha256: str | None,
        model_format: str,
        files: Sequence[str] = (),
        secret: str = "",
    ) -> float:
        """Return the seconds until `latest` must be called again to start the next probe."""
        key = _Key(source.address, (sha256 or "").lower(), model_format, tuple(files), secret)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return 0.0
            if entry.looking:
                # A probe that is under way calls back if its result differs. Otherwise this is the time by which it has
                # ended.
                return 2 * self._settings.timeout_s
            return max(0.0, entry.due_at - self._clock())

    def idle(self) -> bool:
        """Return whether no probe runs and all callbacks were called."""
        with self._lock:
            return self._pending == 0

    def close(self) -> None:
        """Stop. A running probe ends at its timeout at the latest, and its result is ignored."""
        self._cancel.set()
        self._marks.close()
        self._wanted.close()

    # --- in the background ----------------------------------------------------------------------------------------

    def _first(self, key: _Key, source: ModelSource, now: float) -> _Entry:
        """Add a source: its first probe is due now, unless an earlier process ended during one."""
        interrupted = self._marks.interrupted(repr(key))
        if interrupted is None:
            return _Entry(source, now)
        times = "" if interrupted.times == 1 else f" {interrupted.times} times in a row"
        next_look = datetime.now(UTC) + timedelta(seconds=interrupted.wait_s)
        where = shown(key.address)
        log.warning("Postponed the probe of a model", source=where, interrupted=interrupted.times)
        facts = ProbeFacts(
            outcome="unreachable",
            source=key.address,
            reason="LookInterrupted",
            message=f"the loop's process ended while it read this source{times}; it reads {where} again after "
            f"{next_look:%Y-%m-%dT%H:%M:%SZ}",
        )
        return _Entry(source, now, facts=facts, due_at=now + interrupted.wait_s)

    def _submit(self, namespace: str, key: _Key, entry: _Entry) -> None:
        """Queue a probe; called with the lock held. Its thread is a daemon, so a slow server never delays the end."""
        self._pending += 1
        self._wanted.put(namespace, (key, entry))
        if len(self._threads) < self._settings.threads:
            name = f"model-probe-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (taken := self._wanted.get()) is not None:
            namespace, (key, entry) = taken
            try:
                with self._lock:
                    # Another namespace's turn may have come first.
                    waits = bool(entry.queued)
                    entry.queued.clear()
                if waits and not self._cancel.is_set():
                    self._run_probe(key, entry)
            finally:
                self._wanted.done(namespace)
                with self._lock:
                    self._pending -= 1

    def _run_probe(self, key: _Key, entry: _Entry) -> None:
        before = entry.facts
        self._marks.begin(repr(key))
        try:
            found = self._source_probe.probe(
                entry.source,
                sha256=key.sha256 or None,
                previous=before,
                model_format=key.format,
                files=key.files,
                secret=key.secret,
            )
        except Exception:
            log.exception(
                "A probe of a model's source failed because of a defect of Herdsman", source=shown(key.address)
            )
            found = ProbeFacts(
                outcome="unreachable", source=key.address, reason="SourceUnexpected", message="the probe failed"
            )
        finally:
            self._marks.end(repr(key))
        good = found.outcome == "read"
        with self._lock:
            entry.failures = 0 if good else entry.failures + 1
            if good:
                delay_s = self._settings.confirm_s * (1.0 - 0.1 * self._dice())
            else:
                base_s, cap_s = self._settings.retry_base_s, self._settings.retry_cap_s
                delay_s = backoff_s(entry.failures, base_s=base_s, cap_s=cap_s, jitter=self._dice())
            entry.due_at = self._clock() + delay_s
            lost_sight = found.outcome == "unreachable" and found.reason != NOT_FOUND
            if lost_sight and before is not None and before.outcome == "read":
                # A network error does not change the last result; an answer that the source is gone does.
                found = before
            entry.facts = found
            entry.looking = False
            waiting = list(entry.waiting.values()) if found != before and not self._cancel.is_set() else []
        for changed in waiting:
            changed()

    def _drop_unused(self, now: float) -> None:
        for key in [
            k for k, e in self._entries.items() if not e.looking and now - e.asked_at > self._settings.drop_after_s
        ]:
            del self._entries[key]
