"""Decides which process gives way under critical pressure, and which of those that did may come back. Pure.

Called by `agent.server.memory.watchdog`, which asks again at its next look: one process at a time, and never more than
needed. The order is by priority, then by what it brings, then by age; a protected process never gives way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.contract import MemoryPressure

GUARD_SHARE = 0.5
"""Of all memory in use our processes must have this much, or the pressure is somebody else's."""


class Skip(StrEnum):
    """Why nothing is evicted although pressure is critical."""

    DISABLED = "disabled"
    """Nobody allowed it (Host `spec.memoryPressure.eviction`)."""
    NONE = "none"
    """No process of ours runs."""
    STOPPING = "stopping"
    """The last one that gave way still stops."""
    BELOW_GUARD = "below_guard"
    """Our processes have less than half of what is in use: stopping them would not help."""
    FLOOR = "floor"
    """Only one runs; a host that serves nothing is no better."""
    ALL_PROTECTED = "all_protected"


SKIPPED = {
    Skip.DISABLED: "nothing is evicted, because spec.memoryPressure.eviction does not allow it",
    Skip.NONE: "nothing is evicted, because no process runs",
    Skip.STOPPING: "the last one that was evicted still stops",
    Skip.BELOW_GUARD: "nothing is evicted, because most of what is in use is not the processes'",
    Skip.FLOOR: "nothing is evicted, because only one process runs",
    Skip.ALL_PROTECTED: "nothing is evicted, because every process is protected",
}
"""The same for people."""


@dataclass(frozen=True)
class RunningProcess:
    """A process that runs."""

    key: str
    priority: int
    footprint_bytes: int
    started: float
    """When, on the clock of the caller."""
    protected: bool = False
    stopping: bool = False


@dataclass(frozen=True)
class Eviction:
    """Whom to evict, or why nobody."""

    evict: RunningProcess | None = None
    skip: Skip | None = None


def choose(level: MemoryPressure, runners: Iterable[RunningProcess], *, enabled: bool, used_bytes: int) -> Eviction:
    """Choose at most one process to evict now; neither `evict` nor `skip` where pressure is not critical."""
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
    """How long evicted processes stay away."""

    calm_s: float = 60.0
    """Pressure must have been Normal for this long before one comes back."""
    between_s: float = 30.0
    """At least this long between two that come back."""
    longest_s: float = 1800.0
    forgiven_s: float = 3600.0
    """Evictions longer ago than this do not lengthen the wait."""


@dataclass(frozen=True)
class EvictedProcess:
    """A process that was evicted and is not back."""

    key: str
    priority: int
    since: float
    times: int = 1
    """How often it gave way of late, this time included."""
    brings_bytes: int = 0
    """What became available when it went, and will be missing when it is back."""

    def may_return_at(self, return_policy: ReturnPolicy) -> float:
        """Give the earliest time: who gave way again soon after it came back waits twice as long each time."""
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
    """Choose who comes back now: one at a time, the most important first, and only once pressure is over for good.

    `normal_since` is None while pressure is not Normal. Who would bring the pressure back, because it needs more than
    the `room_bytes` above what is critical, waits for the longest time before it gets its chance.
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
