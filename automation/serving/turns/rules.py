"""Decides which member of a pool has its turn on the GPUs, and which one is next. Without I/O.

Called by `pools`. At most one member has the turn, and only it may have replicas. The rules:

1. A member keeps its turn until requests wait for another one. Idleness alone ends no turn.
2. A turn lasts at least `min_turn_s` from the moment at which the member serves. A start is not interrupted for
   `start_s`. A member that cannot start loses its turn at once when requests wait for another one. A running member
   that Herdsman cannot stop keeps its turn.
3. The member whose requests have waited longest is next. So no busy member keeps the others out. A member that did not
   serve in its last turn comes after the others for some time, and ends the turn of no other member.
4. The next turn begins when the pods of all other members are gone. Their requests under way end first, by the drain of
   the pods. If the requests of the next member are given up meanwhile, the choice is made again.
5. Without any waiting request the default member gets the free GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Deferral = Literal["", "MinimumTurn", "MemberStarting", "MemberFrozen", "PodsRemain"]
"""Why the next turn does not begin yet."""


@dataclass(frozen=True)
class Rules:
    """The times of a pool in seconds, and its default member."""

    min_turn_s: float = 60.0
    """The shortest time that a member serves before another one gets its turn."""
    start_s: float = 300.0
    """How long a member may start while requests wait for another one."""
    default: str = ""


@dataclass(frozen=True)
class Member:
    """One service of a pool that takes turns."""

    name: str
    runs: bool = False
    """Its Deployment asks for replicas."""
    occupies: bool = False
    """It has pods, or will have some. Pods that are being stopped count."""
    ready: bool = False
    """A pod is ready."""
    failure: str = ""
    """Why it cannot start, if a wait does not help."""
    frozen: bool = False
    """Herdsman can neither start nor stop it now: it is paused, its spec is not valid, a quota or policy forbids it."""
    starts_alone: bool = True
    """As the default member it starts without a request. False for one that sleeps when it is idle."""
    comes_last: bool = False
    """It did not serve in its last turn, so others come first for some time."""
    waiting_since: float | None = None
    """Since when requests wait for it."""


@dataclass(frozen=True)
class Turn:
    """The member that may have replicas."""

    member: str
    since: float
    serving_since: float | None = None


@dataclass(frozen=True)
class Decision:
    """The turn, and the member that is next."""

    turn: Turn | None = None
    pending: str = ""
    """The member that gets the next turn; empty while no other member is wanted."""
    deferred: Deferral = ""
    blocked_by: tuple[str, ...] = ()
    """For `PodsRemain` and `MemberFrozen`: the members that still occupy the GPUs."""
    look_again: float | None = None
    """When time alone changes the decision."""


def first_turn(members: Sequence[Member], *, resident: str, default: str, now: float) -> Turn | None:
    """Choose the member that has the turn in a pool whose turns are not known, as after a restart of the loop.

    A member that runs keeps running. If several run: `resident`, which the status names, else the default, else the
    first in the order of the spec.
    """
    running = {member.name: member for member in members if member.runs}
    found = next((running[name] for name in (resident, default, *running) if name in running), None)
    return None if found is None else Turn(found.name, now, now if found.ready else None)


def decide(members: Iterable[Member], turn: Turn | None, rules: Rules, *, now: float) -> Decision:
    """Decide the turn of a pool."""
    everyone = list(members)
    by_name = {member.name: member for member in everyone}
    holder = by_name.get(turn.member) if turn is not None else None
    if turn is not None and holder is not None:
        if turn.serving_since is None and holder.ready:
            turn = replace(turn, serving_since=now)
        kept = _keep(turn, holder, _longest_waiting(everyone, without=holder), rules, now)
        if kept is not None:
            return kept
    return _next_turn(everyone, rules, now, ended=holder)


def _keep(turn: Turn, holder: Member, rival: Member | None, rules: Rules, now: float) -> Decision | None:
    """Return the decision if the holder keeps its turn, else None."""
    if rival is None:
        return Decision(turn)
    if holder.frozen and holder.runs:
        return Decision(turn, rival.name, "MemberFrozen", (holder.name,))
    if holder.frozen or holder.failure:
        return None
    deferral: Deferral = "MemberStarting" if turn.serving_since is None else "MinimumTurn"
    ends = turn.since + rules.start_s if turn.serving_since is None else turn.serving_since + rules.min_turn_s
    if now >= ends:
        return None
    return Decision(turn, rival.name, deferral, look_again=ends)


def _next_turn(members: Sequence[Member], rules: Rules, now: float, *, ended: Member | None) -> Decision:
    """Choose the next turn. `ended` has just lost its turn to another member, also if its requests waited longer."""
    wanted = _longest_waiting(members, without=ended) or _longest_waiting(members, also_last=True)
    if wanted is None:
        wanted = next((m for m in members if m.name == rules.default and m.starts_alone and not m.frozen), None)
    if wanted is None:
        return Decision()
    others = [member for member in members if member.occupies and member.name != wanted.name]
    if not others:
        return Decision(Turn(wanted.name, now))
    frozen = tuple(member.name for member in others if member.frozen and member.runs)
    if frozen:
        return Decision(None, wanted.name, "MemberFrozen", frozen)
    return Decision(None, wanted.name, "PodsRemain", tuple(member.name for member in others))


def _longest_waiting(
    members: Sequence[Member], *, without: Member | None = None, also_last: bool = False
) -> Member | None:
    """Return the member that may start and whose requests have waited longest; the first of equal ones."""
    able = [m for m in members if not m.frozen and (also_last or not m.comes_last) and m is not without]
    found = [m for m in able if m.waiting_since is not None]
    return min(found, key=lambda member: member.waiting_since or 0.0, default=None)
