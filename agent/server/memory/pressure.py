"""Decides how short of memory a host is: three levels, entered at once and left with patience. Pure.

Called by `agent.server.memory.watchdog` at each look. A level is left only once the available share was better by a
margin for a while: at the edge of a level a host would otherwise be told of every few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.contract import MemoryPressure
from agent.server.memory.meminfo import Memory

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
