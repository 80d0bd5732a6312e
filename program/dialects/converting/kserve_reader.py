"""Reads KServe's LLMInferenceService into a description. Pure.

Base configs from the files are merged as KServe merges them. Presets are not read, because users do not write them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired import keys
from program.desired.errors import NotYet, SpecInvalid
from program.dialects.converting import scaling
from program.dialects.converting.arguments import (
    ADAPTER_LIMITS,
    parallel_arguments,
    split_adapters,
    split_draft,
    without_gpus,
)
from program.dialects.converting.description import Description, Engine, Loss, Source, Weights
from program.dialects.converting.fields import Fields, kept_metadata
from program.dialects.converting.pods import (
    POD_FIELDS,
    PROBES,
    RESOURCES,
    amounts_of,
    check_pod,
    engine_of_container,
    split_shared_memory,
    worker_in,
)
from program.dialects.dialect import Lookup
from program.dialects.kserve.configuration.merge import merged
from program.dialects.kserve.conversion import to_hub
from program.dialects.kserve.schema.validation import check

NAME = "kserve"
MODELS = "/mnt/models"
PORT = 8000
MAIN = "main"
ROOT_ALLOWED = {"runAsNonRoot": False}
"""Allows root again, which the presets forbid, because other engines' images do not name their user."""
BRACES = "{{`{{`}}"
"""Two braces, escaped for KServe's templates."""
_MARK = "\0"


def read_kserve(cr: Json, look: Lookup) -> Description:
    """Describe an LLMInferenceService. Raises SpecInvalid, and NotYet for a base config that is not among the files."""
    hub = to_hub(cr)
    spec, losses = _with_bases(hub, look)
    check({**hub, "spec": spec})
    for part in ("template", "worker"):
        check_pod(spec.get(part), field=f"spec.{part}")
    fields = Fields({**hub, "spec": spec}, dialect="KServe")
    labels, annotations, lost = kept_metadata(hub, fields.document)
    containers: list[Json] = fields.peek("template", "containers") or []
    at = next((n for n, each in enumerate(containers) if each.get("name") == MAIN), None)
    main: dict[str, Any] = containers[at] if at is not None else {}
    path: tuple[str | int, ...] = ("template", "containers", at if at is not None else 0)
    if at is not None:
        for name in ("name", "image", "command", "args", "env", "volumeMounts", "resources", "securityContext"):
            fields.read(*path, name)
        for probe in PROBES:
            fields.read(*path, f"{probe}Probe")
    engine, command, arguments = engine_of_container(main)
    requests, limits, gpus, resource, strange = amounts_of(main.get("resources") or {})
    words = [*parallel_arguments(engine, fields), *_lora_limits(engine, fields), *arguments.rest]
    args, loaded = split_adapters(engine, without_gpus(engine, words, gpus))
    where = f"spec.template.containers[{path[2]}]"
    strange_losses = tuple(
        Loss(fields.document, f"{where}.resources.{name}", "other dialects have no such resource") for name in strange
    )
    size = fields.peek("parallelism", "pipeline")
    chosen = annotations.pop(keys.ANNOTATION_MODEL_FILE, "")
    opened = f"{MODELS}/{chosen}" if chosen else arguments.model
    source = _source(str(fields.read("model", "uri") or ""), opened)
    for index, adapter in enumerate(fields.peek("model", "lora", "adapters") or ()):
        fields.read("model", "lora", "adapters", index, "name")
        fields.read("model", "lora", "adapters", index, "uri")
        loaded += (Weights(name=str(adapter.get("name")), source=_source(str(adapter.get("uri") or ""), "")),)
    worker = None
    if isinstance(size, int) and size > 1 and main.get("command"):
        worker = worker_in(fields, "worker", container=MAIN, leader=engine, source=source, dialect=NAME)
    if worker is not None:
        fields.read("parallelism", "pipeline")
    draft = ""
    if engine == "vllm":
        args, draft = split_draft(args)
    pod = {each: fields.read("template", each) for each in POD_FIELDS}
    mounted = split_shared_memory(pod["volumes"], main.get("volumeMounts"))
    pod["volumes"] = list(mounted.volumes)
    replicas = fields.read("replicas")
    if replicas is None:
        replicas = fields.peek("scaling", "minReplicas") or 1
    name = str(hub["metadata"]["name"])
    names = (arguments.served_name, *arguments.aliases) if engine in ("vllm", "sglang") else ()
    if any(mark in each for each in names for mark in ("{{", "$(")) or not arguments.served_name:
        names = ()  # only KServe and the pod can replace these templates
    model_name = fields.read("model", "name")
    return Description(
        document=fields.document,
        dialect=NAME,
        name=name,
        namespace=str(hub["metadata"].get("namespace") or "default"),
        source=source,
        engine=engine,
        labels=labels,
        annotations=annotations,
        model_name=str(model_name or name),
        served_name=(names or (str(model_name or name),))[0] if engine in ("vllm", "sglang") else "",
        aliases=names[1:],
        image=str(main.get("image") or ""),
        command=command,
        args=tuple(args),
        env=tuple(main.get("env") or ()),
        requests=requests,
        limits=limits,
        gpus=gpus,
        gpu_resource=resource,
        probes={probe: found for probe in PROBES if (found := main.get(f"{probe}Probe"))},
        replicas=int(replicas),
        worker=worker,
        group_size=size if worker is not None else 0,
        scaling=scaling.from_kserve(fields),
        adapters=loaded,
        draft=_draft(draft),
        pod={each: value for each, value in pod.items() if value},
        security=security if (security := main.get("securityContext") or {}) != ROOT_ALLOWED else {},
        volume_mounts=mounted.mounts,
        shared_memory=mounted.size,
        port=PORT if engine == "generic" else 0,
        pod_labels=fields.read("labels") or {},
        pod_annotations=fields.read("annotations") or {},
        origins={
            "engine": f"{where}.command",
            "source": "spec.model.uri",
            "model_name": "spec.model.name",
            "served_name": f"{where}.args" if names else "spec.model.name",
            "aliases": f"{where}.args",
            "adapters": "spec.model.lora.adapters",
            "draft": f"{where}.args",
            "replicas": "spec.replicas",
            "worker": "spec.worker",
            "group_size": "spec.parallelism.pipeline",
            "scaling": "spec.scaling",
            "shared_memory": "spec.template.volumes",
            "port": where,
            "pod_labels": "spec.labels",
            "pod_annotations": "spec.annotations",
            "labels": "metadata.labels",
            "annotations": "metadata.annotations",
            "security": f"{where}.securityContext",
            "volume_mounts": f"{where}.volumeMounts",
            "gpus": f"{where}.resources.limits",
            "probes": where,
            **{each: f"{where}.{each}" for each in ("image", "command", "args", "env")},
            **{f"probes.{probe}": f"{where}.{probe}Probe" for probe in PROBES},
            **{f"requests.{each}": f"{where}.resources.requests.{each}" for each in RESOURCES},
            **{f"limits.{each}": f"{where}.resources.limits.{each}" for each in RESOURCES},
            **{f"pod.{each}": f"spec.template.{each}" for each in POD_FIELDS},
        },
        losses=(*losses, *lost, *strange_losses, *fields.unread()),
    )


def _draft(model: str) -> Weights | None:
    """Return the draft model that vLLM fetches itself."""
    return Weights(name=model.rpartition("/")[2], source=Source(kind="hub", address=model)) if model else None


def _with_bases(cr: Json, look: Lookup) -> tuple[Json, tuple[Loss, ...]]:
    """Merge the service's own spec over its base configs."""
    written = cr.get("spec") or {}
    if not isinstance(written, dict):
        raise SpecInvalid(field="spec", why="is not an object")
    own = dict(written)
    namespace = str(cr["metadata"].get("namespace") or "default")
    laid: Json = {}
    references = own.pop("baseRefs", None) or []
    if not isinstance(references, list) or not all(isinstance(each, dict) for each in references):
        raise SpecInvalid(field="spec.baseRefs", why="is not a list of objects")
    for index, reference in enumerate(references):
        name = str(reference.get("name") or "")
        found = look(kinds.LLM_CONFIGS, namespace, name) or look(kinds.LLM_CONFIGS, "kserve", name)
        if found is None:
            raise NotYet(
                reason="DependencyMissing",
                field=f"spec.baseRefs[{index}].name",
                why=f"LLMInferenceServiceConfig `{name}` is not among the files",
            )
        base = dict(to_hub(found).get("spec") or {})
        laid = merged(laid, base, field=f"LLMInferenceServiceConfig {name}: spec")
    spec = each_text(merged(laid, own), lambda text: text.replace(BRACES, _MARK))
    document = f"LLMInferenceService `{cr['metadata']['name']}`"
    templated = sorted(_templated(spec, "spec"))
    spec = each_text(spec, lambda text: text.replace(_MARK, "{{"))
    return spec, tuple(Loss(document, path, "is a template, and only KServe fills templates in") for path in templated)


def _templated(value: Any, path: str) -> list[str]:
    if isinstance(value, dict):
        return [each for name, member in value.items() for each in _templated(member, f"{path}.{name}")]
    if isinstance(value, list):
        return [each for index, member in enumerate(value) for each in _templated(member, f"{path}[{index}]")]
    return [path] if isinstance(value, str) and "{{" in value else []


def _lora_limits(engine: Engine, fields: Fields) -> list[str]:
    """Return the LoRA limits as vLLM's arguments."""
    told = [(flag, fields.peek("model", "lora", name)) for name, flag in ADAPTER_LIMITS.items()]
    if engine != "vllm":
        return []
    for name in ADAPTER_LIMITS:
        fields.read("model", "lora", name)
    return [word for flag, number in told if number is not None for word in (flag, str(number))]


def _source(uri: str, opened: str) -> Source:
    scheme, _, rest = uri.partition("://")
    file = opened.removeprefix(f"{MODELS}/") if opened.startswith(f"{MODELS}/") else ""
    match scheme:
        case "hf":
            repository, _, revision = rest.partition(":")
            return Source(kind="hub", address=repository, revision=revision, file=file)
        case "s3":
            return Source(kind="s3", address=rest, file=file)
        case "pvc":
            return Source(kind="pvc", address=f"{rest.rstrip('/')}/{file}" if file else rest)
        case "http" | "https":
            return Source(kind="http", address=uri)
        case "file":
            return Source(kind="path", address=rest)
        case "oci" | "oci+native":
            return Source(kind="oci", address=rest, file=file)
        case _:
            raise SpecInvalid(field="spec.model.uri", why=f"`{uri[:64]}` is not an address that KServe can fetch from")


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {name: each_text(member, change) for name, member in value.items()}
    if isinstance(value, list):
        return [each_text(member, change) for member in value]
    return change(value) if isinstance(value, str) else value
