"""Evaluates the memory of the host every few seconds: reports its pressure, evicts processes, and lets them return.

Called by `agent.server.memory.host_memory` in the memory thread. The level of pressure and the choice in `eviction`
have no I/O. The watchdog stores which processes were evicted and how often, and logs each change once. A level ends
only after the available share was better by a margin for some time, so that a host at the edge of a level does not
report a change every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import structlog

from agent.contract import MemoryPressure
from agent.server.memory.eviction import EvictedProcess, ReturnPolicy, RunningProcess, Skip, choose, returning
from agent.server.memory.meminfo import Memory
from agent.server.memory.need import amount, percent

_ORDER = (MemoryPressure.NORMAL, MemoryPressure.WARNING, MemoryPressure.CRITICAL)


@dataclass(frozen=True)
class Thresholds:
    """When memory counts as short, as available shares of all memory."""

    warning: float = 0.20
    critical: float = 0.10
    margin: float = 0.02
    """To leave a level, this much more memory must be available…"""
    settle_s: float = 30.0
    """…for this time."""


@dataclass(frozen=True)
class Pressure:
    """The level of memory pressure, and since when."""

    level: MemoryPressure = MemoryPressure.NORMAL
    since: float = 0.0
    better_since: float | None = None
    """Since when every measurement would have allowed a better level."""
    better: MemoryPressure = MemoryPressure.NORMAL
    """The worst of the levels that those measurements would have allowed."""


def severity(level: MemoryPressure) -> int:
    """Return the level as a number: 0 is Normal, 2 is Critical."""
    return _ORDER.index(level)


def after(before: Pressure, memory: Memory, thresholds: Thresholds, *, now: float) -> Pressure:
    """Return the pressure after one measurement."""
    told = level_of(memory, thresholds)
    if severity(told) > severity(before.level):
        return Pressure(told, since=now)
    allowed = level_of(memory, thresholds, margin=thresholds.margin)
    if severity(allowed) >= severity(before.level):
        return Pressure(before.level, since=before.since)
    since = now if before.better_since is None else before.better_since
    worst = allowed if before.better_since is None else max(allowed, before.better, key=severity)
    if now - since >= thresholds.settle_s:
        return Pressure(worst, since=now)
    return Pressure(before.level, since=before.since, better_since=since, better=worst)


def level_of(memory: Memory, thresholds: Thresholds, *, margin: float = 0.0) -> MemoryPressure:
    """Return the level of one measurement. With a margin, more memory must be available for the same level.

    If the kernel provides a level, only that counts: macOS keeps little memory free on purpose, and compresses idle
    memory. The thresholds are for systems without such a level.
    """
    if memory.kernel is not None:
        return memory.kernel
    share = memory.share if memory.kernel_share is None else memory.kernel_share
    own = MemoryPressure.NORMAL
    # Also report pressure if the thresholds are in the wrong order.
    if share < max(thresholds.warning, thresholds.critical) + margin:
        own = MemoryPressure.WARNING
    if share < thresholds.critical + margin:
        own = MemoryPressure.CRITICAL
    return own


_log = structlog.get_logger(__name__)


@dataclass
class Watchdog:
    """The watchdog of one host. One thread uses it; other threads may read its fields."""

    runners: Callable[[], Iterable[RunningProcess]]
    """All running processes, measured now. Called only under pressure."""
    evict: Callable[[str, str], None]
    """Stops a process (first argument) and keeps it from starting; the second argument is the reason."""
    let_back: Callable[[str], None]
    on_level: Callable[[MemoryPressure], None] = lambda _level: None
    """Called at each change of the level, including Normal, and when an eviction, a return or a skip happens."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    return_policy: ReturnPolicy = field(default_factory=ReturnPolicy)
    enabled: bool = False
    state: Pressure = field(default_factory=Pressure)
    memory: Memory | None = None
    """The last measurement."""
    evicted: dict[str, EvictedProcess] = field(default_factory=dict)
    evictions: int = 0
    skipped: dict[Skip, int] = field(default_factory=dict)
    """Measurements under critical pressure at which no process was evicted, by reason."""
    _said: Skip | None = None
    _past: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often and when each process was last evicted."""
    _last_return: float | None = None
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each evicted process: the available memory at its eviction, and the memory that it had."""

    @property
    def level(self) -> MemoryPressure:
        return self.state.level

    @property
    def skip(self) -> Skip | None:
        """Why nothing is evicted now although pressure is critical."""
        return self._said

    def check(self, memory: Memory, *, now: float) -> None:
        """Evaluate one measurement, and evict or return at most one process."""
        self.memory = memory
        for key, (available, footprint) in self._before.items():
            # Count only memory that became available: shared pages and pages that the system would have dropped do not
            # count.
            gained = min(footprint, memory.available_bytes - available)
            if key in self.evicted and gained > self.evicted[key].brings_bytes:
                self.evicted[key] = replace(self.evicted[key], brings_bytes=gained)
        before, self.state = self.state.level, after(self.state, memory, self.thresholds, now=now)
        if self.level is not before:
            (_log.info if self.level is MemoryPressure.NORMAL else _log.warning)(
                "The memory pressure changed",
                pressure=self.level.value,
                was=before.value,
                available=amount(memory.available_bytes),
                share=percent(memory.share),
            )
            self.on_level(self.level)
        if self.level is MemoryPressure.CRITICAL:
            self._relieve(memory, now)
        else:
            self._said = None
            self._return_one(memory, now)

    def keep_only(self, wanted: Iterable[str]) -> None:
        """Remove evicted processes that are no longer wanted."""
        kept = set(wanted)
        for remembered in (self.evicted, self._past, self._before):
            for key in [key for key in remembered if key not in kept]:
                del remembered[key]

    def _relieve(self, memory: Memory, now: float) -> None:
        if level_of(memory, self.thresholds) is not MemoryPressure.CRITICAL:
            # The level is about to end, so the earlier evictions sufficed.
            return
        runners = list(self.runners())
        verdict = choose(self.level, runners, enabled=self.enabled, used_bytes=memory.used_bytes)
        if verdict.skip is not None:
            self.skipped[verdict.skip] = self.skipped.get(verdict.skip, 0) + 1
            if verdict.skip is not self._said:
                _log.warning("Evicted nothing under critical memory pressure", reason=verdict.skip.value)
                self._said = verdict.skip
                self.on_level(self.level)
            return
        if verdict.evict is None:
            return
        victim, self._said = verdict.evict, None
        times, last = self._past.get(victim.key, (0, now))
        times = 1 if now - last > self.return_policy.forgiven_s else times + 1
        self._past[victim.key] = times, now
        self.evicted[victim.key] = EvictedProcess(victim.key, victim.priority, since=now, times=times)
        self._before[victim.key] = memory.available_bytes, victim.footprint_bytes
        self.evictions += 1
        message = (
            f"Stopped because the host was short of memory: {amount(memory.available_bytes)} of "
            f"{amount(memory.total_bytes)} ({percent(memory.share)}) were available; it had "
            f"{amount(victim.footprint_bytes)} and the lowest priority. It starts again when the pressure has ended"
        )
        _log.warning("Evicted a process", process=victim.key, footprint=amount(victim.footprint_bytes), times=times)
        self.evict(victim.key, message)
        self.on_level(self.level)

    def _return_one(self, memory: Memory, now: float) -> None:
        normal_since = self.state.since if self.level is MemoryPressure.NORMAL else None
        due = returning(
            list(self.evicted.values()),
            normal_since=normal_since,
            last_return=self._last_return,
            room_bytes=(memory.share - self.thresholds.critical - self.thresholds.margin) * memory.total_bytes,
            now=now,
            return_policy=self.return_policy,
        )
        if due is not None:
            del self.evicted[due.key]
            self._before.pop(due.key, None)
            self._last_return = now
            _log.info("Allowed an evicted process to start again", process=due.key)
            self.let_back(due.key)
            self.on_level(self.level)

    def configure(self, *, warning: float, critical: float, enabled: bool) -> None:
        """Set the configured thresholds, and whether evictions are allowed."""
        self.thresholds = replace(self.thresholds, warning=warning, critical=critical)
        self.enabled = enabled
