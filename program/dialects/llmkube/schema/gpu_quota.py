"""GPUQuota (`gq`) of inference.llmkube.dev/v1alpha1: limits for the services of some namespaces together.

The fields are LLMKube's; `memory`, `usedMemory`, `conditions` and the parts of `lastDenial` are Herdsman's.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, rule
from program.dialects.llmkube.schema.status import Condition
from program.dialects.pods.schema import QUANTITY, LabelSelector


class GpuQuotaSpec(CrdModel):
    """Which namespaces share the quota, and how much it is. A bound that is absent bounds nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("has(self.selector) != has(self.namespaceRef)", "set selector or namespaceRef, and not both")
            ]
        }
    )
    cost_budget_ref: str | None = optional("Name of a budget; stored, without effect.")
    gpu_count: int | None = optional("Maximum number of GPUs of all services together; 0 allows none.", ge=0)
    memory: str | None = optional("Maximum memory request of all pods together, a quantity.", pattern=QUANTITY)
    min_priority: Literal["critical", "high", "normal", "low", "batch"] | None = optional(
        "Minimum priority. Services of lower priority get no GPUs and no memory."
    )
    namespace_ref: str | None = optional("The one namespace that the quota is for.", min_length=1)
    selector: LabelSelector | None = optional("Labels of the namespaces that share the quota.")
    vram_bytes: Int64 | None = optional("Maximum GPU memory in bytes; 0 sets no limit.", name="vramBytes", ge=0)


class Denial(CrdModel):
    message: str | None = optional("The requested and the remaining amount.")
    service: str | None = optional("The service, as `namespace/name`.")
    time: Time | None = optional("When.")


class GpuQuotaStatus(CrdModel):
    """The observed use of a quota."""

    admission_denials: Int64 | None = optional("Number of refusals.")
    conditions: list[Condition] = optional(
        "Ready, with the reason if it is False.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    last_denial: Denial | None = optional("The last refusal.")
    observed_generation: Int64 | None = optional("Generation of the spec that this status describes.")
    used_gpu_count: int | None = optional("GPUs in use.", name="usedGPUCount")
    used_memory: str | None = optional("Memory requests of the pods, a quantity.")
    used_vram_bytes: Int64 | None = optional("GPU memory in use, in bytes.", name="usedVRAMBytes")
