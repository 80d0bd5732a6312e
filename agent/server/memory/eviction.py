"""Decides which process is evicted under critical pressure, and which evicted process may return. Without I/O.

Called by `agent.server.memory.watchdog` at each measurement: it evicts one process at a time, and only as many as
needed. The order is priority, then memory, then age. A protected process is never evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.contract import MemoryPressure

GUARD_SHARE = 0.5
"""Herdsman's processes must use at least this share of the used memory. Otherwise other programs cause the pressure."""


class Skip(StrEnum):
    """Why nothing is evicted although pressure is critical."""

    DISABLED = "disabled"
    """The Host's `spec.memoryPressure.eviction` does not allow it."""
    NONE = "none"
    """No process of Herdsman runs."""
    STOPPING = "stopping"
    """The last evicted process is still stopping."""
    BELOW_GUARD = "below_guard"
    """Herdsman's processes use at most half of the used memory, so stopping them would not help."""
    FLOOR = "floor"
    """Only one process runs, and a host without processes serves nothing."""
    ALL_PROTECTED = "all_protected"


SKIPPED = {
    Skip.DISABLED: "nothing is evicted, because spec.memoryPressure.eviction does not allow it",
    Skip.NONE: "nothing is evicted, because no process runs",
    Skip.STOPPING: "nothing is evicted, because the last evicted process is still stopping",
    Skip.BELOW_GUARD: "nothing is evicted, because other programs use most of the used memory",
    Skip.FLOOR: "nothing is evicted, because only one process runs",
    Skip.ALL_PROTECTED: "nothing is evicted, because every process is protected",
}
"""The same reasons as text for people."""


@dataclass(frozen=True)
class RunningProcess:
    """A running process."""

    key: str
    priority: int
    footprint_bytes: int
    started: float
    """When it started, on the clock of the caller."""
    protected: bool = False
    stopping: bool = False


@dataclass(frozen=True)
class Eviction:
    """The process to evict, or the reason for evicting none."""

    evict: RunningProcess | None = None
    skip: Skip | None = None


def choose(level: MemoryPressure, runners: Iterable[RunningProcess], *, enabled: bool, used_bytes: int) -> Eviction:
    """Choose at most one process to evict now. `evict` and `skip` are both None if pressure is not critical."""
    if level is not MemoryPressure.CRITICAL:
        return Eviction()
    running = list(runners)
    if not enabled:
        return Eviction(skip=Skip.DISABLED)
    if not running:
        return Eviction(skip=Skip.NONE)
    if any(runner.stopping for runner in running):
        return Eviction(skip=Skip.STOPPING)
    if sum(runner.footprint_bytes for runner in running) <= GUARD_SHARE * used_bytes:
        return Eviction(skip=Skip.BELOW_GUARD)
    if len(running) == 1:
        return Eviction(skip=Skip.FLOOR)
    open_to_it = [runner for runner in running if not runner.protected]
    if not open_to_it:
        return Eviction(skip=Skip.ALL_PROTECTED)
    return Eviction(evict=min(open_to_it, key=lambda r: (r.priority, -r.footprint_bytes, r.started, r.key)))


@dataclass(frozen=True)
class ReturnPolicy:
    """How long evicted processes stay stopped."""

    calm_s: float = 60.0
    """Pressure must have been Normal for this long before a process returns."""
    between_s: float = 30.0
    """Shortest time between two returns."""
    longest_s: float = 1800.0
    forgiven_s: float = 3600.0
    """Evictions longer ago than this do not lengthen the wait."""


@dataclass(frozen=True)
class EvictedProcess:
    """An evicted process that has not returned."""

    key: str
    priority: int
    since: float
    times: int = 1
    """How often it was evicted recently, this time included."""
    brings_bytes: int = 0
    """Memory that its eviction freed and its return will take."""

    def may_return_at(self, return_policy: ReturnPolicy) -> float:
        """Return the earliest time.

        The wait doubles each time that a process is evicted again soon after its return.
        """
        return self.since + min(return_policy.longest_s, return_policy.calm_s * 2.0 ** min(self.times - 1, 16))


def returning(
    evicted: Sequence[EvictedProcess],
    *,
    normal_since: float | None,
    last_return: float | None,
    room_bytes: float,
    now: float,
    return_policy: ReturnPolicy,
) -> EvictedProcess | None:
    """Choose one process that returns now, the most important first, after pressure has been Normal for `calm_s`.

    `normal_since` is None while pressure is not Normal. A process that needs more than `room_bytes`, the memory above
    the critical threshold, would bring the pressure back. It waits for `longest_s` before it may return.
    """
    if normal_since is None or now - normal_since < return_policy.calm_s:
        return None
    if last_return is not None and now - last_return < return_policy.between_s:
        return None
    due = [
        each
        for each in evicted
        if each.may_return_at(return_policy) <= now
        and (each.brings_bytes <= room_bytes or now - each.since >= return_policy.longest_s)
    ]
    return min(due, key=lambda each: (-each.priority, each.since, each.key), default=None)
