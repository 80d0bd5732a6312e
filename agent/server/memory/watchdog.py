"""Measures the host's memory every few seconds and acts on it: reports its pressure, evicts, lets processes return.

Called by `agent.server.memory.host_memory` in its own thread. The level of pressure and the choice in `eviction` are
pure. The watchdog remembers which processes were evicted and how often, and logs each change once. A level is left only
after the available share was better by a margin for a while, so that a host at the edge of a level reports no change
every few seconds.
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
    """When memory counts as short, as shares of all memory that are available."""

    warning: float = 0.20
    critical: float = 0.10
    margin: float = 0.02
    """A level is left only with so much more than what led to it…"""
    settle_s: float = 30.0
    """…for so long."""


@dataclass(frozen=True)
class Pressure:
    """How it is, and since when."""

    level: MemoryPressure = MemoryPressure.NORMAL
    since: float = 0.0
    better_since: float | None = None
    """Since when every look would have allowed a better level."""
    better: MemoryPressure = MemoryPressure.NORMAL
    """The worst of the levels that those looks would have allowed."""


def severity(level: MemoryPressure) -> int:
    """Number the levels: 0 is Normal, 2 Critical."""
    return _ORDER.index(level)


def after(before: Pressure, memory: Memory, thresholds: Thresholds, *, now: float) -> Pressure:
    """Take in one look at the memory."""
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
    """Judge one look by itself; with a margin, so much more must be available for the same answer.

    Where the kernel says how it is, that counts alone: macOS keeps little memory free on purpose, and compresses what
    rests. The thresholds are for systems that do not say.
    """
    if memory.kernel is not None:
        return memory.kernel
    share = memory.share if memory.kernel_share is None else memory.kernel_share
    own = MemoryPressure.NORMAL
    # Thresholds in the wrong order are no reason to see no pressure at all.
    if share < max(thresholds.warning, thresholds.critical) + margin:
        own = MemoryPressure.WARNING
    if share < thresholds.critical + margin:
        own = MemoryPressure.CRITICAL
    return own


_log = structlog.get_logger(__name__)


@dataclass
class Watchdog:
    """The watchdog of one host. Used by one thread; others may read its fields."""

    runners: Callable[[], Iterable[RunningProcess]]
    """All processes that run, measured now. Asked only under pressure."""
    evict: Callable[[str, str], None]
    """Stops a process and keeps it from starting; second, why."""
    let_back: Callable[[str], None]
    on_level: Callable[[MemoryPressure], None] = lambda _level: None
    """Called at each change of the level, Normal included, and of what is done about it."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    return_policy: ReturnPolicy = field(default_factory=ReturnPolicy)
    enabled: bool = False
    state: Pressure = field(default_factory=Pressure)
    memory: Memory | None = None
    """The last look."""
    evicted: dict[str, EvictedProcess] = field(default_factory=dict)
    evictions: int = 0
    skipped: dict[Skip, int] = field(default_factory=dict)
    """Looks under critical pressure at which nobody was evicted, by reason."""
    _said: Skip | None = None
    _past: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often and when last each process was evicted."""
    _last_return: float | None = None
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What was available when each evicted process was evicted, and how much it had."""

    @property
    def level(self) -> MemoryPressure:
        return self.state.level

    @property
    def skip(self) -> Skip | None:
        """Why nothing is evicted now although pressure is critical."""
        return self._said

    def check(self, memory: Memory, *, now: float) -> None:
        """Take in how the memory is now, and do the one thing that follows from it."""
        self.memory = memory
        for key, (available, footprint) in self._before.items():
            # Pages that several processes share, or that the system would have dropped, came with nobody's end.
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
        """Strike off the evicted that nobody wants any more."""
        kept = set(wanted)
        for remembered in (self.evicted, self._past, self._before):
            for key in [key for key in remembered if key not in kept]:
                del remembered[key]

    def _relieve(self, memory: Memory, now: float) -> None:
        if level_of(memory, self.thresholds) is not MemoryPressure.CRITICAL:
            # The level is about to be left: what was stopped sufficed.
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
            f"{amount(victim.footprint_bytes)} and the lowest priority. It comes back when the pressure is over"
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
            _log.info("Let an evicted process back", process=due.key)
            self.let_back(due.key)
            self.on_level(self.level)

    def configure(self, *, warning: float, critical: float, enabled: bool) -> None:
        """Take in what people wish."""
        self.thresholds = replace(self.thresholds, warning=warning, critical=critical)
        self.enabled = enabled
