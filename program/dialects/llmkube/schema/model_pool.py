"""ModelPool (`mpool`) of inference.llmkube.dev/v1alpha1: InferenceServices that use the same GPUs by turns.

The fields are LLMKube's; `minTurn`, `members[].message` and the condition Ready are Herdsman's.
"""

from __future__ import annotations

from typing import Literal

from program.dialects.crds.schema import CrdModel, Int64, optional, required
from program.dialects.llmkube.schema.status import AcceptedVersion, Condition, PendingChangeStatus

MemberPhase = Literal["Serving", "Starting", "Failing", "Stopping", "Waiting", "Asleep", "Stopped", "OnHost", "Refused"]
DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"


class MemberReference(CrdModel):
    name: str = required("Name of an InferenceService in the pool's namespace.", min_length=1)


class PoolMember(CrdModel):
    """One service of the pool."""

    inference_service_ref: MemberReference = required("The InferenceService.")


class ModelPoolSpec(CrdModel):
    """The services that share the GPUs, and the times of their turns."""

    default: str | None = optional(
        "Member that starts if no member runs. Without it, the first request starts a member.", min_length=1
    )
    gpu: int = optional("GPUs that the members share. A member that requests more is reported.", 1, ge=0)
    members: list[PoolMember] = required("The services that take turns.", min_length=1)
    min_turn: str = optional(
        "Shortest time that a member serves before another one gets its turn, such as 60s.", "60s", pattern=DURATION
    )
    node_selector: dict[str, str] = optional(
        "Labels of the nodes with the GPUs. A member whose nodeSelector lacks one of them is reported.", {}
    )
    swap_budget: str = optional(
        "How long a request may wait for the turn of its member before the answer is 503.", "300s", pattern=DURATION
    )
    swap_policy: Literal["sticky"] = optional("sticky: a member runs until another one has requests.", "sticky")


class MemberStatus(CrdModel):
    """The state of one member."""

    message: str | None = optional("Explanation for people.")
    name: str = required("Name of the InferenceService.")
    phase: Literal[
        "Serving", "Starting", "Failing", "Stopping", "Waiting", "Asleep", "Stopped", "OnHost", "Refused"
    ] = required("State of the member. Waiting: requests wait for its turn. Refused: it takes no turns.")
    resident: bool = optional("Whether it has the turn.", False)


class ModelPoolStatus(CrdModel):
    """The observed state of a pool."""

    accepted_version: AcceptedVersion | None = optional("The last version that policies and modes allowed.")
    pending_change: PendingChangeStatus | None = optional("The change that waits for approval.")
    conditions: list[Condition] = optional(
        "Ready, SlotAllocated, MembersValid, SwapDeferred and MetalSupported.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    members: list[MemberStatus] = optional("The members, in the order of the spec.", [])
    observed_generation: Int64 | None = optional("Generation of the spec that this status describes.")
    pending_member: str | None = optional("Member that starts when the GPUs are free.")
    phase: Literal["Pending", "Ready", "Swapping", "Degraded"] | None = optional("State of the pool.")
    resident_member: str | None = optional("Member that has the turn.")
