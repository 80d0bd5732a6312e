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
    criticality: Criticality | None = optional("How much it matters when there is too much to do.")


class Lora(service.Lora):
    adapters: list[LoraAdapter] = optional("The adapters.", [], max_length=64)  # type: ignore[assignment]


class ModelSpec(service.ModelSpec):
    criticality: Criticality | None = optional("How much it matters when there is too much to do.")
    lora: Lora | None = optional("Adapters of it.")


class ExtensionRef(CrdModel):
    """The Service that gateways ask which pod receives a request."""

    group: str = optional("API group.", "", max_length=NAME_LENGTH)
    kind: str = optional("Kind.", "Service", max_length=63)
    name: str = required("Name.", min_length=1, max_length=NAME_LENGTH)
    port_number: int | None = optional("Its port.", ge=1, le=65535)
    failure_mode: str = optional(
        "What happens while it does not answer: FailOpen or FailClose.", "FailClose", max_length=63
    )


class PoolSpec(CrdModel):
    """An InferencePool's spec in the format of inference.networking.x-k8s.io/v1alpha2."""

    selector: dict[str, str] | None = optional("Labels of the pods.")
    target_port_number: int | None = optional("Their port.", ge=1, le=65535)
    extension_ref: ExtensionRef | None = optional("Who picks one.")


class PoolChoice(router.PoolChoice):
    spec: PoolSpec | None = optional("The InferencePool to be made.")  # type: ignore[assignment]


class Scheduler(router.Scheduler):
    pool: PoolChoice | None = optional("The pods that it chooses among.")


class Router(router.Router):
    scheduler: Scheduler | None = optional("Each request goes to the pod that suits it best.")


class ServiceSpec(service.ServiceSpec):
    """A model and the pods that serve it."""

    model_config = with_rules(*service.SERVICE_RULES)
    model: ModelSpec | None = optional("The model.")
    prefill: workload.WorkloadSpec | None = optional("Pods of their own for the first step of each request.")
    router: Router | None = optional("The way to the pods.")
