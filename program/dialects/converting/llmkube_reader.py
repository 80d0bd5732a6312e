"""Reads LLMKube's InferenceService, with its Model, into a description. Pure."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired import keys
from program.desired.engines import Generic, Sglang
from program.desired.errors import NotYet, SpecInvalid
from program.desired.hub import HUB_HOSTS
from program.desired.model import DesiredModel, SourceKind
from program.desired.service import DesiredService
from program.dialects.converting import scaling
from program.dialects.converting.arguments import split_adapters, split_arguments, split_draft, without, without_gpus
from program.dialects.converting.description import Description, Source, Weights
from program.dialects.converting.fields import Fields, kept_metadata, on_hosts
from program.dialects.converting.llmkube_writer import CONFIGS, POD_FIELDS
from program.dialects.converting.pods import PROBES, split_shared_memory
from program.dialects.dialect import Lookup
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import draft_reference, parse_service
from program.dialects.llmkube.unsupported.service import fields_of_runtime
from program.runtimes import runtime_for
from program.runtimes.base import served_name_option

NAME = "llmkube"


def read_llmkube(cr: Json, look: Lookup) -> Description:
    """Describe an InferenceService. Raises SpecInvalid and NotYet as its dialect does."""
    fields = Fields(cr, dialect="LLMKube")
    metadata = cr["metadata"]
    namespace = str(metadata.get("namespace") or "default")
    reference = str(fields.read("modelRef"))
    found = look(kinds.MODELS, namespace, reference)
    if found is None:
        raise NotYet(reason="DependencyMissing", field="spec.modelRef", why=f"there is no Model `{reference}`")
    model_fields = Fields(found, dialect="LLMKube")
    model = _model(found)
    draft = _draft(cr, namespace, look)
    desired = parse_service(cr, model, draft=draft)
    engine = desired.engine
    if engine.kind not in ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "ollama", "generic"):
        raise SpecInvalid(field="spec.runtime", why=f"only LLMKube has engine {engine.kind}")
    for name in ("runtime", "replicas", "image", "command", "env", "suspend", *fields_of_runtime(engine.kind)):
        fields.read(name)
    for name in ("source", "files", "format", "quantization", "sha256", "resources"):
        model_fields.read(name)
    for name in ("enabled", "count", "vendor", "resourceName"):
        model_fields.read("hardware", "gpu", name)
    model_fields.read("hardware", "accelerator")
    labels, annotations, lost = kept_metadata(cr, fields.document)
    if model.accelerator == "metal" and not annotations.get(keys.ANNOTATION_HOST):
        annotations.setdefault(keys.ANNOTATION_HOST_SELECTOR, "herdsman.dev/accelerator=metal")
    if served_name_option(desired, runtime_for(engine).name_flags) and not on_hosts(annotations):
        annotations.pop(keys.ANNOTATION_SERVED_NAME, None)  # the arguments contain it
    arguments = split_arguments(engine.kind, _argv(desired))
    gpus = desired.gpu.count if desired.gpu else 0
    # The only argument of Ollama is the model's name.
    rest = arguments.rest if engine.kind != "ollama" else ()
    args, loaded = split_adapters(engine.kind, without_gpus(engine.kind, rest, gpus))
    if model.mmproj:
        args = without(args, "--mmproj")[0]
    if engine.kind == "vllm" and draft is not None:
        args = split_draft(args)[0]
    if engine.kind == "llamacpp" and draft is not None:
        args = _plain_draft(args)
    served = engine.served_model_name if isinstance(engine, Sglang) else ""
    resources = {name: fields.read("resources", name) for name in ("cpu", "memory", "hostMemory", "ephemeralStorage")}
    fields.read("resources", "gpu")
    requests = {
        "cpu": resources["cpu"],
        "memory": resources["hostMemory"] or resources["memory"],
        "ephemeral-storage": resources["ephemeralStorage"],
    }
    token = getattr(engine, "hf_token", None)
    if config := CONFIGS.get(engine.kind):
        fields.read(config)
    fields.read("contextSize")
    fields.read("probeOverrides")
    pod = {name: fields.read(wire) for name, wire in POD_FIELDS.items()}
    mounted = split_shared_memory(pod["volumes"], fields.read("extraVolumeMounts"))
    pod["volumes"] = list(mounted.volumes)
    return Description(
        document=fields.document,
        dialect=NAME,
        name=str(metadata["name"]),
        namespace=namespace,
        source=_source_of(model),
        engine=engine.kind,
        labels=labels,
        annotations=annotations,
        model_name=model.name,
        served_name=arguments.served_name or served,
        aliases=arguments.aliases,
        model_format=str(model.format.value),
        quantization=model.quantization,
        sha256=model.sha256 or "",
        image=desired.image or "",
        command=desired.command,
        args=tuple(args),
        adapters=loaded,
        env=desired.pod.env,
        hub_token=token.model_dump(exclude_none=True) if token is not None else None,
        requests={name: str(value) for name, value in requests.items() if value},
        limits={"ephemeral-storage": resources["ephemeralStorage"]} if resources["ephemeralStorage"] else {},
        gpus=desired.gpu.count if desired.gpu and not desired.gpu.claims else 0,
        gpu_resource=desired.gpu.resource_name if desired.gpu and not desired.gpu.claims else "",
        probes={name: probe for name in PROBES if (probe := fields.peek("probeOverrides", name))},
        replicas=0 if desired.suspended else fields.peek("replicas") if fields.peek("replicas") is not None else 1,
        scaling=scaling.from_llmkube(fields, engine),
        draft=Weights(name=draft.name, source=_source_of(draft)) if draft is not None else None,
        pod={name: value for name, value in pod.items() if value},
        security=fields.read("securityContext") or {},
        volume_mounts=mounted.mounts,
        shared_memory=mounted.size,
        port=_port(fields) if engine.kind == "generic" else 0,
        pod_labels=fields.read("podLabels") or {},
        pod_annotations=fields.read("podAnnotations") or {},
        origins={
            **_ORIGINS,
            "engine": "spec.runtime",
            "source": f"{model_fields.document} spec.source",
            "model_format": f"{model_fields.document} spec.format",
            "quantization": f"{model_fields.document} spec.quantization",
            "sha256": f"{model_fields.document} spec.sha256",
            "hub_token": f"spec.{CONFIGS.get(engine.kind, '')}.hfTokenSecretRef",
            **{f"pod.{name}": f"spec.{wire}" for name, wire in POD_FIELDS.items()},
        },
        losses=(*lost, *fields.unread(), *model_fields.unread()),
    )


_ORIGINS = {
    "args": "spec.extraArgs",
    "command": "spec.command",
    "image": "spec.image",
    "env": "spec.env",
    "requests": "spec.resources",
    "limits": "spec.resources",
    "requests.ephemeral-storage": "spec.resources.ephemeralStorage",
    "limits.ephemeral-storage": "spec.resources.ephemeralStorage",
    "gpus": "spec.resources.gpu",
    "probes": "spec.probeOverrides",
    "probes.startup": "spec.probeOverrides.startup",
    "probes.liveness": "spec.probeOverrides.liveness",
    "probes.readiness": "spec.probeOverrides.readiness",
    "replicas": "spec.replicas",
    "scaling": "spec.autoscaling",
    "draft": "spec.speculativeDecoding.draftModelRef",
    "adapters": "spec.extraArgs",
    "served_name": "spec.extraArgs",
    "aliases": "spec.extraArgs",
    "security": "spec.securityContext",
    "volume_mounts": "spec.extraVolumeMounts",
    "shared_memory": "spec.extraVolumes",
    "port": "spec.containerPort",
    "pod_labels": "spec.podLabels",
    "pod_annotations": "spec.podAnnotations",
    "labels": "metadata.labels",
    "annotations": "metadata.annotations",
}


def _port(fields: Fields) -> int:
    """Return the port of a generic server."""
    return int(fields.read("containerPort") or fields.peek("endpoint", "port") or 8080)


def _plain_draft(arguments: list[str]) -> list[str]:
    """Remove the arguments that every draft of llama.cpp has."""
    rest, found = without(arguments, "--spec-type")
    return rest if found.get("--spec-type") == "draft-simple" else arguments


def _draft(cr: Json, namespace: str, look: Lookup) -> DesiredModel | None:
    name = draft_reference(cr)
    found = look(kinds.MODELS, namespace, name) if name else None
    return _model(found) if found is not None else None


def _model(cr: Json) -> DesiredModel:
    try:
        return model_of(cr)
    except SpecInvalid as error:
        raise SpecInvalid(field=f"Model `{cr['metadata']['name']}` {error.field}", why=error.why) from None


def _argv(desired: DesiredService) -> list[str]:
    if isinstance(desired.engine, Generic):
        return list(desired.engine.args)
    runtime = runtime_for(desired.engine)
    return runtime.argv(desired, model_path="/model", port=0, host="::", draft_path="/draft")


def _source_of(model: DesiredModel) -> Source:
    source, files = model.source, model.files
    first = files[0] if files else ""
    match source.kind:
        case SourceKind.REPOSITORY if source.repository.startswith("library/"):
            name = source.repository.removeprefix("library/")
            return Source(kind="ollama", address=f"{name}:{source.revision}" if source.revision else name)
        case SourceKind.REPOSITORY:
            named = first if len(files) == 1 or first.endswith(".gguf") else ""
            several = files if len(files) > 1 else ()
            return Source(kind="hub", address=source.repository, revision=source.revision, file=named, files=several)
        case SourceKind.HTTP if hub := hub_file(source.download_address):
            return hub
        case SourceKind.HTTP:
            return Source(kind="http", address=source.address)
        case SourceKind.S3:
            return Source(kind="s3", address=source.address.partition("://")[2], file=first, files=files[1:] and files)
        case SourceKind.CLAIM:
            return Source(kind="pvc", address=f"{source.claim}/{source.path.lstrip('/')}")
        case _:
            return Source(kind="path", address=source.path)


def hub_file(url: str) -> Source | None:
    """Return the file of a repository that a URL names, with its parts decoded; None for any other URL."""
    parts = urlsplit(url)
    names = [unquote(each) for each in parts.path.split("/")[1:]]
    at_hub = parts.scheme == "https" and parts.netloc in HUB_HOSTS
    # A file's page links to it with `?download=true`, which changes only the headers of the answer.
    if not at_hub or len(names) < 5 or names[2] != "resolve" or parts.query not in ("", "download=true"):
        return None
    # A slash is allowed in a revision, such as refs/pr/1. In another part it would change the path.
    if parts.fragment or "" in names or any("/" in each for each in (*names[:2], *names[4:])):
        return None
    revision = "" if names[3] == "main" else names[3]
    return Source(kind="hub", address="/".join(names[:2]), revision=revision, file="/".join(names[4:]))
