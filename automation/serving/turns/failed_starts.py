"""Members that did not serve in their turn: how long others come first. Without I/O. Called by `pools`.

A member that cannot start would otherwise take the GPUs from working members again and again, as long as its clients
repeat their requests.
"""

from __future__ import annotations

from automation.workqueue.backoff import backoff_s
from program.desired.keys import ServiceKey

BASE_S, CAP_S = 60.0, 1800.0


class FailedStarts:
    """The failed starts of members in a row. An edit of a member's spec ends the row. Not thread-safe."""

    def __init__(self) -> None:
        self._found: dict[ServiceKey, tuple[int, int, float]] = {}
        """By member: the generation of its spec, the failed starts in a row, and until when others come first."""

    def record(self, key: ServiceKey, generation: int, *, now: float) -> None:
        """Record that a member lost its turn before it served."""
        before = self._found.get(key)
        count = before[1] + 1 if before is not None and before[0] == generation else 1
        self._found[key] = generation, count, now + backoff_s(count, base_s=BASE_S, cap_s=CAP_S, jitter=0.0)

    def last_until(self, key: ServiceKey, generation: int, *, now: float) -> float | None:
        """Return until when others come before a member; None if it comes by its wait alone."""
        found = self._found.get(key)
        return found[2] if found is not None and found[0] == generation and now < found[2] else None

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a member that serves, or that was deleted."""
        self._found.pop(key, None)
