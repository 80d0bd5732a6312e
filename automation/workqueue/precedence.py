"""Lets the threads that write Events and revisions wait while the loop makes the objects of many services.

These writes compete with these objects for the API server and for the interpreter, and may come later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LONGEST_S = 120.0
"""The longest time by which a write is delayed."""
_CHECK_S = 0.1


class Precedence:
    """Delays writes while `is_busy` returns True. Thread-safe."""

    def __init__(
        self,
        is_busy: Callable[[], bool] = lambda: False,
        *,
        longest_s: float = LONGEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each write is delayed for at most `longest_s`, by the monotonic `clock`."""
        self._is_busy = is_busy
        self._longest_s = longest_s
        self._clock = clock
        self._ended = threading.Event()

    def now(self) -> float:
        """Return the time that `give_way` takes."""
        return self._clock()

    def give_way(self, since_s: float) -> None:
        """Wait while others have precedence over a write that was requested at `since_s`. Blocks."""
        while self._is_busy() and self._clock() < since_s + self._longest_s:
            if self._ended.wait(_CHECK_S):
                return

    def end(self) -> None:
        """Delay no write any more: the loop ends."""
        self._ended.set()
