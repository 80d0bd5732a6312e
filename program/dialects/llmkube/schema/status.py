"""The status of an InferenceService: the fields of LLMKube's CRDs, with Herdsman's additions."""

from __future__ import annotations

from typing import Literal

from program.dialects.crds.schema import CrdModel, Time, optional, required

Phase = Literal["Pending", "Creating", "Progressing", "Ready", "WaitingForGPU", "Stopped", "Suspended", "Failed"]


class Condition(CrdModel):
    last_transition_time: Time = required("When `status` last changed.")
    message: str = required("What happened, for people.", max_length=32768)
    observed_generation: int | None = optional("Generation of the object that was judged.", ge=0, format="int64")
    reason: str = required(
        "What happened, for programs.",
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
    )
    status: Literal["True", "False", "Unknown"] = required("Whether the condition holds.")
    type: str = required(
        "Which condition.",
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    )


class Acceleration(CrdModel):
    """The device that computes, from the engine's log."""

    device: str | None = optional("CUDA, ROCm, Vulkan, Metal, OpenCL or CPU.")
    layers_offloaded: int | None = optional("Layers of the model on that device.")
    layers_total: int | None = optional("Layers of the model.")


class GatewayStatus(CrdModel):
    """The route from outside the cluster."""

    auth_enabled: bool | None = optional("Whether requests need a key.")
    endpoint: str | None = optional("URL that clients outside the cluster use.")
    model_name: str | None = optional("Name by which requests choose this service.")
    route_ready: bool | None = optional("Whether the gateway took the route.")


class MemoryStatus(CrdModel):
    """The estimated memory of one replica's engine, as quantities."""

    asked: str | None = optional("Memory, or GPU memory, that the service asks for.")
    available: str | None = optional("Most memory that any node could give.")
    compute: str | None = optional("Buffers of the computation.")
    kv_cache: str | None = optional("KV cache.")
    total: str | None = optional("All together.")
    weights: str | None = optional("Weights.")


class PendingChangeStatus(CrdModel):
    """A change that mode Preview or Paused holds back."""

    digest: str | None = optional("Names exactly this change; `herdsman approve` puts it into herdsman.dev/approved.")
    summary: str | None = optional("How many objects, what restarts, what is downloaded.")
    changes: list[str] | None = optional("What would happen to each object; long lists are cut.")


class ServiceStatus(CrdModel):
    """What the service is."""

    acceleration: Acceleration | None = optional("What computes: a GPU by its kind, or the CPU.")

    conditions: list[Condition] = optional(
        "Ready, Reconciling and Stalled; Available, Progressing, Degraded and more as the peer has them.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    desired_replicas: int | None = optional("Replicas wanted now; an autoscaler's choice counts.")
    effective_priority: int | None = optional("Value of the priority that applies.")
    endpoint: str | None = optional("URL that serves requests.")
    gateway: GatewayStatus | None = optional("How clients outside the cluster reach the service.")
    last_updated: Time | None = optional("When this status last changed.")
    memory: MemoryStatus | None = optional("Estimated memory of one replica, next to what was asked for.")
    mode: Literal["chat", "embedding", "rerank"] | None = optional("What the endpoint answers.")
    model_ready: bool | None = optional("Whether the Model is Ready.")
    observed_generation: int | None = optional("Generation of the spec that this status judges.", format="int64")
    pending_change: PendingChangeStatus | None = optional("What waits for approval.")
    phase: Phase | None = optional("Where the service is in its life.")
    queue_length: int | None = optional("Services that wait for the same resource.")
    queue_position: int | None = optional("Place among the services that wait for a GPU; 0 when not waiting.")
    ready_replicas: int | None = optional("Replicas that serve.")
    replicas: int | None = optional("Replicas that exist.")
    scheduling_message: str | None = optional("Why pods are not scheduled, for people.")
    scheduling_status: str | None = optional("Why pods are not scheduled, for programs.")
    selector: str | None = optional("Label selector of the pods, for the scale subresource.")
    served_template_hash: str | None = optional("Hash of the last pod template that served.")
    unproved_replicas: int | None = optional("Ready pods that have not answered a completion yet.")
    waiting_for: str | None = optional("The resource that is short, as `<resource>: <count>`.")
