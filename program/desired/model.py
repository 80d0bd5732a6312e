"""The weights that a service serves: their source, their format, and the hardware that they need."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from kubeapi.json_types import Json
from program.desired.base import FrozenModel


class SourceKind(StrEnum):
    """The kind of place that weights are fetched from."""

    HTTP = "http"
    """One file at an http or https URL."""
    FILE = "file"
    """A path on the node or host (`file://` or absolute)."""
    CLAIM = "pvc"
    """A file on an existing PersistentVolumeClaim."""
    REPOSITORY = "hf"
    """A Hugging Face repository. The engine fetches it itself unless the Model lists `files`."""
    S3 = "s3"
    """An object in an S3-compatible store; with `files` a prefix."""
    OTHER = "other"
    """A source that only a dialect's own pods can fetch: an OCI image, another kind of store."""


class ModelSource(FrozenModel):
    """One source of weights, parsed once from the user's address."""

    kind: SourceKind
    address: str
    """The source exactly as the user wrote it. The cache key is derived from it."""
    path: str = ""
    """FILE: the absolute path. CLAIM: the file's path on the claim. HTTP: the URL's last path segment. S3: the key."""
    directory: bool = False
    """FILE: the path names a directory. Pods mount a directory in place; they copy a file."""
    claim: str = ""
    """CLAIM: the PersistentVolumeClaim's name."""
    repository: str = ""
    """REPOSITORY: `org/name`."""
    revision: str = ""
    """REPOSITORY: branch, tag or commit; empty means the repository's default."""
    url: str = ""
    """HTTP: the file's address, if `address` is a page about it; else empty."""
    bucket: str = ""
    """S3: the bucket."""

    @property
    def download_address(self) -> str:
        """The address to download from."""
        return self.url or self.address


class GpuVendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    OTHER = "other"
    """A TPU, Gaudi, Neuron …: counted, and known only by the name of its resource."""


GPU_RESOURCES = {
    GpuVendor.NVIDIA: "nvidia.com/gpu",
    GpuVendor.AMD: "amd.com/gpu",
    GpuVendor.INTEL: "gpu.intel.com/i915",
}
"""The extended resource of each vendor's device plugin."""


class Gpu(FrozenModel):
    """The GPUs of one replica; `count` is at least 1. An optional Gpu that is None means no GPU."""

    count: int = Field(ge=1)
    vendor: GpuVendor = GpuVendor.NVIDIA
    resource: str = ""
    """The extended resource to request, if it is not the vendor's default: a MIG profile, a shared or custom one."""
    toleration_key: str = ""
    """Taint of GPU nodes that pods tolerate; empty means the resource's name."""
    backend: Literal["", "vulkan", "rocm"] = ""
    """llama.cpp's backend on AMD, if not the default."""
    shared: bool = False
    """The GPU is time-shared: pods run on the nodes that the operator reserved for sharing."""
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
        """The extended resource that a pod requests. Without meaning if `claims` are given."""
        return self.resource or GPU_RESOURCES[self.vendor]


class ModelGpu(FrozenModel):
    """The GPUs that a Model asks for: the default of the services that use it, resolved in `DesiredService.gpu`."""

    enabled: bool | None = None
    """False: no GPU, whatever `count` is. True without a count: one GPU."""
    count: int = 0
    """0: the service decides."""
    vendor: GpuVendor = GpuVendor.NVIDIA
    layers: int | None = None
    strategy: Literal["layer", "tensor", "row", "pipeline", "none"] = "layer"
    layer_split: tuple[str, ...] = ()
    """Layers of each GPU as `start-end`, as the user wrote them."""
    resource: str = ""
    toleration_key: str = ""
    backend: Literal["", "vulkan", "rocm"] = ""
    claims: tuple[Json, ...] = ()
    memory_bytes: int | None = None
    """GPU memory in bytes that the model expects on each GPU."""


class GgufFacts(FrozenModel):
    """The fields of a GGUF header (keys of the GGUF specification); None for a field that the header lacks."""

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
    """Key and value heads of a layer; if layers differ, the largest number."""
    head_counts_kv: tuple[int, ...] = ()
    """Key and value heads by layer, only if layers differ (0: a layer without attention)."""
    recurrent_bytes: int | None = None
    """Size of the state that the recurrent layers of a hybrid model keep for one slot, all layers together."""
    sliding_window: int | None = None
    """Tokens that a layer with sliding-window attention looks back; None if every layer sees the whole context."""
    sliding_window_layers: int | None = None
    """Layers with sliding-window attention; None if the header leaves the number to the architecture."""
    vocabulary_size: int | None = None
    feed_forward_length: int | None = None
    """Width of the feed-forward layers; for a model with experts, of all experts together that one token uses."""
    expert_count: int | None = None
    weights_bytes: int | None = None
    """Size of all tensors, computed from their shapes and types."""
    expert_bytes: int | None = None
    """Size of the tensors of mixture-of-experts layers, which `--cpu-moe` keeps in RAM."""
    key_length: int | None = None
    """Numbers in one head's key; None means embedding_size / head_count."""
    value_length: int | None = None
    """Numbers in one head's value; 0 if the cache stores only the key (multi-head latent attention)."""
    tensor_count: int = 0


class ModelFormat(StrEnum):
    GGUF = "gguf"
    MLX = "mlx"
    SAFETENSORS = "safetensors"
    PYTORCH = "pytorch"
    CUSTOM = "custom"


class DesiredModel(FrozenModel):
    """A model as a service uses it. Its `gpu` is a default; `DesiredService.gpu` is the value for the service."""

    name: str
    source: ModelSource
    format: ModelFormat = ModelFormat.GGUF
    quantization: str = ""
    sha256: str | None = None
    """Lower-case hex SHA-256 of the file. A file counts as present only after this check."""
    cache_key: str = ""
    """First 16 hex digits of the SHA-256 of the source's address; empty if nothing is cached."""
    file_name: str = ""
    """The file's name inside its cache directory. It never changes for one cache key."""
    size_bytes: int | None = None
    gguf: GgufFacts | None = None
    files: tuple[str, ...] = ()
    """Relative paths of several files below the source. The engine opens the first."""
    mmproj: str = ""
    """Relative path of the multimodal projector, which is fetched with `files`."""
    source_secret: str = ""
    """Secret in the Model's namespace whose keys become the downloader's environment: AWS_*, HF_TOKEN, SOURCE_TOKEN."""
    refresh: Literal["IfNotPresent", "OnChange"] = "IfNotPresent"
    """OnChange: a pod that starts fetches the file again if the source has changed."""
    prefetch: bool = False
    """Fetch the weights into the namespace's cache before a service needs them."""
    prefetch_tolerations: tuple[Json, ...] = ()
    accelerator: Literal["cpu", "metal", "cuda", "rocm", "intel", "vulkan"] = "cpu"
    gpu: ModelGpu | None = None
    memory_budget_bytes: int | None = None
    memory_fraction: float | None = None
    asked_resources: tuple[str, ...] = ()
    """Fields of the Model's `spec.resources` that are set. They have no effect."""
