"""Distributes the jobs of several namespaces to a few threads, with an equal share for each namespace.

Used by `model_probe`, whose sources may be slow servers that any tenant names.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class FairQueue(Generic[Job]):
    """Hands out jobs, the namespace with the fewest jobs under way first, in turns. Thread-safe."""

    def __init__(self, workers: int) -> None:
        """One of `workers` is kept free of the namespace that has all others."""
        self._most = max(1, workers - 1)
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Job]] = {}
        """By namespace, in the order of their turns."""
        self._running: dict[str, int] = {}
        self._closed = False

    def put(self, namespace: str, job: Job) -> None:
        """Add a job at the end of its namespace's."""
        with self._changed:
            self._waiting.setdefault(namespace, deque()).append(job)
            self._changed.notify()

    def get(self) -> tuple[str, Job] | None:
        """Wait for a job and return it with its namespace, for `done`; None after `close`."""
        with self._changed:
            while not self._closed:
                namespace = self._next()
                if namespace is not None:
                    return namespace, self._hand_out(namespace)
                self._changed.wait()
            return None

    def done(self, namespace: str) -> None:
        """Record the end of a job."""
        with self._changed:
            self._running[namespace] -= 1
            if not self._running[namespace]:
                del self._running[namespace]
            self._changed.notify()

    def close(self) -> None:
        """Hand out no more jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> str | None:
        ready = [namespace for namespace in self._waiting if self._running.get(namespace, 0) < self._most]
        return min(ready, key=lambda namespace: self._running.get(namespace, 0), default=None)

    def _hand_out(self, namespace: str) -> Job:
        jobs = self._waiting.pop(namespace)
        job = jobs.popleft()
        if jobs:
            # The dictionary keeps the order of insertion: this namespace is behind all others now.
            self._waiting[namespace] = jobs
        self._running[namespace] = self._running.get(namespace, 0) + 1
        return job
