"""The status of LLMInferenceServices and their configs. The fields are those of KServe's CRDs."""

from __future__ import annotations

from typing import Literal

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required


class Condition(CrdModel):
    last_transition_time: Time | None = optional("Time of the last change of `status`.")
    message: str | None = optional("Explanation for people.", max_length=32768)
    reason: str | None = optional("Cause as one CamelCase word, for programs.", max_length=1024)
    severity: str | None = optional(
        "Info for a part of another condition; empty for Ready and its direct parts.", max_length=63
    )
    status: Literal["True", "False", "Unknown"] = required("Whether the condition holds.")
    type: str = required("Which condition.", max_length=316)


class ObjectReference(CrdModel):
    group: str | None = optional("API group.")
    kind: str | None = optional("Kind.")
    name: str = required("Name.")
    namespace: str | None = optional("Namespace.")


class AddressedModel(CrdModel):
    name: str = required("Value of `model` in requests.")


class Address(CrdModel):
    """One address of the service."""

    name: str | None = optional("Kind of the address.")
    url: str | None = optional("URL for requests.")
    ca_certs: str | None = optional("CA certificates of the address, in PEM.", name="CACerts")
    audience: str | None = optional("Audience of the tokens that the address accepts.")
    origin: ObjectReference | None = optional("Gateway of the address.")
    models: list[AddressedModel] | None = optional("Models that the address serves.")


class RoutedGateway(ObjectReference):
    listeners: list[str] | None = optional("Listeners of the gateway; all when absent.")
    http_routes: list[ObjectReference] | None = optional("Routes that attach to the gateway.")


class BackendReference(ObjectReference):
    port: int | None = optional("Port.")


class GroupMember(CrdModel):
    name: str = required("The service.")
    weight: int | None = optional("Weight of the service.")
    stopped: bool | None = optional("True: the service is stopped and gets no requests.")
    backend_ref: BackendReference | None = optional("Service and port that the route sends the requests to.")


class GroupStatus(CrdModel):
    name: str = required("The group.")
    members: list[GroupMember] | None = optional("Services of the group.")


class SchedulerStatus(CrdModel):
    inference_pool: ObjectReference | None = optional("The pool.")
    service: ObjectReference | None = optional("The endpoint picker.")


class RouterStatus(CrdModel):
    gateways: list[RoutedGateway] | None = optional("Gateways of the service.")
    scheduler: SchedulerStatus | None = optional("The pool and the endpoint picker.")
    group: GroupStatus | None = optional("The group of services that share requests by weight.")


class WorkloadReference(CrdModel):
    api_group: str | None = optional("API group.")
    kind: str | None = optional("Kind.")
    name: str = required("Name.")
    ready_replicas: int | None = optional("Replicas that are ready.")


class WorkloadsStatus(CrdModel):
    primary: WorkloadReference | None = optional("The pods that serve.")
    prefill: WorkloadReference | None = optional("The pods for prefill.")
    service: WorkloadReference | None = optional("The Service of the pods.")
    scheduler: WorkloadReference | None = optional("The endpoint picker.")


class AppliedConfig(CrdModel):
    name: str = required("The config.")
    namespace: str | None = optional("Namespace of the object.")
    source: str | None = optional("Preset or UserRef.")


class ServiceStatus(CrdModel):
    """The observed state of a service."""

    addresses: list[Address] | None = optional("All addresses of the service.")
    address: Address | None = optional("One address of the service.")
    annotations: dict[str, str] | None = optional("Names of the presets that the service uses, by their role.")
    applied_configs: list[AppliedConfig] | None = optional("Configs whose fields the spec overrides, in order.")
    conditions: list[Condition] | None = optional(
        "Ready and the conditions that Ready is computed from.",
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    observed_generation: Int64 | None = optional("Generation of the spec that this status describes.")
    router: RouterStatus | None = optional("The way to the pods.")
    url: str | None = optional("URL that clients outside the cluster use.")
    workloads: WorkloadsStatus | None = optional("The pods.")


class ReferencedBy(CrdModel):
    name: str = required("The service.")
    namespace: str | None = optional("Namespace of the object.")


class ConfigStatus(CrdModel):
    """The observed state of a config."""

    annotations: dict[str, str] | None = optional("Annotations.")
    conditions: list[Condition] | None = optional(
        "Ready, and InUse: whether a service uses the config.",
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    observed_generation: Int64 | None = optional("Generation of the spec that this status describes.")
    referenced_by: list[ReferencedBy] | None = optional("Services that use the config.")
