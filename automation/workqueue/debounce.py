"""Calls an action once after many triggers, so that many small changes cost one pass."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


def start_timer(delay_s: float, call: Callable[[], None]) -> None:
    """Call a function in a separate thread after a delay."""
    timer = threading.Timer(delay_s, call)
    timer.daemon = True
    timer.start()


class Debounce:
    """Call `action` at most every `delay_s` seconds, and at the latest that long after a trigger.

    Its exceptions are logged, and a later trigger calls it again. `later` starts the timer; tests pass their own.
    """

    def __init__(
        self,
        action: Callable[[], None],
        *,
        delay_s: float,
        later: Callable[[float, Callable[[], None]], None] = start_timer,
    ) -> None:
        self._action = action
        self._delay_s = delay_s
        self._later = later
        self._lock = threading.Lock()
        self._asked = False

    def trigger(self) -> None:
        """Request a call of the action soon. Further triggers before the call change nothing."""
        with self._lock:
            if self._asked:
                return
            self._asked = True
        self._later(self._delay_s, self._run)

    def _run(self) -> None:
        with self._lock:
            self._asked = False
        try:
            self._action()
        except Exception:
            log.exception("Failed in a delayed action", action=getattr(self._action, "__qualname__", ""))
