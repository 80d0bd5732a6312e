"""A work queue of keys for several workers, with the semantics of client-go's.

The informers' handlers add keys, the workers of the loop take them. A key that is added many times before it is taken
is taken once. A key is never processed by two workers at the same time: if it is added during its processing, it is
queued again after `done`. Keys that are added with a delay wait in a heap until they are due. A delayed key can have a
condition that is evaluated when it is due. Keys that are put back let all others go first.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from automation.workqueue.backoff import Backoff

K = TypeVar("K")
TURN_OF_BACK = 4
"""While other keys wait, each fourth key that is taken is one of those that were put back."""


class WorkQueue(Generic[K]):
    """Keys waiting for a worker. Thread-safe; `clock` gives monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, backoff: Backoff[K] | None = None) -> None:
        self.admits: Callable[[K], bool] = lambda _: True
        """Keys for which it returns False are not added: those of another loop's shard."""
        self._clock = clock
        self._backoff: Backoff[K] = backoff or Backoff()
        self._condition = threading.Condition()
        self._ready: deque[K] = deque()
        self._back: dict[K, None] = {}
        """Keys that were put back, in their order."""
        self._taken = 0
        self._dirty: set[K] = set()
        self._processing: dict[K, float] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._later_if: list[tuple[float, int, K, Callable[[], bool]]] = []
        self._due_if: dict[K, int] = {}
        """The number of the only entry of `_later_if` that counts for a key."""
        self._sequence = itertools.count()
        self._stopped = False

    def add(self, key: K) -> None:
        """Add `key` now. Ignored after `shutdown`, and when it waits already."""
        if not self.admits(key):
            return
        with self._condition:
            self._add(key)

    def put_back(self, unhurried: Callable[[K], bool]) -> int:
        """Let all other keys go before the waiting keys for which `unhurried` returns True. Returns their number.

        A key that was put back and is added again waits like the others.
        """
        with self._condition:
            keys = list(self._ready)
            self._ready.clear()
            before = len(self._back)
            for key in keys:
                if unhurried(key):
                    self._back[key] = None
                else:
                    self._ready.append(key)
            return len(self._back) - before

    def add_after(self, key: K, delay_s: float) -> None:
        """Add `key` in `delay_s` seconds. Of several such calls for one key the earliest time counts."""
        if delay_s <= 0:
            self.add(key)
            return
        if not self.admits(key):
            return
        with self._condition:
            if self._stopped:
                return
            due = self._clock() + delay_s
            known = self._due.get(key)
            if known is not None and known <= due:
                return
            self._due[key] = due
            sooner = not self._later or due < self._later[0][0]
            heapq.heappush(self._later, (due, next(self._sequence), key))
            if sooner:
                # All workers, not one: the one that waited for this key may take another key before it is due.
                self._condition.notify_all()

    def add_after_if(self, key: K, delay_s: float, wanted: Callable[[], bool]) -> None:
        """Add `key` in `delay_s` seconds if `wanted` returns True then. Of several such calls the last counts.

        `wanted` must be quick, and must not call the queue.
        """
        if not self.admits(key):
            return
        with self._condition:
            if self._stopped:
                return
            number = next(self._sequence)
            self._due_if[key] = number
            due = self._clock() + delay_s
            sooner = not self._later_if or due < self._later_if[0][0]
            heapq.heappush(self._later_if, (due, number, key, wanted))
            if sooner:
                self._condition.notify_all()

    def add_failed(self, key: K) -> float:
        """Add `key` again after its back-off, which grows with each failure in a row; returns the seconds."""
        delay_s = self._backoff.failed(key)
        self.add_after(key, delay_s)
        return delay_s

    def failures(self, key: K) -> int:
        """How many times in a row `key` failed."""
        return self._backoff.failures(key)

    def reset_backoff(self, key: K) -> None:
        """Reset the back-off of `key`. A queued key stays queued."""
        self._backoff.reset(key)

    def get(self, timeout_s: float | None = None) -> K | None:
        """Take the next key, waiting for one; its `done` must follow. None at shutdown or when the time ran out."""
        with self._condition:
            deadline = None if timeout_s is None else self._clock() + timeout_s
            while True:
                self._promote()
                if self._ready or self._back:
                    key = self._take()
                    self._dirty.discard(key)
                    self._processing[key] = self._clock()
                    return key
                if self._stopped:
                    return None
                waits = [at - self._clock() for at in (deadline, self._next_due()) if at is not None]
                if deadline is not None and deadline <= self._clock():
                    return None
                self._condition.wait(max(0.0, min(waits)) if waits else None)

    def done(self, key: K) -> None:
        """Mark `key` as processed. If it was added meanwhile, it is queued again."""
        with self._condition:
            self._processing.pop(key, None)
            if key in self._dirty:
                self._ready.append(key)
                self._condition.notify()

    def shutdown(self) -> None:
        """Take no more keys and wake all waiting workers. Keys that are ready are still given out."""
        with self._condition:
            self._stopped = True
            self._later.clear()
            self._due.clear()
            self._later_if.clear()
            self._due_if.clear()
            self._condition.notify_all()

    def __len__(self) -> int:
        """Keys that wait for a worker now, without those in progress or for later."""
        with self._condition:
            self._promote()
            return len(self._ready) + len(self._back)

    def idle(self) -> bool:
        """Return whether nothing waits and nothing is in progress; keys for later do not count."""
        with self._condition:
            self._promote()
            return not self._dirty and not self._processing

    def longest_running(self) -> tuple[K, float] | None:
        """The key that has been worked on for the longest time, with the seconds; None when nothing is in progress."""
        with self._condition:
            if not self._processing:
                return None
            key = min(self._processing, key=self._processing.__getitem__)
            return key, self._clock() - self._processing[key]

    def _take(self) -> K:
        self._taken += 1
        if self._back and (not self._ready or self._taken % TURN_OF_BACK == 0):
            key = next(iter(self._back))
            del self._back[key]
            return key
        return self._ready.popleft()

    def _add(self, key: K) -> None:
        if self._stopped:
            return
        if key in self._back:
            del self._back[key]
            self._ready.append(key)
            return
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.append(key)
            self._condition.notify()

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            # An entry with another time was replaced by an earlier one.
            if self._due.get(key) == due:
                del self._due[key]
                self._add(key)
        while self._later_if and self._later_if[0][0] <= now:
            _, number, key, wanted = heapq.heappop(self._later_if)
            if self._due_if.get(key) == number:
                del self._due_if[key]
                if wanted():
                    self._add(key)

    def _next_due(self) -> float | None:
        return min((later[0][0] for later in (self._later, self._later_if) if later), default=None)
