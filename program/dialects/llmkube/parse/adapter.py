"""LoRAAdapter → `program.desired.adapter.Adapter`, and which of several adapters of one name counts. Pure.

The loop and the gateway call this module, so that both take the same adapter for the one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from kubeapi.json_types import Json
from program.desired.adapter import Adapter, AdapterFile, AdapterReason, Claim
from program.desired.errors import SpecInvalid
from program.desired.keys import ANNOTATION_HOST, ANNOTATION_HOST_SELECTOR
from program.desired.model import DesiredModel, ModelSource, SourceKind
from program.dialects.crds.reading import check_shape, read, without_nulls
from program.dialects.llmkube.parse.source import cache_key, file_set, parse_source
from program.dialects.llmkube.schema.lora_adapter import LoraAdapterSpec

DEFAULT_RUNTIME = "llamacpp"
"""The engine of an InferenceService that names none."""
DIALECTS_BY_KIND = {
    "InferenceService": "llmkube",
    "LLMInferenceService": "kserve",
    "Playground": "llmaz",
    "Service": "llmaz-service",
}
ENGINES = frozenset({"vllm", "sglang", "llamacpp"})
"""The engines whose adapters Herdsman loads or finds."""
DEFAULT_FILES = ("adapter_model.safetensors", "adapter_config.json")
"""The files of an adapter as PEFT writes them. The checksum is that of the first."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def adapter_of(cr: Json, *, to_remove: bool = False) -> Adapter:
    """Parse a LoRAAdapter. Raises SpecInvalid with the path of the first field that is not valid.

    `to_remove`: replicas are to unload it, for which its path does not matter.
    """
    check_shape(cr)
    spec = read(LoraAdapterSpec, without_nulls(cr.get("spec")), field="spec")
    metadata = cr["metadata"]
    namespace = str(metadata.get("namespace") or "default")
    named = spec.inference_service_ref.namespace
    if named and named != namespace:
        raise SpecInvalid(
            field="spec.inferenceServiceRef.namespace",
            why=f"`{named}` is not the adapter's namespace `{namespace}`; create the LoRAAdapter in the namespace of "
            "the InferenceService",
            reason=AdapterReason.NAMESPACE_NOT_ALLOWED,
        )
    source = None
    if not to_remove:
        if bool(spec.path) == bool(spec.source):
            raise SpecInvalid(field="spec.path", why="set either spec.path or spec.source")
        if spec.path:
            _check_path(spec.path)
        else:
            source = _source(spec)
    return Adapter(
        namespace=namespace,
        resource=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        created=str(metadata.get("creationTimestamp", "")),
        service=spec.inference_service_ref.name,
        dialect=DIALECTS_BY_KIND[spec.inference_service_ref.kind or "InferenceService"],
        name=spec.name,
        path=spec.path or "",
        source=source,
    )


def claims_of(crs: Iterable[Json]) -> dict[Claim, Adapter]:
    """Return the adapter that counts for each namespace, service and name: the oldest valid one.

    An adapter that is being deleted counts until it is gone, because replicas may still have it.
    """
    found: dict[Claim, Adapter] = {}
    for cr in crs:
        try:
            adapter = adapter_of(cr)
        except SpecInvalid:
            continue
        first = found.get(adapter.claim)
        if first is None or _age(adapter) < _age(first):
            found[adapter.claim] = adapter
    return found


def files_of(service: Json, crs: Iterable[Json], *, on_host: bool) -> tuple[AdapterFile, ...]:
    """Return the adapters that are part of a service: those that its replicas must have when they start.

    - In pods, those with a source, which init containers download.
    - On hosts, all: llama-server loads adapters only at its start, and the loop does not reach the engines.

    `on_host` is whether the service runs there.

    The order is that of their creation, so that a new adapter does not change the numbers of the others. Adapters that
    the service cannot have are left out; the controller of LoRAAdapters says why.
    """
    engine, metadata = runtime_of(service), service["metadata"]
    own = [each for each in crs if service_named(each) == metadata["name"]]
    ending = {each["metadata"].get("uid") for each in own if "deletionTimestamp" in each["metadata"]}
    claims = sorted(claims_of(own).values(), key=_age)
    return tuple(
        file
        for adapter in claims
        if adapter.uid not in ending
        and (file := file_of(adapter, on_host=on_host)) is not None
        and not why_not_part(engine, service, file, on_host=on_host)[0]
    )


def file_of(adapter: Adapter, *, on_host: bool) -> AdapterFile | None:
    """Return the files of an adapter that is part of its service; None for one that is loaded while the engine runs."""
    if adapter.source is not None or not on_host:
        return adapter.file
    path = adapter.path
    where = ModelSource(kind=SourceKind.FILE, address=path, path=path)
    source = DesiredModel(name=adapter.name, source=where)
    return AdapterFile(name=adapter.name, source=source, resource=adapter.resource)


def why_not_part(engine: str, service: Json, file: AdapterFile, *, on_host: bool) -> tuple[AdapterReason | None, str]:
    """Return the reason and the message why a service cannot have an adapter as a part; (None, "") if it can."""
    if engine not in ENGINES:
        return AdapterReason.RUNTIME_MISMATCH, f"runtime {engine} serves no adapters; vllm, sglang and llamacpp do"
    if on_host and engine not in ("llamacpp", "vllm"):
        why = f"runtime {engine} gets adapters in pods only; on hosts runtimes llamacpp and vllm do"
        return AdapterReason.HOSTS_NOT_SUPPORTED, why
    source = file.source
    is_path = source.source.kind is SourceKind.FILE
    if is_path and not source.source.path.startswith("/"):
        why = f"`{source.source.path}` is no path on the host; write an absolute path, or spec.source"
        return AdapterReason.SOURCE_MISMATCH, why
    mismatch = why_not_read(engine, file) if engine == "llamacpp" or not is_path else (None, "")
    if mismatch[0] is None and engine == "llamacpp" and _cache_size(service) not in (None, "0"):
        why = "llama-server would answer with cached prompts of other adapters; set --cache-ram 0 in spec.extraArgs"
        return AdapterReason.NOT_IN_ARGUMENTS, f"{why}, or remove --cache-ram"
    return mismatch


def why_not_read(engine: str, file: AdapterFile) -> tuple[AdapterReason | None, str]:
    """Return the reason and the message why an engine cannot read the files of a source; (None, "") if it can."""
    address, is_directory = file.source.source.address, bool(file.source.files)
    why = ""
    if engine == "llamacpp" and is_directory:
        why = f"llama-server reads one GGUF file, and {address} is a directory; name a file"
    elif engine != "llamacpp" and not is_directory:
        why = f"{engine} reads a directory, and {address} is one file; name a repository or spec.files"
    return (AdapterReason.SOURCE_MISMATCH, why) if why else (None, "")


def runtime_of(service: Json) -> str:
    """Return the engine of an InferenceService's custom resource, without a check of its spec."""
    spec = service.get("spec")
    named = spec.get("runtime") if isinstance(spec, dict) else None
    return named if isinstance(named, str) and named else DEFAULT_RUNTIME


def is_on_hosts(service: Json) -> bool:
    """Return whether annotations place a service on hosts. A Model can do so, too."""
    annotations = service["metadata"].get("annotations") or {}
    return bool(annotations.get(ANNOTATION_HOST) or annotations.get(ANNOTATION_HOST_SELECTOR))


def keeps_prompts_of_adapters(service: Json) -> bool:
    """Return whether a llama-server would answer with cached prompts of other adapters.

    Its cache in the host's memory (`--cache-ram`, on by default) does not distinguish adapters.
    """
    return _cache_size(service) != "0"


def _cache_size(service: Json) -> str | None:
    """Return the size of llama-server's cache in the host's memory that the service sets; None if it sets none."""
    spec = service.get("spec")
    words = spec.get("extraArgs") if isinstance(spec, dict) else None
    found = [str(word) for word in words] if isinstance(words, list) else []
    values = [after for flag, after in pairwise(found) if flag in ("--cache-ram", "-cram")]
    return values[-1] if values else None


def service_named(cr: Json) -> str:
    """Return the InferenceService that a LoRAAdapter names; empty for another kind of service."""
    spec = cr.get("spec")
    reference = spec.get("inferenceServiceRef") if isinstance(spec, dict) else None
    if not isinstance(reference, dict) or reference.get("kind") not in (None, "InferenceService"):
        return ""
    return str(reference.get("name"))


def _source(spec: LoraAdapterSpec) -> DesiredModel:
    """Parse the source of an adapter. Raises SpecInvalid."""
    address, files = spec.source or "", tuple(spec.files)
    many = bool(files) or (address.lower().startswith("s3://") and address.endswith("/"))
    source = parse_source(address, format="safetensors", files=many)
    if source.kind not in (SourceKind.HTTP, SourceKind.S3, SourceKind.REPOSITORY):
        raise SpecInvalid(field="spec.source", why="is no address to download from; write the path to spec.path")
    if not files and (many or source.kind is SourceKind.REPOSITORY):
        files = DEFAULT_FILES
    try:
        file_set(source, files, "")
    except SpecInvalid as error:
        raise SpecInvalid(field=error.field, why=error.why) from None  # the reason is one of Models
    secret = spec.source_secret_ref.name if spec.source_secret_ref else ""
    if len(secret) > 253 or "/" in secret or secret != secret.strip():
        raise SpecInvalid(field="spec.sourceSecretRef.name", why=f"`{secret[:64]}` is not the name of a Secret")
    return DesiredModel(
        name=spec.name,
        source=source,
        sha256=spec.sha256.lower() if spec.sha256 else None,
        cache_key=cache_key(address),
        files=files,
        source_secret=secret,
    )


def _age(adapter: Adapter) -> tuple[str, str]:
    # The API server writes all times in one format, so that texts compare as times do.
    return adapter.created, adapter.resource


def _check_path(path: str) -> None:
    """Refuse what is neither an absolute path nor a repository. Raises SpecInvalid."""
    bad = not path.isprintable() or ".." in path.split("/")
    if bad or not (path.startswith("/") or _REPOSITORY.fullmatch(path)):
        why = "the path is neither an absolute path in the engine's container, such as /adapters/sql, nor a repository"
        raise SpecInvalid(field="spec.path", why=f"{why}, such as org/adapter")
