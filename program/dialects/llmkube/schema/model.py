"""Model (`mdl`) of inference.llmkube.dev/v1alpha1. The fields are the same as in LLMKube's CRDs."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, Time, in_words, optional, required
from program.dialects.llmkube.schema.service import Condition
from program.dialects.pods.schema import LocalObjectReference, Toleration

Strategy = Literal["layer", "tensor", "row", "pipeline", "none"]
SOURCE = in_words(
    r"^(https?|file|pvc|hf|s3)://.*|^/[^\s]+$|^[a-zA-Z0-9][\w\-\.\/]+$",
    "must be an https, http, s3, hf, pvc or file address (for example hf://org/repo/file.gguf), an absolute path, or "
    "org/repo on Hugging Face",
)

_RESOURCE = r"^[a-z0-9.\-]+/[a-z0-9._\-]+$"


class ShardingSpec(CrdModel):
    layer_split: list[str] = optional("Layers of each GPU as start-end, one range per GPU.", [])
    strategy: Strategy = optional("Strategy to split the model over GPUs.", "layer")


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
    memory: str | None = optional("GPU memory that the model needs, a quantity.")
    resource_claims: list[ResourceClaim] = optional(
        "Resource claims (dynamic resource allocation) instead of an extended resource.", [], max_length=16
    )
    resource_name: str | None = optional(
        "Extended resource to request instead of the vendor's default: a MIG profile, a shared or custom resource.",
        pattern=_RESOURCE,
    )
    runtime: Literal["vulkan", "rocm"] | None = optional("Backend of llama.cpp on AMD GPUs.")
    sharding: ShardingSpec | None = optional("Split of the model over several GPUs.")
    toleration_key: str | None = optional(
        "Taint of GPU nodes that pods tolerate; the resource's name when absent.", pattern=_RESOURCE
    )
    vendor: Literal["nvidia", "amd", "intel"] = optional("Vendor of the GPUs.", "nvidia")


class HardwareSpec(CrdModel):
    accelerator: Literal["cpu", "metal", "cuda", "rocm", "intel", "vulkan"] = optional(
        "Kind of accelerator; metal places services on a host.", "cpu"
    )
    gpu: GpuSpec | None = optional("GPUs of one replica.")
    memory_budget: str | None = optional(
        "Maximum memory of the process on a host, a quantity; overrides memoryFraction."
    )
    memory_fraction: float | None = optional("Share of a host's memory that the process may use.", ge=0, le=1)


class ModelResourcesSpec(CrdModel):
    cpu: str | None = optional("CPU request. It has no effect; set spec.resources of the InferenceService.")
    memory: str | None = optional("Memory request. It has no effect; set spec.resources of the InferenceService.")


class ModelSpec(CrdModel):
    """The source of a model's weights and its hardware."""

    files: list[str] = optional(
        "Relative paths of files below the source, without patterns. The engine opens the first file.", []
    )
    format: Literal["gguf", "mlx", "safetensors", "pytorch", "custom"] = optional("Format of the weights.", "gguf")
    hardware: HardwareSpec | None = optional("Hardware for the model.")
    mmproj: str | None = optional("Multimodal projector below the source, fetched with files.")
    prefetch: bool | None = optional("Download the weights into the namespace's cache before a service needs them.")
    prefetch_tolerations: list[Toleration] = optional("Tolerations of the pod of the prefetch Job.", [])
    quantization: str | None = optional("A label such as Q4_K_M; not checked.")
    refresh_policy: Literal["IfNotPresent", "OnChange"] = optional(
        "OnChange: a starting pod downloads the file again if the source has changed.", "IfNotPresent"
    )
    resources: ModelResourcesSpec | None = optional("Kept for compatibility; see InferenceService spec.resources.")
    sha256: str | None = optional("SHA-256 that the file must have.", pattern=r"^[a-fA-F0-9]{64}$")
    source: str = required(
        "http(s)://, file://, pvc://claim/path, s3://bucket/key or hf://org/repo[@revision][/file] address, an "
        "absolute path, or `org/repo` on Hugging Face.",
        pattern=SOURCE,
    )
    source_secret_ref: LocalObjectReference | None = optional(
        "Secret in the Model's namespace whose keys become environment variables of the downloader: AWS_ACCESS_KEY_ID, "
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
    recurrent_bytes: int | None = optional(
        "State of the recurrent layers of a hybrid model for one slot, in bytes.", format="int64"
    )
    sliding_window: int | None = optional("Tokens that sliding-window attention looks back.", format="int64")
    sliding_window_layers: int | None = optional("Layers with sliding-window attention.", format="int64")
    tensor_count: int | None = optional("Tensors in the file.", format="int64")
    value_length: int | None = optional("Numbers in the value of one head.", format="int64")
    vocabulary_size: int | None = optional("Tokens of the vocabulary.", format="int64")
    weights_bytes: int | None = optional("All tensors together in bytes.", format="int64")


class DownloadStatus(CrdModel):
    """A running download."""

    bytes: int | None = optional("Downloaded bytes.", format="int64")
    eta: str | None = optional("Remaining time at the present rate, such as 2m10s.")
    percent: int | None = optional("Downloaded share.")
    rate: str | None = optional("Rate of the download, for people.")
    total: int | None = optional("Total bytes.", format="int64")
    where: str | None = optional("Pod or Job that downloads: pod/<name> or job/<name>.")


class ModelStatus(CrdModel):
    """The observed state of a model."""

    accelerator_ready: bool | None = optional("Whether some node has the accelerator.")
    cache_key: str | None = optional("Directory of the model cache that holds the file.")
    conditions: list[Condition] = optional(
        "Ready, Reconciling and Stalled, and LLMKube's conditions, such as Available, Progressing and Degraded.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    download: DownloadStatus | None = optional("Progress of the running download, if there is one.")
    gguf: GgufStatus | None = optional("Values from the GGUF header.")
    last_revalidated: Time | None = optional("Time of the last check of the source.")
    last_updated: Time | None = optional("Time of the last change of this status.")
    observed_generation: int | None = optional("Generation of the spec that this status describes.", format="int64")
    path: str | None = optional("Path of the file in a pod that mounts the cache or the claim.")
    phase: Literal["Pending", "Downloading", "Copying", "Ready", "Failed"] | None = optional("State of the model.")
    sha256: str | None = optional("SHA-256 of the file, once known.")
    size: str | None = optional("Size for people; 0 until known.")
    source_content_length: int | None = optional("Size of the source in bytes.", format="int64")
    source_etag: str | None = optional("ETag of the source.", name="sourceETag")
    staged_files: list[str] = optional("Files of spec.files, without repetitions.", [])
