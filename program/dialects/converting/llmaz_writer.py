"""Writes llmaz's Playground, OpenModel and BackendRuntime from a description. Pure."""

from __future__ import annotations

import re

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.errors import SpecInvalid
from program.dialects.converting.arguments import DRAFTED, adapter_arguments, with_gpus, without
from program.dialects.converting.description import Scaling, Source, TrackedDescription
from program.dialects.converting.fields import annotations_for_pods, draft_name, metadata_of, moved_probe, on_hosts
from program.dialects.converting.llmaz_reader import PORT
from program.dialects.converting.pods import PROBES, amounts
from program.dialects.llmaz.parse.runtimes import DEFAULT_CONFIG, shipped
from program.dialects.llmaz.schema.common import LONGEST_SERVICE, SERVICE_LABEL

MODELS = "llmaz.io/v1alpha1"
SERVING = "inference.llmaz.io/v1alpha1"
_FLAVOR = "chosen"
"""Name of the one flavor that a model gets if its service chooses nodes."""
_LABEL = re.compile(r"[^a-z0-9-]+")


def write_llmaz(written: TrackedDescription) -> list[Json]:
    """Write OpenModels, a Playground, and a BackendRuntime if none of llmaz's shipped ones is sufficient."""
    d = written.description
    if len(d.name) > LONGEST_SERVICE or not re.fullmatch(SERVICE_LABEL, d.name):
        why = (
            f"is not a valid name with llmaz: Service `{d.name}-lb` needs a lower-case label that begins with a letter"
        )
        raise SpecInvalid(field="metadata.name", why=f"`{d.name}` {why}")
    name = _name(written.shared_name(written.use("model_name") or d.name))
    models = [_open_model(name, d.source, "source")]
    selector = written.use("pod.nodeSelector")
    if selector and on_hosts(d.annotations):
        written.add_loss(
            "pod.nodeSelector", f"chooses no host with llmaz; use annotation {keys.ANNOTATION_HOST_SELECTOR}"
        )
    elif selector:
        models[0]["spec"]["inferenceConfig"] = {"flavors": [{"name": _FLAVOR, "nodeSelector": dict(selector)}]}
    for attribute in ("model_format", "quantization"):
        written.use(attribute)  # the weights contain both
    claim: Json = {"modelClaim": {"modelName": name}}
    draft = written.use("draft")
    if draft is not None and d.engine in ("llamacpp", "vllm"):
        split_draft = draft_name(_name(written.shared_name(draft.name)), name, same=draft.source == d.source)
        both = [{"name": name, "role": "main"}, {"name": split_draft, "role": "draft"}]
        claim = {"modelClaims": {"models": both}}
        if split_draft != name:
            models.append(_open_model(split_draft, draft.source, "draft"))
    elif draft is not None:
        written.add_loss("draft", f"llmaz starts no draft with {d.engine}")
    config, runtimes = _runtime(written, name)
    spec: Json = {"replicas": written.use("replicas"), **claim, "backendRuntimeConfig": config}
    scaling = written.use("scaling")
    if scaling is not None:
        spec["elasticConfig"] = _elastic(written, scaling)
    port = written.use("port")
    if port not in (0, PORT):
        written.add_loss(
            "port",
            f"llmaz connects to its pods at port {PORT}, and this server listens on port {port}; make it listen on "
            f"{PORT}",
        )
    metadata = metadata_of(written, has_effect=annotations_for_pods(d.annotations))
    metadata["name"] = d.name
    playground = {"apiVersion": SERVING, "kind": "Playground", "metadata": metadata, "spec": spec}
    return [*models, *runtimes, playground]


def _name(text: str) -> str:
    """Return a DNS label for a model's name."""
    return _LABEL.sub("-", text.lower()).strip("-")[:63].strip("-") or "model"


def _open_model(name: str, source: Source, field: str) -> Json:
    spec: Json = {"familyName": name, "source": _written_source(source, field)}
    return {"apiVersion": MODELS, "kind": "OpenModel", "metadata": {"name": name}, "spec": spec}


def _written_source(source: Source, field: str) -> Json:
    match source.kind:
        case "hub" | "modelscope":
            hub: Json = {"modelID": source.address}
            if source.kind == "modelscope":
                hub["name"] = "ModelScope"
            if source.files:
                hub["allowPatterns"] = list(source.files)
            elif source.file:
                hub["filename"] = source.file
            if source.revision:
                hub["revision"] = source.revision
            return {"modelHub": hub}
        case "s3" | "oss" | "gcs":
            path = f"{source.address.rstrip('/')}/{source.file}" if source.file else source.address
            return {"uri": f"{source.kind}://{path}"}
        case "path":
            return {"uri": f"host://{source.address}"}
        case "ollama":
            return {"uri": f"ollama://{source.address}"}
        case _:
            raise SpecInvalid(
                field=field, why=f"llmaz cannot fetch `{source.kind}` addresses such as `{source.address}`"
            )


def _runtime(written: TrackedDescription, model: str) -> tuple[Json, list[Json]]:
    """Return the Playground's backend: a shipped runtime, or a new one for the service with its document."""
    d = written.description
    image, command = written.use("image"), written.use("command")
    # A host uses an installed program for each engine that it knows.
    if on_hosts(d.annotations) and d.engine != "generic":
        image, command = "", ()
    args = _arguments(written, model)
    probes = {each: probe for each in PROBES if (probe := written.use(f"probes.{each}"))}
    ours = shipped().get(d.engine)
    repository, _, tag = image.rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "latest")
    config: Json = {}
    made: list[Json] = []
    if ours is not None and not command and not probes and (not image or repository == ours.spec["image"]):
        config["backendName"] = ours.name
        if image:
            config["version"] = tag
        if args:
            config["args"] = args
    else:
        if not image and ours is None:
            raise SpecInvalid(field="image", why="llmaz brings no BackendRuntime for it; name an image")
        name = _name(written.shared_name(f"{d.name}-runtime"))
        spec: Json = dict(ours.spec) if ours is not None else {}
        if image:
            spec["image"], spec["version"] = repository, tag
        if command:
            spec["command"] = list(command)
        if ours is None:
            spec["recommendedConfigs"] = [{"name": DEFAULT_CONFIG, "args": args}]
        elif args:
            config["args"] = args
        for each, probe in probes.items():
            spec[f"{each}Probe"] = moved_probe(probe, PORT) if d.engine != "generic" else probe
        config["backendName"] = name
        made.append({"apiVersion": SERVING, "kind": "BackendRuntime", "metadata": {"name": name}, "spec": spec})
    envs = list(written.use("env"))
    if token := written.use("hub_token"):
        written.add_loss("hub_token", "llmaz reads the Secret `modelhub-secret`, key HF_TOKEN; put the token there")
        envs = [entry for entry in envs if entry["name"] not in ("HF_TOKEN",)] if token else envs
    if envs:
        config["envs"] = envs
    if resources := amounts(written):
        config["resources"] = resources
    if size := written.use("shared_memory"):
        config["sharedMemorySize"] = size
    return config, made


def _arguments(written: TrackedDescription, model: str) -> list[str]:
    d = written.description
    args, served = list(written.use("args")), written.use("served_name")
    if d.draft is not None and d.engine == "vllm":
        args, found = without(args, DRAFTED)
        if found.get(DRAFTED) not in (None, "5"):
            written.add_loss("args", "with llmaz, the BackendRuntime sets the number of drafted tokens")
    if d.draft is not None and d.engine == "llamacpp":
        args = without(args, "--spec-type")[0]
    args += adapter_arguments(written, target="llmaz")
    aliases = written.use("aliases") if d.engine == "vllm" else ()
    if served and (served != model or aliases) and d.engine in ("vllm", "sglang"):
        args += ["--served-model-name", served, *aliases]
    if d.engine == "ollama" and args:
        written.add_loss("args", "Ollama takes no arguments")
        return []
    return with_gpus(d.engine, args, d.gpus)


def _elastic(written: TrackedDescription, scaling: Scaling) -> Json:
    if scaling.min_replicas < 1:
        written.add_loss("scaling", "llmaz keeps at least one replica")
    found: Json = {"minReplicas": max(1, scaling.min_replicas), "maxReplicas": scaling.max_replicas}
    hpa: Json = {}
    if scaling.metrics:
        hpa["metrics"] = list(scaling.metrics)
    if scaling.behavior:
        hpa["behavior"] = scaling.behavior
    if hpa.get("metrics"):
        found["scaleTrigger"] = {"hpa": hpa}
    else:
        written.add_loss("scaling", "names no metric, and llmaz's runtimes have no default metric")
    return found
