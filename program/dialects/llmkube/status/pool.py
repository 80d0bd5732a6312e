"""The status of a ModelPool from the turns of its members. Pure. `automation.serving.turns.pools` calls it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kubeapi.json_types import Json
from program.dialects.status.conditions import Status, Type, set_condition

SLOT_ALLOCATED, MEMBERS_VALID, SWAP_DEFERRED = "SlotAllocated", "MembersValid", "SwapDeferred"
METAL_SUPPORTED = "MetalSupported"

_DEFERRED = {
    "MinimumTurn": "`{pending}` waits until `{blocked}` has had its minimum time",
    "MemberStarting": "`{pending}` waits while `{blocked}` starts",
    "MemberFrozen": "`{pending}` waits: Herdsman cannot stop `{blocked}` now; its mode and its status have the cause",
    "PodsRemain": "`{pending}` starts when the pods of `{blocked}` are gone; they finish their requests first",
}


@dataclass(frozen=True)
class MemberState:
    """One member: its phase, and why it takes no turns if it is refused."""

    name: str
    phase: str
    resident: bool = False
    message: str = ""
    reason: str = ""
    """For a refused member: why, as one CamelCase word."""


@dataclass(frozen=True)
class PoolState:
    """The turns of a pool."""

    members: tuple[MemberState, ...] = ()
    resident: str = ""
    pending: str = ""
    deferred: str = ""
    """Why the next turn does not begin yet, as in `automation.serving.turns.rules`."""
    blocked_by: tuple[str, ...] = ()
    problem: tuple[str, str] | None = None
    """Reason and message, if the pool makes no changes at all."""
    default_missing: str = ""
    """The name in spec.default, if no member has it."""


def pool_status(cr: Json, state: PoolState, *, now: datetime) -> Json:
    """Return the status of a pool; equal to its present one when nothing has changed."""
    current: Json = cr.get("status") or {}
    generation = cr["metadata"].get("generation", 0)
    conditions = list(current.get("conditions") or ())

    def put(kind: str, status: Status, reason: str, message: str) -> None:
        nonlocal conditions
        conditions = set_condition(
            conditions, type=kind, status=status, reason=reason, message=message, generation=generation, now=now
        )

    resident = next((each for each in state.members if each.name == state.resident), None)
    phase = _phase(state, resident)
    put(Type.READY, *_ready(state, resident))
    put(SLOT_ALLOCATED, *_slot(state))
    put(MEMBERS_VALID, *_members(state))
    put(SWAP_DEFERRED, *_deferred(state))
    put(METAL_SUPPORTED, *_metal(state))
    made: Json = {
        "observedGeneration": generation,
        "phase": phase,
        "members": [_member(each) for each in state.members],
        "conditions": conditions,
    }
    if state.resident:
        made["residentMember"] = state.resident
    if state.pending:
        made["pendingMember"] = state.pending
    return made


def _member(state: MemberState) -> Json:
    made: Json = {"name": state.name, "phase": state.phase, "resident": state.resident}
    return {**made, "message": state.message} if state.message else made


def _phase(state: PoolState, resident: MemberState | None) -> str:
    refused = any(each.phase == "Refused" for each in state.members)
    if state.problem is not None or refused or (resident is not None and resident.phase == "Failing"):
        return "Degraded"
    if state.pending or (resident is not None and resident.phase == "Starting"):
        return "Swapping"
    return "Ready" if any(each.phase != "Stopped" for each in state.members) else "Pending"


def _ready(state: PoolState, resident: MemberState | None) -> tuple[Status, str, str]:
    if state.problem is not None:
        return "False", *state.problem
    if all(each.phase in ("Refused", "Stopped") for each in state.members):
        return "False", "NoMembers", "No member can take turns; see the condition MembersValid"
    if resident is None:
        return "True", "WaitsForRequests", "No member has its turn; a request starts one"
    if resident.phase == "Failing":
        return "False", "MemberFailing", f"`{resident.name}` cannot start: {resident.message}"
    return "True", "TakingTurns", f"`{resident.name}` has its turn"


def _slot(state: PoolState) -> tuple[Status, str, str]:
    if state.resident:
        return "True", "Resident", f"`{state.resident}` has the GPUs"
    if state.pending:
        return "False", "Swapping", f"The GPUs become free for `{state.pending}`"
    return "False", "Free", "No member uses the GPUs"


def _members(state: PoolState) -> tuple[Status, str, str]:
    refused = [each for each in state.members if each.phase == "Refused"]
    if refused:
        missing = all(each.reason == "MemberNotFound" for each in refused)
        reason = "MissingMembers" if missing else refused[0].reason
        message = "; ".join(f"`{each.name}`: {each.message}" for each in refused)
        return "False", reason, f"These members take no turns: {message}"
    if state.default_missing:
        return "False", "DefaultNotAMember", f"spec.default names `{state.default_missing}`, which is no member"
    return "True", "AllResolved", "All members exist and can be members"


def _deferred(state: PoolState) -> tuple[Status, str, str]:
    if not state.deferred:
        return "False", "NotDeferred", "No member waits for another one to stop"
    blocked = "`, `".join(state.blocked_by) or state.resident
    return "True", state.deferred, _DEFERRED[state.deferred].format(pending=state.pending, blocked=blocked)


def _metal(state: PoolState) -> tuple[Status, str, str]:
    hosted = [each.name for each in state.members if each.phase == "OnHost"]
    if hosted:
        names = ", ".join(f"`{name}`" for name in hosted)
        return "True", "ModelGroup", f"On hosts these members take turns by the host's memory: {names}"
    return "True", "KubernetesGPU", "All members run in pods"
