"""The status of an InferenceService: the fields of LLMKube's CRDs, with Herdsman's additions."""

from __future__ import annotations

from typing import Any, Literal

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required

Phase = Literal["Pending", "Creating", "Progressing", "Ready", "WaitingForGPU", "Stopped", "Suspended", "Failed"]


class Condition(CrdModel):
    last_transition_time: Time = required("Time of the last change of `status`.")
    message: str = required("Explanation for people.", max_length=32768)
    observed_generation: int | None = optional(
        "Generation of the object that this condition describes.", ge=0, format="int64"
    )
    reason: str = required(
        "Cause as one CamelCase word, for programs.",
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
    model_name: str | None = optional("Value of `model` in requests for this service.")
    route_ready: bool | None = optional("Whether the gateway accepted the route.")


class MemoryStatus(CrdModel):
    """The estimated memory of one replica's engine, as quantities."""

    asked: str | None = optional("Memory or GPU memory that the service requests.")
    available: str | None = optional("Largest memory that a node could give a pod.")
    compute: str | None = optional("Buffers of the computation.")
    kv_cache: str | None = optional("KV cache.")
    total: str | None = optional("All together.")
    weights: str | None = optional("Weights.")


class PendingChangeStatus(CrdModel):
    """A change that mode Preview or Paused holds back."""

    digest: str | None = optional("Digest of this change; `herdsman approve` writes it into herdsman.dev/approved.")
    summary: str | None = optional("Number of objects, restarts and downloads.")
    changes: list[str] | None = optional("Change of each object; long lists are truncated.")


class AcceptedVersion(CrdModel):
    """The version that is in use while the spec is not accepted."""

    generation: Int64 | None = optional("Generation of this version.")
    spec: dict[str, Any] = optional("Its spec.", {})


class ServiceStatus(CrdModel):
    """The observed state of a service."""

    acceleration: Acceleration | None = optional("Kind of GPU, or CPU.")

    conditions: list[Condition] = optional(
        "Ready, Reconciling and Stalled, and LLMKube's conditions, such as Available, Progressing and Degraded.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    desired_replicas: int | None = optional("Wanted number of replicas, including the choice of an autoscaler.")
    effective_priority: int | None = optional("Value of the effective priority.")
    endpoint: str | None = optional("URL that serves requests.")
    gateway: GatewayStatus | None = optional("Access from outside the cluster.")
    last_updated: Time | None = optional("Time of the last change of this status.")
    memory: MemoryStatus | None = optional("Estimated memory of one replica, and the requested memory.")
    mode: Literal["chat", "embedding", "rerank"] | None = optional("Use of the model: chat, embedding or rerank.")
    model_ready: bool | None = optional("Whether the Model is Ready.")
    observed_generation: int | None = optional("Generation of the spec that this status describes.", format="int64")
    pending_change: PendingChangeStatus | None = optional("The change that waits for approval.")
    phase: Phase | None = optional("Phase of the service.")
    queue_length: int | None = optional("Services that wait for the same resource.")
    queue_position: int | None = optional(
        "Position among the services that wait for a GPU; 0 if the service does not wait."
    )
    ready_replicas: int | None = optional("Replicas that serve requests.")
    replicas: int | None = optional("Existing replicas.")
    scheduling_message: str | None = optional("Why pods are not scheduled, for people.")
    scheduling_status: str | None = optional("Why pods are not scheduled, for programs.")
    selector: str | None = optional("Label selector of the pods, for the scale subresource.")
    served_template_hash: str | None = optional("Hash of the last pod template that served.")
    unproved_replicas: int | None = optional("Ready pods that have not answered a completion yet.")
    waiting_for: str | None = optional("The resource that is short, as `<resource>: <count>`.")
