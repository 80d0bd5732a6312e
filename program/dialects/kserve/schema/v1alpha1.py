"""The differences of serving.kserve.io/v1alpha1: criticality, and pools of their alpha version.

It lacks kvCacheOffloading, model.confidential, a pool's further ports, and parts of the status; `conversion` keeps them
in an annotation.
"""

from __future__ import annotations

from typing import Literal

from program.dialects.crds.schema import CrdModel, optional, required
from program.dialects.kserve.schema import router, service, workload
from program.dialects.kserve.schema.workload import NAME_LENGTH, with_rules

Criticality = Literal["Critical", "Standard", "Sheddable"]


class LoraAdapter(service.LoraAdapter):
    criticality: Criticality | None = optional("Importance of requests under overload.")


class Lora(service.Lora):
    adapters: list[LoraAdapter] = optional("The adapters.", [], max_length=64)  # type: ignore[assignment]


class ModelSpec(service.ModelSpec):
    criticality: Criticality | None = optional("Importance of requests under overload.")
    lora: Lora | None = optional("LoRA adapters of the model.")


class ExtensionRef(CrdModel):
    """The Service that gateways ask which pod receives a request."""

    group: str = optional("API group.", "", max_length=NAME_LENGTH)
    kind: str = optional("Kind.", "Service", max_length=63)
    name: str = required("Name.", min_length=1, max_length=NAME_LENGTH)
    port_number: int | None = optional("Port of the endpoint picker.", ge=1, le=65535)
    failure_mode: str = optional(
        "Handling of requests while the endpoint picker does not answer: FailOpen or FailClose.",
        "FailClose",
        max_length=63,
    )


class PoolSpec(CrdModel):
    """An InferencePool's spec in the format of inference.networking.x-k8s.io/v1alpha2."""

    selector: dict[str, str] | None = optional("Labels of the pods.")
    target_port_number: int | None = optional("Port of the pods.", ge=1, le=65535)
    extension_ref: ExtensionRef | None = optional("Endpoint picker that chooses a pod for each request.")


class PoolChoice(router.PoolChoice):
    spec: PoolSpec | None = optional("Spec of the InferencePool that Herdsman creates.")  # type: ignore[assignment]


class Scheduler(router.Scheduler):
    pool: PoolChoice | None = optional("The InferencePool with the pods that the endpoint picker chooses from.")


class Router(router.Router):
    scheduler: Scheduler | None = optional("The endpoint picker, which chooses the best pod for each request.")


class ServiceSpec(service.ServiceSpec):
    """A model and the pods that serve it."""

    model_config = with_rules(*service.SERVICE_RULES)
    model: ModelSpec | None = optional("The model.")
    prefill: workload.WorkloadSpec | None = optional("Separate pods for prefill, the first step of each request.")
    router: Router | None = optional("Router: how requests reach the pods.")
