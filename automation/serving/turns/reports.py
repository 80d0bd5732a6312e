"""The state of a pool for its status, and the Events about its turns. Called by `pools`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from automation.serving.turns.members import Place
from automation.serving.turns.rules import Decision, Member
from automation.status.event_recorder import EventType
from kubeapi.json_types import Json
from program.desired.pool import Pool
from program.dialects.llmkube.status.pool import MemberState, PoolState

Entry = tuple[EventType, str, str]
"""Type, reason and message of an Event."""


def pool_state(
    pool: Pool, members: Sequence[Place], taking: Sequence[Member], decision: Decision, problem: tuple[str, str] | None
) -> PoolState:
    """Join places, members and decision into the state of a pool."""
    holder = decision.turn.member if decision.turn is not None else ""
    by_name = {member.name: member for member in taking}
    return PoolState(
        members=tuple(_member_state(place, by_name.get(place.name), holder) for place in members),
        resident=holder,
        pending=decision.pending,
        deferred=decision.deferred,
        blocked_by=decision.blocked_by,
        problem=problem,
        default_missing=pool.default if pool.default not in pool.members else "",
    )


def _member_state(place: Place, member: Member | None, holder: str) -> MemberState:
    if member is None:
        phase = {"host": "OnHost", "stopped": "Stopped"}.get(place.role, "Refused")
        return MemberState(place.name, phase, message=place.message, reason=place.reason)
    if member.frozen:
        place = replace(
            place, message="Herdsman neither starts nor stops it now; its mode and its status have the cause"
        )
    if member.name == holder:
        phase = "Serving" if member.ready else "Failing" if member.failure else "Starting"
        return MemberState(place.name, phase, resident=True, message=member.failure or place.message)
    if member.occupies:
        return MemberState(place.name, "Stopping", message=place.message)
    return MemberState(place.name, "Asleep" if member.waiting_since is None else "Waiting", message=place.message)


def pool_events(before: Json, state: PoolState) -> Iterator[Entry]:
    """Yield what happened to a pool since the status `before`."""
    resident, pending = before.get("residentMember", ""), before.get("pendingMember", "")
    if state.resident and state.resident != resident:
        yield "Normal", "TurnStarted", f"`{state.resident}` has its turn"
    if resident and not state.resident:
        waits = f", because requests wait for `{state.pending}`" if state.pending else ""
        yield "Normal", "TurnEnded", f"The turn of `{resident}` ended{waits}"
    if state.pending and state.pending != pending and state.resident:
        yield "Normal", "TurnRequested", f"Requests wait for `{state.pending}` while `{state.resident}` has its turn"
    refused = {each.get("name"): each.get("message") for each in before.get("members") or () if _is_refused(each)}
    for member in state.members:
        if member.phase == "Refused" and refused.get(member.name) != member.message:
            yield "Warning", "MemberRefused", f"`{member.name}` takes no turns: {member.message}"


def _is_refused(member: Json) -> bool:
    return bool(member.get("phase") == "Refused")
