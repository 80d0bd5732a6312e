"""Decides whether a process may start now: its need against the budget less what runs. Pure; fails closed.

Called by `agent.server.memory.ledger`, under its lock, so that two starts at once never take the same room. What runs
counts with its estimate or with what it was measured to have, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from agent.contract import ProcessReason
from agent.server.memory.need import Need, total
from agent.server.memory.wording import amount

_NAMED = 4
"""Holders of memory that a message names."""


@dataclass(frozen=True)
class Bound:
    """What a process and all before it may take together."""

    room: Need
    source: str
    """Who says so, for people."""


@dataclass(frozen=True)
class AdmissionRequest:
    """A process that wants to start."""

    key: str
    need: Need | None
    """None: nobody can tell."""
    bound: Bound
    priority: int = 0
    check: Literal["enforce", "warn", "off"] = "enforce"
    since: float = 0.0
    """Since when it asks."""
    unknown: str = ""
    """Why nobody can tell what it needs."""


@dataclass(frozen=True)
class Refusal:
    """Why a process may not start now."""

    reason: Literal[ProcessReason.INSUFFICIENT_MEMORY, ProcessReason.MEMORY_UNKNOWN]
    message: str
    hopeless: bool = False
    """It would not fit with nothing else on the host."""


def decide(
    request: AdmissionRequest, taken: Mapping[str, Need], waiting: Iterable[AdmissionRequest] = ()
) -> Refusal | None:
    """Give None when the process may start, whatever its own `check` makes of the answer.

    `taken` is what each process has that runs or was admitted, `waiting` those that were refused before and still ask.
    Room in which a more important one of them fits is kept for it; one that does not fit holds up nobody.
    """
    if request.need is None:
        return Refusal(
            ProcessReason.MEMORY_UNKNOWN,
            f"Nobody can tell how much memory the process will take: {request.unknown or 'it names no model file'}. "
            "Say it (spec.resources.memory), or take the risk with herdsman.dev/memory-check: off",
        )
    others = {key: need for key, need in taken.items() if key != request.key}
    room = request.bound.room
    if not request.need.within(room):
        return Refusal(
            ProcessReason.INSUFFICIENT_MEMORY,
            f"Needs {request.need} and may never have more than {room} here ({request.bound.source}); "
            "choose a smaller context, cache type or quantization, another host, or a larger budget",
            hopeless=True,
        )
    free = room - total(others.values())
    if not request.need.within(free):
        return Refusal(
            ProcessReason.INSUFFICIENT_MEMORY,
            f"Needs {request.need}; of {room} ({request.bound.source}) {free} are free{_holders(others)}",
        )
    for first in ahead_of(request, waiting):
        if first.need is None or not first.need.within(free):
            continue
        free -= first.need
        if not request.need.within(free):
            return Refusal(
                ProcessReason.INSUFFICIENT_MEMORY,
                f"Needs {request.need}; the room that is free is kept for {first.key}, which asked for {first.need} "
                f"{'with a higher priority' if first.priority > request.priority else 'before'}",
            )
    return None


def ahead_of(request: AdmissionRequest, waiting: Iterable[AdmissionRequest]) -> list[AdmissionRequest]:
    """List those that wait and come first: more important, or as important and longer waiting."""
    first = [each for each in waiting if each.key != request.key and _rank(each) < _rank(request)]
    return sorted(first, key=_rank)


def in_turn(waiting: Iterable[AdmissionRequest]) -> list[AdmissionRequest]:
    """Sort those that wait by whose turn it is."""
    return sorted(waiting, key=_rank)


def _rank(request: AdmissionRequest) -> tuple[int, float, str]:
    return -request.priority, request.since, request.key


def _holders(taken: Mapping[str, Need]) -> str:
    by_size = sorted(taken.items(), key=lambda item: (-item[1].total_bytes, item[0]))
    if not by_size:
        return ""
    named = [f"{key} has {need}" for key, need in by_size[:_NAMED]]
    rest = by_size[_NAMED:]
    if rest:
        named.append(f"{len(rest)} more have {amount(sum(need.total_bytes for _, need in rest))}")
    return ": " + ", ".join(named)
