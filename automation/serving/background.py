"""Runs probes in a few threads, so that no worker of the loop waits for one.

Used by the checks of replicas (`completion_check`, `idleness`, `acceleration`). `latest` returns the last answer and
starts a probe in a thread when a new one is due. A new answer that differs calls back.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")

DEFECT_RETRY_S = 60.0
FORGET_S = 4 * 3600.0
_SWEEP_EVERY = 256


@dataclass
class _Entry(Generic[A]):
    asked_at: float
    answer: A | None = None
    due_at: float = -math.inf
    asking: bool = False
    waiting: dict[Hashable, Callable[[], None]] = field(default_factory=dict)


class BackgroundProbes(Generic[K, A]):
    """Remembers the last answer of each probe. Thread-safe; after `close` no probe starts.

    `again_s` returns how many seconds an answer is valid, infinity for ever. Answers that were not read for hours are
    dropped. The threads are daemons, because a probe of a slow server must not delay the end of the process.
    """

    def __init__(
        self,
        name: str,
        *,
        again_s: Callable[[A], float],
        threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._again_s = again_s
        self._size = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[K, _Entry[A]] = {}
        self._jobs: queue.SimpleQueue[tuple[K, _Entry[A], Callable[[A | None], A]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._asked = 0
        self._closed = False

    def latest(self, key: K, ask: Callable[[A | None], A], *, who: Hashable, changed: Callable[[], None]) -> A | None:
        """Return the last answer for `key`, None before the first. Never blocks.

        `ask` gets the previous answer and makes a new one in a thread, if one is due. `changed` is called from that
        thread when the new answer differs; of several callbacks by the same `who` the last one counts.
        """
        now = self._clock()
        with self._lock:
            self._drop_unused(now)
            entry = self._entries.setdefault(key, _Entry(now))
            entry.asked_at = now
            entry.waiting[who] = changed
            if not entry.asking and now >= entry.due_at and not self._closed:
                entry.asking = True
                self._submit(key, entry, ask)
            return entry.answer

    def due_in_s(self, key: K) -> float:
        """Return the seconds until `latest` probes again; infinity for a final answer, or while a probe runs."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.asking:
                return math.inf
            return max(0.0, entry.due_at - self._clock())

    def drop_answer(self, key: K) -> None:
        """Drop the answer, so that the next `latest` asks again. An answer that is still being made is not stored."""
        with self._lock:
            self._entries.pop(key, None)

    def idle(self) -> bool:
        """Return whether no probe waits or runs."""
        with self._lock:
            return self._pending == 0

    def close(self) -> None:
        """Start no probe and call no callback any more."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)

    # --- in the background ----------------------------------------------------------------------------------------

    def _submit(self, key: K, entry: _Entry[A], ask: Callable[[A | None], A]) -> None:
        """Pass a probe to the threads; called with the lock held."""
        self._pending += 1
        self._jobs.put((key, entry, ask))
        if len(self._threads) < min(self._size, self._pending):
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if not self._closed:
                    self._ask(*job)
            finally:
                with self._lock:
                    self._pending -= 1

    def _ask(self, key: K, entry: _Entry[A], ask: Callable[[A | None], A]) -> None:
        before = entry.answer
        answer: A | None = before
        try:
            new = ask(before)
            answer, again_s = new, self._again_s(new)
        except Exception:
            log.exception("A request failed because of a defect of Herdsman", question=self._name, key=str(key))
            again_s = DEFECT_RETRY_S
        with self._lock:
            entry.answer = answer
            entry.due_at = self._clock() + again_s
            entry.asking = False
            current = self._entries.get(key) is entry and not self._closed
            told = list(entry.waiting.values()) if answer != before and current else []
        for changed in told:
            changed()

    def _drop_unused(self, now: float) -> None:
        self._asked += 1
        if self._asked % _SWEEP_EVERY:
            return
        for key in [k for k, e in self._entries.items() if not e.asking and now - e.asked_at > FORGET_S]:
            del self._entries[key]
