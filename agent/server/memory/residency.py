"""Decides which models of a group are in a host's memory now, and which wait for their turn. Without I/O.

Called by `agent.server.memory.model_groups`. As many members as fit are in memory. If not all fit, they are ranked:

1. pinned members;
2. members that start, or that have been in memory for less than their minimum time;
3. members in memory that work on requests, so that requests for the same model are served together, until a member
   outside has waited for too long;
4. members outside that requests wait for;
5. members in memory that were used recently;
6. preferred members, which return by themselves when no other member needs the memory;
7. on-demand members without a proxy that reports demand;
8. idle on-demand members, which stay until another member needs the memory.

An on-demand member that is neither in memory nor requested stays out. No member has to leave for one that would not fit
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.server.memory.need import Need, total

Residency = Literal["pinned", "preferred", "onDemand"]


@dataclass(frozen=True)
class Rules:
    """The time limits of a group, in seconds."""

    dwell_s: float = 60.0
    """Minimum time in memory, unless the plan sets another one."""
    idle_s: float = 60.0
    """A member without a request for this time is idle."""
    batch_s: float = 2.0
    """After a request, more requests for the same model are expected for this time."""
    patience_s: float = 30.0
    """After a wait of this length, a busy member no longer precedes a requested one."""


@dataclass(frozen=True)
class Member:
    """One process of a group."""

    key: str
    residency: Residency
    need: Need | None = None
    """None: unknown; the member then needs all of the group's memory."""
    priority: int = 0
    inside_since: float | None = None
    """Since when it serves. None: it is not in memory, or it starts."""
    starting: bool = False
    """It has its memory and does not serve yet. If it had to leave now, its start would be wasted."""
    ready_to_start: bool = True
    """It could start immediately. A model that is still being downloaded displaces no other member."""
    wanted_since: float | None = None
    """Since when a request waits for it."""
    used_at: float | None = None
    """When a request for it last began or ended."""
    in_flight: int = 0
    proxied: bool = False
    """A proxy in front of it reports its requests."""
    dwell_s: float | None = None
    idle_s: float | None = None


@dataclass(frozen=True)
class Decision:
    """Which members may be in memory now."""

    inside: tuple[str, ...]
    outside: tuple[str, ...]
    blocked_by: dict[str, tuple[str, ...]]
    """For each member outside that claims memory: the members that have it."""
    too_large: dict[str, Need]
    """Members that would not fit if all but the pinned ones left, and the memory that would then be free."""
    look_again: float | None = None
    """When time alone may change the decision."""


def decide(members: Iterable[Member], room: Need, *, now: float, rules: Rules) -> Decision:
    """Choose the members in memory, for the memory that the group may have together."""
    everyone = sorted(members, key=lambda m: m.key)
    longest_wait = max((now - m.wanted_since for m in everyone if m.wanted_since is not None and _out(m)), default=0.0)
    ranks = {m.key: _rank(m, longest_wait, now, rules) for m in everyone}
    claiming = [m for m in everyone if ranks[m.key] is not None]
    claiming.sort(key=lambda m: _order(m, ranks[m.key] or 0))
    left, inside = room, list[Member]()
    for member in claiming:
        need = member.need or room
        # A pinned member is always in, even with too little room: admission decides about its start.
        if member.residency == "pinned" or (need.within(left) and (member.need is not None or left == room)):
            inside.append(member)
            left -= need
    if not any(_out(member) for member in inside):
        # If no outside member would come in, none has to leave. This happens when members have grown or the room has
        # shrunk.
        inside += [member for member in claiming if not _out(member) and member not in inside]
    chosen = {m.key for m in inside}
    outside = [m for m in everyone if m.key not in chosen]
    blocked = {m.key: tuple(i.key for i in inside) for m in outside if ranks[m.key] is not None}
    beside_pinned = room - total(m.need or Need() for m in claiming if m.residency == "pinned")
    return Decision(
        inside=tuple(m.key for m in inside),
        outside=tuple(m.key for m in outside),
        blocked_by=blocked,
        too_large={m.key: beside_pinned for m in outside if m.need is not None and not m.need.within(beside_pinned)},
        look_again=_next_change(everyone, now, rules) if blocked else None,
    )


def _out(member: Member) -> bool:
    return member.inside_since is None and not member.starting


def _dwells(member: Member, now: float, rules: Rules) -> bool:
    if member.starting:
        return True
    return member.inside_since is not None and now - member.inside_since < _dwell_s(member, rules)


def _dwell_s(member: Member, rules: Rules) -> float:
    return rules.dwell_s if member.dwell_s is None else member.dwell_s


def _idle_s(member: Member, rules: Rules) -> float:
    return rules.idle_s if member.idle_s is None else member.idle_s


def _used_within(member: Member, seconds: float, now: float) -> bool:
    return member.in_flight > 0 or (member.used_at is not None and now - member.used_at < seconds)


def _rank(member: Member, longest_wait: float, now: float, rules: Rules) -> int | None:
    """Return the rank in the module's list, or None for a member that claims no memory."""
    if member.residency == "pinned":
        return 1
    inside = not _out(member)
    if not inside and not member.ready_to_start:
        return None
    if _dwells(member, now, rules):
        return 2
    if inside and longest_wait < rules.patience_s and _used_within(member, rules.batch_s, now):
        return 3
    if not inside and member.wanted_since is not None:
        return 4
    if inside and member.residency == "onDemand" and _used_within(member, _idle_s(member, rules), now):
        return 5
    if member.residency == "preferred":
        return 6
    if not member.proxied:
        return 7
    return 8 if inside else None


def _order(member: Member, rank: int) -> tuple[int, int, bool, float, str]:
    """Return the sort key: rank, then priority, then members in memory, then the longest wait."""
    return rank, -member.priority, _out(member), member.wanted_since or 0.0, member.key


def _next_change(members: Sequence[Member], now: float, rules: Rules) -> float | None:
    moments: list[float] = []
    for member in members:
        if member.inside_since is not None:
            moments.append(member.inside_since + _dwell_s(member, rules))
            if member.used_at is not None:
                moments += [member.used_at + rules.batch_s, member.used_at + _idle_s(member, rules)]
        elif member.wanted_since is not None:
            moments.append(member.wanted_since + rules.patience_s)
    return min((moment for moment in moments if moment > now), default=None)
