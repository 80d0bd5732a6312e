"""Since when requests wait for services. The proxies report; `pools` asks.

A proxy repeats its report every second while requests wait (`agent.proxy.service.Callbacks.waiting`). So the end of a
wait needs no report, and a proxy that ends leaves nothing behind. Any other part that holds requests calls `report` in
the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from program.desired.keys import ServiceKey

FRESH_S = 5.0
"""After this time without a report, no request waits any longer."""


class Demand:
    """The waiting requests of all services. Thread-safe; never blocks."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: dict[ServiceKey, tuple[float, float]] = {}
        """By service: since when requests wait, and the last report."""

    def report(self, key: ServiceKey) -> bool:
        """Record that requests wait for a service now. Return whether none had waited before."""
        with self._lock:
            now = self._clock()
            since, last = self._reports.get(key, (now, now))
            is_new = key not in self._reports or now - last > FRESH_S
            self._reports[key] = (now if is_new else since, now)
            return is_new

    def since(self, key: ServiceKey) -> float | None:
        """Return since when requests wait for a service; None if none do."""
        with self._lock:
            found = self._reports.get(key)
            if found is None or self._clock() - found[1] > FRESH_S:
                self._reports.pop(key, None)
                return None
            return found[0]

    def met(self, key: ServiceKey) -> None:
        """Record that the waiting requests of a service are answered now."""
        with self._lock:
            self._reports.pop(key, None)
