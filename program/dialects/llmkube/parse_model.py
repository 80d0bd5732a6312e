"""Parse a Model once, strictly, into desired state, with what its status knows of the file. Pure.

`parse` and `model_judging` call this; `source` reads the address of the weights.
"""

from __future__ import annotations

from program.desired.base import JsonObject
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, GgufFacts, GpuVendor, ModelFormat, ModelGpu, ModelSource, SourceKind
from program.dialects.llmkube.model_schema import GpuSpec, HardwareSpec, ModelSpec, ModelStatus, ShardingSpec
from program.dialects.llmkube.source import cache_key, file_name, needs_cache, parse_source
from program.dialects.quantities import bytes_of, check_quantity
from program.dialects.reading import read, without_nulls

_FACTS = ("path", "gguf", "sourceContentLength")


def model_of(cr: JsonObject) -> DesiredModel:
    """Parse a Model, with what its status knows of the file.

    Facts in status count only while they are about the current source: after an edit of `spec.source` the old file's
    name and header must not be served. Raises SpecInvalid with a path in the Model.
    """
    name = str(cr["metadata"]["name"])
    spec = read(ModelSpec, without_nulls(cr.get("spec")), field="spec")
    hardware = spec.hardware or HardwareSpec()
    source = parse_source(spec.source, format=spec.format)
    key = cache_key(source.address)
    status = _model_status(cr, key=key, cached=source.kind is not SourceKind.REPOSITORY)
    gguf = _gguf(status)
    return DesiredModel(
        name=name,
        source=source,
        format=ModelFormat(spec.format),
        quantization=spec.quantization or "",
        sha256=spec.sha256.lower() if spec.sha256 else None,
        cache_key=key if needs_cache(source) else "",
        file_name=_file_name(source, status, gguf, model_name=name),
        size_bytes=status.source_content_length,
        gguf=gguf,
        accelerator=hardware.accelerator,
        gpu=_model_gpu(hardware.gpu) if hardware.gpu else None,
        memory_budget_bytes=bytes_of(hardware.memory_budget, field="spec.hardware.memoryBudget"),
        memory_fraction=hardware.memory_fraction,
    )


def _model_status(cr: JsonObject, *, key: str, cached: bool) -> ModelStatus:
    raw = without_nulls(cr.get("status") or {})
    if cached and raw.get("cacheKey") != key:
        return ModelStatus()
    try:
        return read(ModelStatus, {name: raw[name] for name in _FACTS if name in raw}, field="status")
    except SpecInvalid:
        # Written by something else than Herdsman or LLMKube; the next look at the source writes it anew.
        return ModelStatus()


def _gguf(status: ModelStatus) -> GgufFacts | None:
    found = status.gguf
    if found is None:
        return None
    return GgufFacts(
        architecture=found.architecture or "",
        name=found.model_name or "",
        quantization=found.quantization or "",
        license=found.license or "",
        file_version=found.file_version or 0,
        context_length=found.context_length,
        embedding_size=found.embedding_size,
        layer_count=found.layer_count,
        head_count=found.head_count,
        head_count_kv=found.head_count_kv,
        key_length=found.key_length,
        value_length=found.value_length,
        tensor_count=found.tensor_count or 0,
    )


def _file_name(source: ModelSource, status: ModelStatus, gguf: GgufFacts | None, *, model_name: str) -> str:
    """Name the cached file: once named for a key it keeps its name, whatever the header says later."""
    if source.kind is SourceKind.REPOSITORY:
        return ""
    if source.kind is SourceKind.CLAIM:
        return source.path.rsplit("/", 1)[-1]
    known = (status.path or "").rsplit("/", 1)[-1]
    return known or file_name(gguf.name if gguf else "", model_name)


def _model_gpu(spec: GpuSpec) -> ModelGpu:
    check_quantity(spec.memory, field="spec.hardware.gpu.memory", unit="memory")
    sharding = spec.sharding or ShardingSpec()
    return ModelGpu(
        enabled=spec.enabled,
        count=spec.count or 0,
        vendor=GpuVendor(spec.vendor),
        layers=spec.layers,
        strategy=sharding.strategy,
        layer_split=tuple(sharding.layer_split),
    )
