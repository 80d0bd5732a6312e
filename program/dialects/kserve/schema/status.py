"""The status of LLMInferenceServices and their configs. The fields are those of KServe's CRDs."""

from __future__ import annotations

from typing import Literal

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required


class Condition(CrdModel):
    last_transition_time: Time | None = optional("When `status` last changed.")
    message: str | None = optional("What happened, for people.", max_length=32768)
    reason: str | None = optional("What happened, for programs.", max_length=1024)
    severity: str | None = optional(
        "Info for a part of another condition; empty where it counts itself.", max_length=63
    )
    status: Literal["True", "False", "Unknown"] = required("Whether the condition holds.")
    type: str = required("Which condition.", max_length=316)


class ObjectReference(CrdModel):
    group: str | None = optional("API group.")
    kind: str | None = optional("Kind.")
    name: str = required("Name.")
    namespace: str | None = optional("Namespace.")


class AddressedModel(CrdModel):
    name: str = required("The `model` of requests.")


class Address(CrdModel):
    """One way to the service."""

    name: str | None = optional("What kind of way it is.")
    url: str | None = optional("Where requests go.")
    ca_certs: str | None = optional("Certificates that it is trusted by, PEM.", name="CACerts")
    audience: str | None = optional("Audience of the tokens that it takes.")
    origin: ObjectReference | None = optional("The gateway that it leads through.")
    models: list[AddressedModel] | None = optional("What can be asked for there.")


class RoutedGateway(ObjectReference):
    listeners: list[str] | None = optional("Listeners that are used; all when absent.")
    http_routes: list[ObjectReference] | None = optional("Routes that attach to it.")


class BackendReference(ObjectReference):
    port: int | None = optional("Port.")


class GroupMember(CrdModel):
    name: str = required("The service.")
    weight: int | None = optional("Its share.")
    stopped: bool | None = optional("It takes no requests.")
    backend_ref: BackendReference | None = optional("Where its requests go.")


class GroupStatus(CrdModel):
    name: str = required("The group.")
    members: list[GroupMember] | None = optional("Its members.")


class SchedulerStatus(CrdModel):
    inference_pool: ObjectReference | None = optional("The pool.")
    service: ObjectReference | None = optional("Who picks a pod.")


class RouterStatus(CrdModel):
    gateways: list[RoutedGateway] | None = optional("Gateways that lead here.")
    scheduler: SchedulerStatus | None = optional("Who chooses a pod.")
    group: GroupStatus | None = optional("Services that share requests.")


class WorkloadReference(CrdModel):
    api_group: str | None = optional("API group.")
    kind: str | None = optional("Kind.")
    name: str = required("Name.")
    ready_replicas: int | None = optional("Replicas that are ready.")


class WorkloadsStatus(CrdModel):
    primary: WorkloadReference | None = optional("The pods that serve.")
    prefill: WorkloadReference | None = optional("The pods of the first step.")
    service: WorkloadReference | None = optional("The Service before them.")
    scheduler: WorkloadReference | None = optional("The endpoint picker.")


class AppliedConfig(CrdModel):
    name: str = required("The config.")
    namespace: str | None = optional("Where it is.")
    source: str | None = optional("Preset or UserRef.")


class ServiceStatus(CrdModel):
    """What the service is."""

    addresses: list[Address] | None = optional("All ways to the service.")
    address: Address | None = optional("One way to the service.")
    annotations: dict[str, str] | None = optional("The presets that the service started with, by what they are for.")
    applied_configs: list[AppliedConfig] | None = optional("Configs that the spec was laid over, in order.")
    conditions: list[Condition] | None = optional(
        "Ready and what it is made of.", x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["type"]
    )
    observed_generation: Int64 | None = optional("Generation of the spec that this status judges.")
    router: RouterStatus | None = optional("The way to the pods.")
    url: str | None = optional("URL that clients outside the cluster use.")
    workloads: WorkloadsStatus | None = optional("The pods.")


class ReferencedBy(CrdModel):
    name: str = required("The service.")
    namespace: str | None = optional("Where it is.")


class ConfigStatus(CrdModel):
    """Who uses the config."""

    annotations: dict[str, str] | None = optional("Annotations.")
    conditions: list[Condition] | None = optional(
        "Ready, and whether it is in use.", x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["type"]
    )
    observed_generation: Int64 | None = optional("Generation of the spec that this status judges.")
    referenced_by: list[ReferencedBy] | None = optional("Services that it is laid under.")
