"""Model (`mdl`) of inference.llmkube.dev/v1alpha1, field by field as LLMKube publishes it.

`parse.py` reads objects through `ModelSpec` and `ModelStatus`; `crds.py` generates the CRD from both.
"""

from __future__ import annotations

from typing import Literal

from program.dialects.crd_schema import CrdModel, Time, optional, required
from program.dialects.llmkube.service_schema import Condition

Strategy = Literal["layer", "tensor", "row", "pipeline", "none"]
# As the peer's, less `s3://`, which nothing here can fetch yet.
SOURCE = r"^(https?|file|pvc|hf)://.*|^/[^\s]+$|^[a-zA-Z0-9][\w\-\.\/]+$"


class ShardingSpec(CrdModel):
    layer_split: list[str] = optional("Layers of each GPU as start-end, one range per GPU.", [])
    strategy: Strategy = optional("How the model is split over GPUs.", "layer")


class GpuSpec(CrdModel):
    count: int | None = optional("GPUs per replica.", ge=0, le=8)
    enabled: bool | None = optional("Whether to use GPUs; true without a count means one.")
    layers: int | None = optional("Layers kept on the GPU: -1 for all, 0 for none.", ge=-1)
    memory: str | None = optional("GPU memory that the model expects, a quantity.")
    sharding: ShardingSpec | None = optional("How the model is split over several GPUs.")
    vendor: Literal["nvidia", "amd", "intel"] = optional("Whose GPUs.", "nvidia")


class HardwareSpec(CrdModel):
    accelerator: Literal["cpu", "metal", "cuda", "rocm"] = optional(
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

    format: Literal["gguf", "mlx", "safetensors", "pytorch", "custom"] = optional("Format of the weights.", "gguf")
    hardware: HardwareSpec | None = optional("What the model runs on.")
    quantization: str | None = optional("A label such as Q4_K_M; not checked.")
    resources: ModelResourcesSpec | None = optional("Kept for compatibility; see InferenceService spec.resources.")
    sha256: str | None = optional("SHA-256 that the file must have.", pattern=r"^[a-fA-F0-9]{64}$")
    source: str = required(
        "http(s)://, file://, pvc://claim/path or hf:// address, an absolute path, or `org/repo` on Hugging Face.",
        pattern=SOURCE,
    )


class GgufStatus(CrdModel):
    architecture: str | None = optional("general.architecture")
    context_length: int | None = optional("Context that the model was trained with.", format="int64")
    embedding_size: int | None = optional("Width of the embeddings.", format="int64")
    file_version: int | None = optional("Version of the GGUF format.", format="int64")
    head_count: int | None = optional("Attention heads.", format="int64")
    head_count_kv: int | None = optional("Key and value heads.", name="headCountKV", format="int64")
    key_length: int | None = optional("Numbers in the key of one head.", format="int64")
    layer_count: int | None = optional("Blocks.", format="int64")
    license: str | None = optional("License, normalised.")
    model_name: str | None = optional("general.name")
    quantization: str | None = optional("Quantization that the header names.")
    tensor_count: int | None = optional("Tensors in the file.", format="int64")
    value_length: int | None = optional("Numbers in the value of one head.", format="int64")


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
