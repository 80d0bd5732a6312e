"""Parses a Model into desired state, with the facts about the file from its status. Pure."""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.model import (
    DesiredModel,
    GgufFacts,
    GpuVendor,
    ModelFormat,
    ModelGpu,
    ModelSource,
    SourceKind,
)
from program.desired.quantities import bytes_of
from program.dialects.crds.reading import check_shape, read, without_nulls
from program.dialects.llmkube.parse.source import cache_key, file_name, file_set, needs_cache, parse_source
from program.dialects.llmkube.schema.model import (
    GpuSpec,
    HardwareSpec,
    ModelResourcesSpec,
    ModelSpec,
    ModelStatus,
    ShardingSpec,
)

_FACTS = ("path", "gguf", "sourceContentLength")
_LONGEST_SECRET_NAME = 253


def model_of(cr: Json) -> DesiredModel:
    """Parse a Model, with the facts about the file from its status.

    Facts in the status count only if they describe the current source and files: after an edit of `spec.source` or
    `spec.files`, the earlier file's name and header must not be used. Raises SpecInvalid with a path in the Model; with
    reason InvalidFileSet if `spec.files` or `spec.mmproj` could leave their directory.
    """
    check_shape(cr)
    name = str(cr["metadata"]["name"])
    raw: dict[str, Any] = without_nulls(cr.get("spec") or {})
    spec = read(ModelSpec, raw, field="spec")
    hardware = spec.hardware or HardwareSpec()
    source = parse_source(spec.source, format=spec.format, files=bool(spec.files))
    staged = file_set(source, spec.files, spec.mmproj or "")
    key = cache_key(source.address)
    cached = needs_cache(source, spec.files)
    keyed = cached or source.kind in (SourceKind.CLAIM, SourceKind.FILE)
    status = _model_status(cr, key=key, keyed=keyed, staged=staged)
    gguf = _gguf(status)
    return DesiredModel(
        name=name,
        source=source,
        format=ModelFormat(spec.format),
        quantization=spec.quantization or "",
        sha256=spec.sha256.lower() if spec.sha256 else None,
        cache_key=key if cached else "",
        file_name=staged[0] if staged else _file_name(source, status, gguf, model_name=name),
        size_bytes=status.source_content_length,
        gguf=gguf,
        files=tuple(spec.files),
        mmproj=spec.mmproj or "",
        source_secret=_secret(spec),
        refresh=spec.refresh_policy,
        prefetch=bool(spec.prefetch),
        prefetch_tolerations=tuple(raw.get("prefetchTolerations") or ()),
        accelerator=hardware.accelerator,
        gpu=_model_gpu(hardware.gpu, raw["hardware"]["gpu"]) if hardware.gpu else None,
        memory_budget_bytes=bytes_of(hardware.memory_budget, field="spec.hardware.memoryBudget"),
        memory_fraction=hardware.memory_fraction,
        asked_resources=_asked(spec.resources),
    )


def _asked(resources: ModelResourcesSpec | None) -> tuple[str, ...]:
    wish = resources or ModelResourcesSpec()
    return tuple(name for name, text in (("cpu", wish.cpu), ("memory", wish.memory)) if text)


def _secret(spec: ModelSpec) -> str:
    name = spec.source_secret_ref.name if spec.source_secret_ref else ""
    if len(name) > _LONGEST_SECRET_NAME or "/" in name or name != name.strip():
        raise SpecInvalid(field="spec.sourceSecretRef.name", why=f"`{name[:64]}` is not the name of a Secret")
    return name


def _model_status(cr: Json, *, key: str, keyed: bool, staged: tuple[str, ...]) -> ModelStatus:
    raw = without_nulls(cr.get("status") or {})
    if (keyed and raw.get("cacheKey") != key) or tuple(raw.get("stagedFiles") or ()) != staged:
        return ModelStatus()
    try:
        return read(ModelStatus, {name: raw[name] for name in _FACTS if name in raw}, field="status")
    except SpecInvalid:
        # Another client wrote this status. The next probe of the source overwrites it.
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
        head_counts_kv=tuple(found.head_counts_kv),
        recurrent_bytes=found.recurrent_bytes,
        sliding_window=found.sliding_window,
        sliding_window_layers=found.sliding_window_layers,
        vocabulary_size=found.vocabulary_size,
        feed_forward_length=found.feed_forward_length,
        expert_count=found.expert_count,
        weights_bytes=found.weights_bytes,
        expert_bytes=found.expert_bytes,
        key_length=found.key_length,
        value_length=found.value_length,
        tensor_count=found.tensor_count or 0,
    )


def _file_name(source: ModelSource, status: ModelStatus, gguf: GgufFacts | None, *, model_name: str) -> str:
    """Return the name of the cached file.

    It stays the same for a cache key, even if the header names another one later.
    """
    if source.kind is SourceKind.REPOSITORY:
        return ""
    if source.kind is SourceKind.CLAIM:
        return source.path.rsplit("/", 1)[-1]
    known = (status.path or "").rsplit("/", 1)[-1]
    return known or file_name(gguf.name if gguf else "", model_name)


def _model_gpu(spec: GpuSpec, raw: Json) -> ModelGpu:
    sharding = spec.sharding or ShardingSpec()
    claims = tuple(raw.get("resourceClaims") or ())
    if claims and spec.resource_name:
        # The CRD has this rule too, but the API server has not checked manifests from files.
        raise SpecInvalid(
            field="spec.hardware.gpu.resourceClaims", why="cannot be combined with resourceName; remove one of the two"
        )
    for index, claim in enumerate(claims):
        if ("resourceClaimName" in claim) == ("resourceClaimTemplateName" in claim):
            raise SpecInvalid(
                field=f"spec.hardware.gpu.resourceClaims[{index}]",
                why="must have either resourceClaimName or resourceClaimTemplateName",
            )
    return ModelGpu(
        enabled=spec.enabled,
        count=spec.count or 0,
        vendor=GpuVendor(spec.vendor),
        layers=spec.layers,
        strategy=sharding.strategy,
        layer_split=tuple(sharding.layer_split),
        resource=spec.resource_name or "",
        toleration_key=spec.toleration_key or "",
        backend=spec.runtime or "",
        claims=claims,
        memory_bytes=bytes_of(spec.memory, field="spec.hardware.gpu.memory"),
    )
