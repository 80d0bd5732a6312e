"""Model (`mdl`) of inference.llmkube.dev/v1alpha1. The fields are the same as in LLMKube's CRDs."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required
from program.dialects.llmkube.schema.service import Condition
from program.dialects.pods.schema import LocalObjectReference, Toleration

Strategy = Literal["layer", "tensor", "row", "pipeline", "none"]
SOURCE = r"^(https?|file|pvc|hf|s3)://.*|^/[^\s]+$|^[a-zA-Z0-9][\w\-\.\/]+$"

_RESOURCE = r"^[a-z0-9.\-]+/[a-z0-9._\-]+$"


class ShardingSpec(CrdModel):
    layer_split: list[str] = optional("Layers of each GPU as start-end, one range per GPU.", [])
    strategy: Strategy = optional("How the model is split over GPUs.", "layer")


class ResourceClaim(CrdModel):
    """A claim of core/v1 PodResourceClaim (dynamic resource allocation)."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
                    "message": "exactly one of resourceClaimName and resourceClaimTemplateName must be set",
                }
            ]
        }
    )
    name: str = required("Name of the claim within the pod.", min_length=1, max_length=63)
    resource_claim_name: str | None = optional("ResourceClaim in the namespace that all replicas share.")
    resource_claim_template_name: str | None = optional("ResourceClaimTemplate that makes a claim for each replica.")


class GpuSpec(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.resourceClaims) || size(self.resourceClaims) == 0 || !has(self.resourceName)",
                    "message": "resourceClaims and resourceName exclude each other",
                }
            ]
        }
    )
    count: int | None = optional("GPUs per replica.", ge=0, le=8)
    enabled: bool | None = optional("Whether to use GPUs; true without a count means one.")
    layers: int | None = optional("Layers kept on the GPU: -1 for all, 0 for none.", ge=-1)
    memory: str | None = optional("GPU memory that the model expects, a quantity.")
    resource_claims: list[ResourceClaim] = optional(
        "Resource claims (dynamic resource allocation) instead of an extended resource.", [], max_length=16
    )
    resource_name: str | None = optional(
        "Extended resource to ask for instead of the vendor's own: a MIG profile, a shared or custom one.",
        pattern=_RESOURCE,
    )
    runtime: Literal["vulkan", "rocm"] | None = optional("Backend of llama.cpp on AMD GPUs.")
    sharding: ShardingSpec | None = optional("How the model is split over several GPUs.")
    toleration_key: str | None = optional(
        "Taint of GPU nodes that pods tolerate; the resource's name when absent.", pattern=_RESOURCE
    )
    vendor: Literal["nvidia", "amd", "intel"] = optional("Whose GPUs.", "nvidia")


class HardwareSpec(CrdModel):
    accelerator: Literal["cpu", "metal", "cuda", "rocm", "intel", "vulkan"] = optional(
        "What computes; metal places services on a host.", "cpu"
    )
    gpu: GpuSpec | None = optional("GPUs of one replica.")
    memory_budget: str | None = optional("Most memory of the process on a host, a quantity; wins over memoryFraction.")
    memory_fraction: float | None = optional("Share of a host's memory that the process may use.", ge=0, le=1)


class ModelResourcesSpec(CrdModel):
    cpu: str | None = optional("CPU request; services take spec.resources of their own.")
    memory: str | None = optional("Memory request; services take spec.resources of their own.")


class ModelSpec(CrdModel):
    """Where a model's weights come from and what they need."""

    files: list[str] = optional(
        "Files below the source, relative, each by its name; the first is the one that the engine opens.", []
    )
    format: Literal["gguf", "mlx", "safetensors", "pytorch", "custom"] = optional("Format of the weights.", "gguf")
    hardware: HardwareSpec | None = optional("What the model runs on.")
    mmproj: str | None = optional("Multimodal projector below the source, fetched with files.")
    prefetch: bool | None = optional("Fetch the weights into the namespace's cache before a service asks for them.")
    prefetch_tolerations: list[Toleration] = optional("Tolerations of the prefetch Job's pod alone.", [])
    quantization: str | None = optional("A label such as Q4_K_M; not checked.")
    refresh_policy: Literal["IfNotPresent", "OnChange"] = optional(
        "OnChange: a pod that starts fetches the file again when the source has changed.", "IfNotPresent"
    )
    resources: ModelResourcesSpec | None = optional("Kept for compatibility; see InferenceService spec.resources.")
    sha256: str | None = optional("SHA-256 that the file must have.", pattern=r"^[a-fA-F0-9]{64}$")
    source: str = required(
        "http(s)://, file://, pvc://claim/path, s3://bucket/key or hf://org/repo[@revision][/file] address, an "
        "absolute path, or `org/repo` on Hugging Face.",
        pattern=SOURCE,
    )
    source_secret_ref: LocalObjectReference | None = optional(
        "Secret beside the Model whose keys the downloader gets as environment: AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, HF_TOKEN, SOURCE_TOKEN."
    )


class GgufStatus(CrdModel):
    architecture: str | None = optional("general.architecture")
    context_length: int | None = optional("Context that the model was trained with.", format="int64")
    embedding_size: int | None = optional("Width of the embeddings.", format="int64")
    expert_bytes: int | None = optional("Tensors of mixture-of-experts layers in bytes.", format="int64")
    expert_count: int | None = optional("Experts of a mixture-of-experts layer.", format="int64")
    feed_forward_length: int | None = optional(
        "Width of the feed-forward layers, or of all experts that a token uses.", format="int64"
    )
    file_version: int | None = optional("Version of the GGUF format.", format="int64")
    head_count: int | None = optional("Attention heads.", format="int64")
    head_count_kv: int | None = optional("Key and value heads.", name="headCountKV", format="int64")
    head_counts_kv: list[Int64] = optional(
        "Key and value heads layer by layer, where layers differ.", [], name="headCountsKV"
    )
    key_length: int | None = optional("Numbers in the key of one head.", format="int64")
    layer_count: int | None = optional("Blocks.", format="int64")
    license: str | None = optional("License, normalised.")
    model_name: str | None = optional("general.name")
    quantization: str | None = optional("Quantization that the header names.")
    sliding_window: int | None = optional("Tokens that sliding-window attention looks back.", format="int64")
    sliding_window_layers: int | None = optional("Layers that look back only so far.", format="int64")
    tensor_count: int | None = optional("Tensors in the file.", format="int64")
    value_length: int | None = optional("Numbers in the value of one head.", format="int64")
    vocabulary_size: int | None = optional("Tokens of the vocabulary.", format="int64")
    weights_bytes: int | None = optional("All tensors together in bytes.", format="int64")


class DownloadStatus(CrdModel):
    """A running download."""

    bytes: int | None = optional("Bytes that are there.", format="int64")
    eta: str | None = optional("Time that is left at the present rate, such as 2m10s.")
    percent: int | None = optional("Share that is there.")
    rate: str | None = optional("Bytes per second, for people.")
    total: int | None = optional("Bytes in all.", format="int64")
    where: str | None = optional("Who downloads: pod/<name> or job/<name>.")


class ModelStatus(CrdModel):
    """What is known of a model."""

    accelerator_ready: bool | None = optional("Whether some node has the accelerator.")
    cache_key: str | None = optional("Directory of the model cache that holds the file.")
    conditions: list[Condition] = optional(
        "Ready, Reconciling and Stalled; Available, Progressing, Degraded and more as the peer has them.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    download: DownloadStatus | None = optional("The download that is under way, if one is.")
    gguf: GgufStatus | None = optional("What the GGUF header says.")
    last_revalidated: Time | None = optional("When the source was last looked at.")
    last_updated: Time | None = optional("When this status last changed.")
    observed_generation: int | None = optional("Generation of the spec that this status judges.", format="int64")
    path: str | None = optional("Path of the file in a pod that mounts the cache or the claim.")
    phase: Literal["Pending", "Downloading", "Copying", "Ready", "Failed"] | None = optional("Where the model is.")
    sha256: str | None = optional("SHA-256 of the file, once known.")
    size: str | None = optional("Size for people; 0 until known.")
    source_content_length: int | None = optional("Size of the source in bytes.", format="int64")
    source_etag: str | None = optional("ETag of the source.", name="sourceETag")
    staged_files: list[str] = optional("Files of the set that spec.files asks for, each once.", [])
