"""The weights that a service serves: where they come from, what they are, what hardware they want."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from kubeapi.json_types import Json
from program.desired.base import FrozenModel


class SourceKind(StrEnum):
    """Where weights come from."""

    HTTP = "http"
    """One file behind an http or https URL."""
    FILE = "file"
    """A path on the node or host (`file://` or absolute)."""
    CLAIM = "pvc"
    """A file on an existing PersistentVolumeClaim."""
    REPOSITORY = "hf"
    """A Hugging Face repository; the engine fetches it itself unless the Model lists `files`."""
    S3 = "s3"
    """An object, or with `files` a prefix, in an S3-compatible store."""
    OTHER = "other"
    """Anything that only a dialect's own pods can fetch: an OCI image, a store of another kind."""


class ModelSource(FrozenModel):
    """One source of weights, parsed once from the address that a user wrote."""

    kind: SourceKind
    address: str
    """The source exactly as written; the cache key is derived from it."""
    path: str = ""
    """FILE: the absolute path. CLAIM: the file's path on the claim. HTTP: the URL's last path segment. S3: the key."""
    directory: bool = False
    """FILE: the path names a directory, which pods mount in place; a file is copied."""
    claim: str = ""
    """CLAIM: the PersistentVolumeClaim's name."""
    repository: str = ""
    """REPOSITORY: `org/name`."""
    revision: str = ""
    """REPOSITORY: branch, tag or commit; empty means the repository's default."""
    url: str = ""
    """HTTP: where the file itself is, if `address` is a page about it; else empty."""
    bucket: str = ""
    """S3: the bucket."""

    @property
    def download_address(self) -> str:
        """What to hand to whoever fetches the file."""
        return self.url or self.address


class GpuVendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    OTHER = "other"
    """A TPU, Gaudi, Neuron …: counted, and known by the name of its resource only."""


GPU_RESOURCES = {
    GpuVendor.NVIDIA: "nvidia.com/gpu",
    GpuVendor.AMD: "amd.com/gpu",
    GpuVendor.INTEL: "gpu.intel.com/i915",
}
"""The extended resource of each vendor's device plugin."""


class Gpu(FrozenModel):
    """The GPUs of one replica. No GPU is `None` where a Gpu is optional; `count` is at least 1."""

    count: int = Field(ge=1)
    vendor: GpuVendor = GpuVendor.NVIDIA
    resource: str = ""
    """The extended resource that is counted, when it is not the vendor's own: a MIG profile, a shared or custom one."""
    toleration_key: str = ""
    """Taint of GPU nodes that pods tolerate; empty means the resource's name."""
    backend: Literal["", "vulkan", "rocm"] = ""
    """llama.cpp's backend on AMD, when not the default."""
    shared: bool = False
    """The GPU is time-shared: pods go to the nodes that the operator set aside for sharing."""
    claims: tuple[Json, ...] = ()
    """Pod resource claims (dynamic resource allocation) instead of an extended resource."""
    layers: int | None = None
    """Layers kept on the GPU; None or -1 means all, 0 means none."""
    split_mode: Literal["layer", "row", "none"] = "layer"
    """llama.cpp's `--split-mode`, for more than one GPU."""
    tensor_split: tuple[int, ...] = ()
    """llama.cpp's `--tensor-split` proportions; empty means equal shares."""

    @property
    def resource_name(self) -> str:
        """The extended resource that a pod asks for; it has no meaning where `claims` are given."""
        return self.resource or GPU_RESOURCES[self.vendor]


class ModelGpu(FrozenModel):
    """What a Model says about GPUs: the default of the services that use it, resolved in `DesiredService.gpu`."""

    enabled: bool | None = None
    """False: no GPU whatever the count. True without a count: one."""
    count: int = 0
    """0: the service decides."""
    vendor: GpuVendor = GpuVendor.NVIDIA
    layers: int | None = None
    strategy: Literal["layer", "tensor", "row", "pipeline", "none"] = "layer"
    layer_split: tuple[str, ...] = ()
    """Layers of each GPU as `start-end`, as written."""
    resource: str = ""
    toleration_key: str = ""
    backend: Literal["", "vulkan", "rocm"] = ""
    claims: tuple[Json, ...] = ()
    memory_bytes: int | None = None
    """GPU memory that the model expects on each GPU."""


class GgufFacts(FrozenModel):
    """What the GGUF header says (keys of the GGUF specification); None where it does not say."""

    architecture: str = ""
    name: str = ""
    quantization: str = ""
    license: str = ""
    file_version: int = 0
    context_length: int | None = None
    embedding_size: int | None = None
    layer_count: int | None = None
    head_count: int | None = None
    head_count_kv: int | None = None
    """Key and value heads of a layer; where layers differ, the most that one has."""
    head_counts_kv: tuple[int, ...] = ()
    """Key and value heads layer by layer, only where layers differ (0: a layer without attention)."""
    sliding_window: int | None = None
    """Tokens that a layer with sliding-window attention looks back; None where every layer sees the whole context."""
    sliding_window_layers: int | None = None
    """Layers that look back only so far; None where the header leaves it to the architecture."""
    vocabulary_size: int | None = None
    feed_forward_length: int | None = None
    """Width of the feed-forward layers; with experts, of all those together that one token uses."""
    expert_count: int | None = None
    weights_bytes: int | None = None
    """All tensors together, from their shapes and types."""
    expert_bytes: int | None = None
    """Tensors of mixture-of-experts layers, which `--cpu-moe` keeps in RAM."""
    key_length: int | None = None
    """Numbers in one head's key; None means embedding_size / head_count."""
    value_length: int | None = None
    """Numbers in one head's value; 0 where the cache keeps none beside the key (multi-head latent attention)."""
    tensor_count: int = 0


class ModelFormat(StrEnum):
    GGUF = "gguf"
    MLX = "mlx"
    SAFETENSORS = "safetensors"
    PYTORCH = "pytorch"
    CUSTOM = "custom"


class DesiredModel(FrozenModel):
    """A model as a service uses it. `gpu` of the model is a default: the service's own view is `DesiredService.gpu`."""

    name: str
    source: ModelSource
    format: ModelFormat = ModelFormat.GGUF
    quantization: str = ""
    sha256: str | None = None
    """Lower-case hex SHA-256 of the file, checked before the file counts as there."""
    cache_key: str = ""
    """First 16 hex digits of SHA-256 of the source's address; empty when nothing is cached."""
    file_name: str = ""
    """The file's name inside its cache directory, fixed once per cache key."""
    size_bytes: int | None = None
    gguf: GgufFacts | None = None
    files: tuple[str, ...] = ()
    """Relative paths of a set of files below the source; the first is the one that the engine opens."""
    mmproj: str = ""
    """Relative path of the multimodal projector, which is fetched with `files`."""
    source_secret: str = ""
    """Secret beside the Model whose keys become the downloader's environment: AWS_*, HF_TOKEN, SOURCE_TOKEN."""
    refresh: Literal["IfNotPresent", "OnChange"] = "IfNotPresent"
    """OnChange: a pod that starts fetches the file again when the source has changed."""
    prefetch: bool = False
    """Fetch the weights into the namespace's cache before any service asks for them."""
    prefetch_tolerations: tuple[Json, ...] = ()
    accelerator: Literal["cpu", "metal", "cuda", "rocm", "intel", "vulkan"] = "cpu"
    gpu: ModelGpu | None = None
    memory_budget_bytes: int | None = None
    memory_fraction: float | None = None
    asked_resources: tuple[str, ...] = ()
    """Fields of the Model's `spec.resources` that are set. They have no effect."""
