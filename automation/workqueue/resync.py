"""Enqueues all keys periodically, so that a missed change is noticed in the next round.

Made by `assembly`; fills the queues of `loop`. A pass of a service without a change compares hashes and statuses: it
reads caches, sends no request to the API server and runs no engine.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class Resync:
    """Calls `again` for each round, one every `every_s` seconds.

    `again` gets a function that returns a delay, a random part of the round, so that the passes of thousands of
    services are spread over it, and differently in each round.
    """

    def __init__(self, again: Callable[[Callable[[], float]], None], *, every_s: float) -> None:
        self._again = again
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resync", daemon=True)

    def start(self) -> None:
        """Start the rounds; the first begins after `every_s`, because a loop enqueues all keys when it starts."""
        if self._every_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """Start no further round."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._again(self._delay_s)
            except Exception:
                log.exception("Failed to enqueue all services again")

    def _delay_s(self) -> float:
        return random.uniform(0.0, self._every_s)  # noqa: S311 - spreads load, keeps no secret
