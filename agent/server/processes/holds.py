"""Remembers which processes must not run now, and on whose word. Read by each `worker` before its next step.

The memory watchdog, the swapping of model groups and the idle timer each hold and release in their own name, so that
none of them starts what another has stopped.
"""

from __future__ import annotations

import threading

from agent.processes.lifecycle import Hold


class Holds:
    """The holds of one agent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: dict[str, dict[str, Hold]] = {}

    def put(self, key: str, source: str, hold: Hold) -> bool:
        """Hold a process in the name of `source`; False when it was held so already."""
        with self._lock:
            by_source = self._holds.setdefault(key, {})
            if by_source.get(source) == hold:
                return False
            by_source[source] = hold
            return True

    def release(self, key: str, source: str) -> bool:
        """Take back what `source` said; False when it had said nothing."""
        with self._lock:
            by_source = self._holds.get(key, {})
            found = by_source.pop(source, None) is not None
            if not by_source:
                self._holds.pop(key, None)
            return found

    def of(self, key: str) -> Hold | None:
        """Give the oldest hold of a process; None when it may run."""
        with self._lock:
            return next(iter(self._holds.get(key, {}).values()), None)

    def by(self, source: str) -> dict[str, Hold]:
        """Give what `source` holds, by process."""
        with self._lock:
            return {key: held[source] for key, held in self._holds.items() if source in held}

    def sources(self, key: str) -> set[str]:
        """Name all who hold a process."""
        with self._lock:
            return set(self._holds.get(key, ()))

    def remove_process(self, key: str) -> None:
        """Strike a process off that nobody wants any more."""
        with self._lock:
            self._holds.pop(key, None)
