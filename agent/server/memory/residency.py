"""Decides which models of a group are in a host's memory now, and which wait for their turn. Pure.

Called by `agent.server.memory.model_groups`. As many stay as fit. Of those that do not fit together these come first:

1. what is pinned, 2. who starts or has not served for its least time, 3. who is in and works on requests, so that those
for the same model go together, until somebody else waited for too long, 4. who is asked for and out, 5. who was asked
for a moment ago, 6. what is preferred: it comes back by itself when nobody needs its place, 7. what runs on demand and
has no proxy that would tell of demand, 8. what runs on demand and is idle: it stays while nobody wants its place.

What runs on demand and is neither in nor asked for stays out. Nobody is pushed out for one that would not fit then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.server.memory.need import Need, total

Residency = Literal["pinned", "preferred", "onDemand"]


@dataclass(frozen=True)
class Rules:
    """How patient a group is, in seconds."""

    dwell_s: float = 60.0
    """Who came in stays this long, unless its plan says otherwise."""
    idle_s: float = 60.0
    """Who was not asked for this long is idle."""
    batch_s: float = 2.0
    """A request this short a time ago means that more for the same model may follow."""
    patience_s: float = 30.0
    """After so long a wait a model that works is no longer preferred to one that is asked for."""


@dataclass(frozen=True)
class Member:
    """One process of a group."""

    key: str
    residency: Residency
    need: Need | None = None
    """None: not known; it then takes turns with all others."""
    priority: int = 0
    inside_since: float | None = None
    """Since when it has its memory and serves; None while it is out."""
    starting: bool = False
    """It has its memory and does not serve yet. To push it out now would make its start worth nothing."""
    ready_to_start: bool = True
    """Nothing but its turn keeps it from starting. A model that is still being downloaded pushes nobody out."""
    wanted_since: float | None = None
    """Since when a request waits for it."""
    used_at: float | None = None
    """When a request for it last began or ended."""
    in_flight: int = 0
    proxied: bool = False
    """A proxy stands before it and tells what it is asked for."""
    dwell_s: float | None = None
    idle_s: float | None = None


@dataclass(frozen=True)
class Decision:
    """Who may be in now."""

    inside: tuple[str, ...]
    outside: tuple[str, ...]
    blocked_by: dict[str, tuple[str, ...]]
    """Who has the place of each that is outside, and claims it."""
    too_large: dict[str, Need]
    """Who could not come in if all but the pinned went, and what it would have then."""
    look_again: float | None = None
    """When time alone may change the decision."""


def decide(members: Iterable[Member], room: Need, *, now: float, rules: Rules) -> Decision:
    """Choose who is in, given the memory that the group may have together."""
    everyone = sorted(members, key=lambda m: m.key)
    longest_wait = max((now - m.wanted_since for m in everyone if m.wanted_since is not None and _out(m)), default=0.0)
    ranks = {m.key: _rank(m, longest_wait, now, rules) for m in everyone}
    claiming = [m for m in everyone if ranks[m.key] is not None]
    claiming.sort(key=lambda m: _order(m, ranks[m.key] or 0))
    left, inside = room, list[Member]()
    for member in claiming:
        need = member.need or room
        # Whatever is pinned is in, if need be with too little room: admission has the last word on its start.
        if member.residency == "pinned" or (need.within(left) and (member.need is not None or left == room)):
            inside.append(member)
            left -= need
    if not any(_out(member) for member in inside):
        # Nobody would come in for those who would have to go, because they have grown or there is less for all.
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
    """Give the place in the module's list; None for who claims nothing."""
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
    """Within a rank the more important comes first, then who is in, then who has waited longest."""
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
