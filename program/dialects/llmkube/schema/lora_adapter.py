"""LoRAAdapter (`lora`) of inference.llmkube.dev/v1alpha1: an adapter that the replicas of an InferenceService load.

The fields of the spec, and `loadedPath` and `lastLoadedAt` of the status, are LLMKube's. The others are Herdsman's.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required, rule
from program.dialects.llmkube.schema.status import Condition

ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class AdapterServiceReference(CrdModel):
    """The InferenceService whose replicas load the adapter."""

    name: str = required("Name of the InferenceService.", min_length=1)
    namespace: str | None = optional("Namespace of the InferenceService; only the adapter's own is accepted.")


class LoraAdapterSpec(CrdModel):
    """An adapter, and the service that loads it."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "self.inferenceServiceRef == oldSelf.inferenceServiceRef",
                    "inferenceServiceRef is immutable; create another LoRAAdapter for another service",
                    field=".inferenceServiceRef",
                ),
                rule(
                    "self.name == oldSelf.name",
                    "name is immutable; create another LoRAAdapter with the new name",
                    field=".name",
                ),
            ]
        }
    )
    inference_service_ref: AdapterServiceReference = required(
        "The InferenceService of the adapter. It cannot be changed."
    )
    name: str = required(
        "Name of the adapter for engine and clients. It cannot be changed.",
        min_length=1,
        max_length=63,
        pattern=ADAPTER_NAME,
    )
    path: str = required(
        "Path of the adapter in the engine's container. vLLM also accepts a repository of Hugging Face.",
        min_length=1,
        max_length=4096,
    )


class AdapterPod(CrdModel):
    """The adapter in one replica."""

    adapter_id: int | None = optional("Number by which llama-server knows the adapter.", name="adapterID", ge=0)
    loaded: bool | None = optional("Whether the replica has loaded the adapter.")
    message: str | None = optional("Why it has not.")
    name: str | None = optional("Name of the pod.")


class LoraAdapterStatus(CrdModel):
    """The observed state of an adapter."""

    conditions: list[Condition] = optional(
        "Ready, Reconciling, Stalled and Loaded.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    last_loaded_at: Time | None = optional("When all running replicas had last loaded the adapter.")
    loaded_path: str | None = optional("Path of the adapter that is loaded.")
    loaded_replicas: int | None = optional("Running replicas that have loaded the adapter.")
    observed_generation: Int64 | None = optional("Generation of the spec that this status describes.")
    phase: Literal["Pending", "Loading", "Loaded", "Degraded", "Failed", "Unloading"] | None = optional(
        "State of the adapter."
    )
    pods: list[AdapterPod] = optional("The running replicas.", [])
    replicas: int | None = optional("Running replicas of the service.")
