"""LoRAAdapter (`lora`) of inference.llmkube.dev/v1alpha1: an adapter that the replicas of an InferenceService load.

The fields of the spec, and `loadedPath` and `lastLoadedAt` of the status, are LLMKube's. The others are Herdsman's.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required, rule
from program.dialects.llmkube.schema.status import AcceptedVersion, Condition, PendingChangeStatus
from program.dialects.pods.schema import LocalObjectReference

ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class AdapterServiceReference(CrdModel):
    """The service whose replicas load the adapter."""

    kind: Literal["InferenceService", "LLMInferenceService", "Playground", "Service"] | None = optional(
        "Kind of the service: LLMKube's InferenceService (the default), KServe's LLMInferenceService, llmaz's "
        "Playground or Service."
    )
    name: str = required("Name of the service.", min_length=1)
    namespace: str | None = optional("Namespace of the service; only the adapter's own is accepted.")


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
                rule("has(self.path) != has(self.source)", "set either path or source", field=".path"),
                rule(
                    "has(self.source) || (!has(self.files) && !has(self.sha256) && !has(self.sourceSecretRef))",
                    "files, sha256 and sourceSecretRef belong to source; set source",
                    field=".source",
                ),
            ]
        }
    )
    files: list[str] = optional(
        "Files below the source for engines that read a directory. Default: adapter_model.safetensors and "
        "adapter_config.json.",
        [],
        max_length=100,
    )
    inference_service_ref: AdapterServiceReference = required("The service of the adapter. It cannot be changed.")
    name: str = required(
        "Name of the adapter for engine and clients. It cannot be changed.",
        min_length=1,
        max_length=63,
        pattern=ADAPTER_NAME,
    )
    path: str | None = optional(
        "Path of the adapter in the engine's container, or on the host. vLLM in pods also accepts a repository of "
        "Hugging Face.",
        min_length=1,
        max_length=4096,
    )
    sha256: str | None = optional(
        "SHA-256 that the file must have; of several files the first one.", pattern=r"^[a-fA-F0-9]{64}$"
    )
    source: str | None = optional(
        "Where Herdsman downloads the adapter from, instead of path: http(s)://, s3://bucket/key or "
        "hf://org/repo[@revision][/file].",
        pattern=r"^(https?|hf|s3)://.*",
        max_length=4096,
    )
    source_secret_ref: LocalObjectReference | None = optional(
        "Secret whose keys become environment variables of the downloader in pods: AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, HF_TOKEN, SOURCE_TOKEN."
    )


class AdapterPod(CrdModel):
    """The adapter in one replica."""

    adapter_id: int | None = optional("Number by which llama-server knows the adapter.", name="adapterID", ge=0)
    host: str | None = optional("The host of a process that is not a pod.")
    loaded: bool | None = optional("Whether the replica has loaded the adapter.")
    message: str | None = optional("Why it has not.")
    name: str | None = optional("Name of the pod, or of the HostProcess.")


class LoraAdapterStatus(CrdModel):
    """The observed state of an adapter."""

    accepted_version: AcceptedVersion | None = optional("The last version that policies and modes allowed.")
    pending_change: PendingChangeStatus | None = optional("The change that waits for approval.")
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
    runtime: str | None = optional("The engine of the replicas.")
    replicas: int | None = optional("Running replicas of the service.")
