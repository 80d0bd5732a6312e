"""The weights of a service of KServe or llmaz on a host: address, file, format, and the engine that reads them. Pure.

A host fetches files that `agent.contract.FilePlan` can describe, so addresses are converted to those of LLMKube's
Models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from program.desired import keys
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, ModelFormat, ModelSource, SourceKind
from program.dialects.llmkube.parse.source import cache_key, needs_cache, parse_source

Accelerator = Literal["cpu", "metal", "cuda", "rocm", "intel", "vulkan"]
HostEngine = Literal["llamacpp", "omlx", "ollama", "vllm"]

LABEL_ACCELERATOR = "herdsman.dev/accelerator"
"""Label of a Host. In a service's host selector it sets the accelerator that the arguments are built for."""
_KSERVE_REVISION = re.compile(r"hf://([^/@:]+/[^/@:]+):([^/@:]+)")
_ACCELERATORS: tuple[Accelerator, ...] = get_args(Accelerator)
_WORDS = re.compile(r"[a-z0-9]+")
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_READERS: dict[ModelFormat, HostEngine] = {ModelFormat.GGUF: "llamacpp", ModelFormat.MLX: "omlx"}


@dataclass(frozen=True, kw_only=True)
class HostedModel:
    """A model as a custom resource names it."""

    address: str
    """`hf://org/repo` (with `@revision` or KServe's `:revision`, and `/file` after the repository or `@revision`),
    `https://host/file`, `s3://bucket/key`, `file:///path`, an absolute path of the host, or `ollama://name[:tag]`.
    """
    field: str
    """Path of the field that names it, for errors."""
    name: str = ""
    """The name for clients and for the model's label; empty means the service's name."""
    file: str = ""
    """One file of a repository or below a prefix of a store. Annotation `herdsman.dev/model-file` overrides it."""


def model_of(model: HostedModel, annotations: Mapping[str, str], *, of: str) -> DesiredModel:
    """Return the model. `of` is the name of a model without one. Raises SpecInvalid if no host can fetch it."""
    wanted_file = annotations.get(keys.ANNOTATION_MODEL_FILE, "").strip() or model.file
    written = annotations.get(keys.ANNOTATION_MODEL_FORMAT, "").strip()
    if written not in ("", "gguf", "mlx", "safetensors"):
        raise SpecInvalid(
            field=f"metadata.annotations[{keys.ANNOTATION_MODEL_FORMAT}]",
            why=f"`{written[:64]}` is not one of gguf, mlx, safetensors",
        )
    address = _with_file(_KSERVE_REVISION.sub(r"hf://\1@\2", model.address), wanted_file, field=model.field)
    model_format = ModelFormat(written) if written else _format_of(address)
    source = _source(address, model_format, field=model.field)
    return DesiredModel(
        name=_label(model.name) or of,
        source=source,
        format=model_format,
        cache_key=cache_key(source.address) if needs_cache(source) else "",
        file_name=source.path.rpartition("/")[2],
    )


def engine_of(model: DesiredModel, *, asked: str, field: str) -> HostEngine:
    """Return the engine that serves a model on a host. The format decides, because an engine reads only some formats.

    `asked` is the engine of the dialect's pods. Raises SpecInvalid if no engine on hosts reads the model.
    """
    source = model.source
    if source.address.startswith("ollama://"):
        return "ollama"
    if model.format is ModelFormat.GGUF and asked == "ollama" and source.kind is SourceKind.REPOSITORY:
        return "ollama"
    if model.format in _READERS:
        if model.format is ModelFormat.MLX and source.kind not in (SourceKind.FILE, SourceKind.REPOSITORY):
            why = f"oMLX serves MLX weights from a repository or a directory of the host, not `{source.address}`"
            raise SpecInvalid(field=field, why=why)
        return _READERS[model.format]
    if asked in ("vllm", ""):
        return "vllm"
    raise SpecInvalid(
        field=field,
        why=f"`{source.address}` is neither a GGUF nor an MLX model, and {asked} does not run on hosts; name a GGUF "
        f"file (annotation {keys.ANNOTATION_MODEL_FILE}), or set the format by annotation "
        f"{keys.ANNOTATION_MODEL_FORMAT}",
    )


def accelerator_of(selector: Mapping[str, str], model: DesiredModel, *, gpus: int) -> Accelerator:
    """Return the accelerator for the arguments: from the host selector, else from the model's format and the GPUs."""
    wanted = selector.get(LABEL_ACCELERATOR, "")
    for each in _ACCELERATORS:
        if each == wanted:
            return each
    if model.format is ModelFormat.MLX:
        return "metal"
    return "cuda" if gpus else "cpu"


def _with_file(address: str, file: str, *, field: str) -> str:
    """Return the address of one file of a repository, or below a prefix of a store."""
    if not file:
        return address
    scheme = address.partition("://")[0]
    if scheme not in ("hf", "s3"):
        raise SpecInvalid(
            field=field,
            why=f"`{address}` is not a repository or prefix from which file `{file[:64]}` could be chosen; use hf:// "
            f"or s3://",
        )
    if scheme == "hf" and address.removeprefix("hf://").partition("@")[0].count("/") > 1:
        return address  # it names a file already
    if scheme == "s3" and address.endswith(f"/{file}"):
        return address
    return f"{address.rstrip('/')}/{file}"


def _format_of(address: str) -> ModelFormat:
    """Guess the format from the name: from a file's suffix, or from a word in a repository's name."""
    path = address.partition("://")[2] or address
    words = _WORDS.findall(path.lower())
    if path.lower().endswith(".gguf") or "gguf" in words or address.startswith("ollama://"):
        return ModelFormat.GGUF
    return ModelFormat.MLX if "mlx" in words else ModelFormat.SAFETENSORS


def _source(address: str, model_format: ModelFormat, *, field: str) -> ModelSource:
    if address.startswith("ollama://"):
        name, _, tag = address.removeprefix("ollama://").partition(":")
        if not name or any(c.isspace() for c in address):
            raise SpecInvalid(field=field, why=f"`{address[:64]}` names no model; write `ollama://name:tag`")
        repository = name if "/" in name else f"library/{name}"
        return ModelSource(kind=SourceKind.REPOSITORY, address=address, repository=repository, revision=tag)
    try:
        source = parse_source(address, format=model_format.value)
    except SpecInvalid as error:
        raise SpecInvalid(field=field, why=f"on a host: {error.why}") from None
    if source.kind is SourceKind.CLAIM:
        raise SpecInvalid(field=field, why="is on a PersistentVolumeClaim, which a host cannot mount")
    if model_format is ModelFormat.GGUF and source.kind is SourceKind.S3 and not source.path.endswith(".gguf"):
        raise SpecInvalid(field=field, why=f"names no file; set the file by annotation {keys.ANNOTATION_MODEL_FILE}")
    return source


def _label(name: str) -> str:
    """Return a label value for a model's name, which may be a path."""
    return _NOT_IN_LABELS.sub("-", name).strip("-._")[:63].strip("-._")
