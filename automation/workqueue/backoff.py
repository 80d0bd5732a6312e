"""The wait after a failure: a pure formula, and a count of failures for each key.

Used by the loop's workers; calls nothing.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


def backoff_s(failures: int, *, base_s: float, cap_s: float, jitter: float) -> float:
    """Return the seconds to wait after `failures` failures in a row. base_s doubles with each failure, up to cap_s.

    `jitter` is a number in [0, 1]: the share of half the wait that is subtracted. So the wait is between half and all
    of the exponential value, and keys that failed together are retried at different times. Without a failure it is 0.
    """
    if failures <= 0:
        return 0.0
    # The exponent is bounded because 2.0 ** 1024 overflows.
    whole_s = min(cap_s, base_s * 2.0 ** min(failures - 1, 62))
    return whole_s * (1.0 - 0.5 * min(1.0, max(0.0, jitter)))


class Backoff(Generic[K]):
    """Failures in a row by key. Thread-safe. `dice` gives the jitter, a number in [0, 1) for each wait."""

    def __init__(
        self,
        *,
        base_s: float = 0.5,
        cap_s: float = 300.0,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._dice = dice
        self._failures: dict[K, int] = {}
        self._lock = threading.Lock()

    def failed(self, key: K) -> float:
        """Count one more failure of `key` and return the seconds to wait."""
        with self._lock:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        return backoff_s(failures, base_s=self._base_s, cap_s=self._cap_s, jitter=self._dice())

    def failures(self, key: K) -> int:
        """How many times in a row `key` failed."""
        with self._lock:
            return self._failures.get(key, 0)

    def reset(self, key: K) -> None:
        """Set the count of failures of `key` to zero."""
        with self._lock:
            self._failures.pop(key, None)
