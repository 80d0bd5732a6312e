"""llmaz's OpenModel, Playground and BackendRuntime, read into a description and written from one. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from kubeapi import kinds
from program.desired import keys
from program.desired.base import JsonObject
from program.desired.errors import SpecInvalid
from program.dialects.converting.arguments import DRAFTED, taken_apart, with_gpus, without, without_gpus
from program.dialects.converting.containers import amounts
from program.dialects.converting.described import Described, Engine, Loss, Scaling, Source, Weights, Written
from program.dialects.converting.fields import Fields
from program.dialects.converting.shared import effect_on_described_pods, kept_metadata, metadata_of, moved_probe
from program.dialects.dialect import Lookup
from program.dialects.llmaz.backend_runtimes import DEFAULT_CONFIG, SPECULATIVE_CONFIG, Runtime, find_runtime, shipped
from program.dialects.llmaz.common_schema import LONGEST_SERVICE, SERVICE_LABEL
from program.dialects.llmaz.flavors import Choice, choose, with_affinity
from program.dialects.llmaz.open_models import Model, claims_of, find_models
from program.dialects.llmaz.playground_schema import PlaygroundSpec
from program.dialects.llmaz.playgrounds import DIALECT
from program.dialects.llmaz.template_variables import fill, variables_of
from program.dialects.reading import read, without_nulls

NAME = "llmaz"
MODELS = "llmaz.io/v1alpha1"
SERVING = "inference.llmaz.io/v1alpha1"
PORT = 8080
_PROBES = ("startup", "liveness", "readiness")
_GLOB = re.compile(r"[*?\[\]]")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_LABEL = re.compile(r"[^a-z0-9-]+")


def read_llmaz(cr: JsonObject, look: Lookup) -> Described:
    """Describe a Playground with its models and its runtime. Raises SpecInvalid and NotYet as its dialect does."""
    DIALECT.parse(cr, look)
    fields = Fields(cr, dialect="llmaz")
    spec = read(PlaygroundSpec, without_nulls(cr.get("spec") or {}), field="spec")
    labels, annotations, lost = kept_metadata(cr, fields.document)
    claims, asked, flavor_field = claims_of(spec.model_claim, spec.model_claims)
    fields.take("modelClaim")
    fields.take("modelClaims")
    models = find_models(claims, look)
    config: dict[str, Any] = fields.peek("backendRuntimeConfig") or {}
    runtime = find_runtime(config.get("backendName") or "vllm", look)
    custom = _is_custom(runtime)
    for name in ("backendName", "configName", "version", "args", "envs", "resources", "sharedMemorySize"):
        fields.take("backendRuntimeConfig", name)
    automatic = SPECULATIVE_CONFIG if len(models) > 1 else DEFAULT_CONFIG
    recommended = runtime.config(config.get("configName") or automatic, chosen=bool(config.get("configName")))
    choice = choose(models[0], asked, field=flavor_field)
    variables = variables_of(models, choice.params, fetched=True)
    preset = fill(recommended.get("args") or [], variables, field=f"BackendRuntime `{runtime.name}`")
    own = fill(config.get("args") or [], variables, field="spec.backendRuntimeConfig.args")
    engine = _engine_of(runtime)
    arguments = taken_apart(engine, [*preset, *own])
    resources = _merged(recommended.get("resources") or {}, config.get("resources") or {})
    limits = {**(resources.get("limits") or {}), **choice.limits}
    requests = {**(resources.get("requests") or {}), **choice.limits}
    gpu = next((name for name in limits if "/" in name), "")
    gpus = int(limits[gpu]) if gpu and str(limits[gpu]).isdecimal() else 0
    others = [name for name in limits if name not in _RESOURCES and name != gpu]
    losses = [Loss(fields.document, flavor_field, f"other dialects have no resource `{name}`") for name in others]
    losses += [loss for model in models for loss in losses_of_model(model, look)]
    if custom:
        losses += _of_runtime(runtime)
    name = str(cr["metadata"]["name"])
    source = source_of(models[0])
    if (chosen := annotations.pop(keys.ANNOTATION_MODEL_FILE, "")) and not source.file:
        source = replace(source, file=chosen)
    return Described(
        document=fields.document,
        dialect=NAME,
        name=name,
        namespace=str(cr["metadata"].get("namespace") or "default"),
        source=source,
        engine=engine,
        labels=labels,
        annotations=annotations,
        model_name=models[0].name,
        served_name=arguments.served_name,
        image=_image(runtime, config.get("version"), custom),
        command=tuple(runtime.spec.get("command") or ()) if custom and not _usual(runtime, engine) else (),
        args=tuple(without_gpus(engine, arguments.rest, gpus)),
        env=_env(runtime.spec.get("envs") if custom else (), config.get("envs") or ()),
        requests={each: str(amount) for each, amount in requests.items() if each in _RESOURCES},
        limits={each: str(amount) for each, amount in limits.items() if each in _RESOURCES},
        gpus=gpus,
        gpu_resource=gpu,
        shared_memory=str(config.get("sharedMemorySize") or recommended.get("sharedMemorySize") or ""),
        probes={each: p for each in _PROBES if custom and (p := runtime.spec.get(f"{each}Probe"))},
        replicas=spec.replicas if fields.take("replicas") is not None else 1,
        scaling=_scaling(fields, recommended),
        draft=Weights(name=models[1].name, source=source_of(models[1])) if len(models) > 1 else None,
        pod=nodes_of({}, choice),
        origins={
            "engine": "spec.backendRuntimeConfig.backendName",
            "source": claims[0].field,
            "model_name": claims[0].field,
            "draft": claims[-1].field,
            "replicas": "spec.replicas",
            "scaling": "spec.elasticConfig",
            "env": "spec.backendRuntimeConfig.envs",
            "args": "spec.backendRuntimeConfig.args",
            "image": "spec.backendRuntimeConfig.version",
            "command": f"BackendRuntime `{runtime.name}` spec.command",
            "probes": f"BackendRuntime `{runtime.name}` spec",
            "shared_memory": "spec.backendRuntimeConfig.sharedMemorySize",
            "requests": "spec.backendRuntimeConfig.resources.requests",
            "limits": "spec.backendRuntimeConfig.resources.limits",
            "gpus": flavor_field,
            "pod": flavor_field,
            "labels": "metadata.labels",
            "annotations": "metadata.annotations",
            **{
                f"{part}.{each}": f"spec.backendRuntimeConfig.resources.{part}.{each}"
                for part in ("requests", "limits")
                for each in _RESOURCES
            },
        },
        losses=(*lost, *losses, *fields.left()),
    )


def _is_custom(runtime: Runtime) -> bool:
    """Tell a BackendRuntime of the files from those that every installation of llmaz has."""
    ours = shipped().get(runtime.name)
    return ours is None or ours.spec != runtime.spec


def _engine_of(runtime: Runtime) -> Engine:
    name = runtime.engine
    command = runtime.spec.get("command") or ("",)
    if name != "ollama" and command[0].rpartition("/")[2] in ("sh", "bash"):
        return "generic"
    return name if name in ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "ollama") else "generic"  # type: ignore[return-value]


def _usual(runtime: Runtime, engine: Engine) -> bool:
    """Tell whether a runtime starts its engine as the one that llmaz ships does."""
    ours = shipped().get(engine)
    return ours is not None and ours.spec.get("command") == runtime.spec.get("command")


def _image(runtime: Runtime, version: Any, custom: bool) -> str:
    return f"{runtime.spec['image']}:{version or runtime.spec['version']}" if custom or version else ""


def _merged(below: JsonObject, above: JsonObject) -> JsonObject:
    return {part: {**(below.get(part) or {}), **(above.get(part) or {})} for part in ("requests", "limits")}


def _env(below: Any, above: Any) -> tuple[JsonObject, ...]:
    return tuple({entry["name"]: entry for entry in (*(below or ()), *above)}.values())


def nodes_of(pod: JsonObject, choice: Choice) -> JsonObject:
    """Add the nodes of the chosen flavors to fields of a pod: the selector of one, or a preference among several."""
    if len(choice.flavors) != 1:
        return with_affinity(pod, choice)
    selector = {**choice.flavors[0].node_selector, **(pod.get("nodeSelector") or {})}
    return {**pod, "nodeSelector": selector} if selector else pod


def losses_of_model(model: Model, look: Lookup) -> list[Loss]:
    """Name what of an OpenModel only llmaz knows."""
    document, losses = f"OpenModel `{model.name}`", []
    spec = without_nulls((look(kinds.OPEN_MODELS, None, model.name) or {}).get("spec") or {})
    hub = (spec.get("source") or {}).get("modelHub") or {}
    if hub.get("ignorePatterns"):
        losses.append(Loss(document, "spec.source.modelHub.ignorePatterns", "only llmaz has it"))
    if any(_GLOB.search(each) for each in hub.get("allowPatterns") or ()):
        losses.append(Loss(document, "spec.source.modelHub.allowPatterns", "only llmaz fetches by patterns"))
    if any(flavor.params for flavor in model.flavors):
        losses.append(Loss(document, "spec.inferenceConfig.flavors", "their params exist with llmaz only"))
    return losses


def _of_runtime(runtime: Runtime) -> list[Loss]:
    if not runtime.spec.get("lifecycle"):
        return []
    return [Loss(f"BackendRuntime `{runtime.name}`", "spec.lifecycle", "only llmaz has it")]


def source_of(model: Model) -> Source:
    source = model.source
    rest = source.address.partition("://")[2]
    revision = "" if source.revision in ("", "main") else source.revision
    match source.kind:
        case "hub":
            kind = "hub" if source.hub == "Huggingface" else "modelscope"
            patterns = next((e["value"] for e in source.loader or () if e["name"] == "MODEL_ALLOW_PATTERNS"), "")
            files = tuple(p for p in str(patterns).split(",") if p and not _GLOB.search(p))
            return Source(
                kind=kind,  # type: ignore[arg-type]
                address=source.address,
                revision=revision,
                file=source.filename,
                files=files if files and not _GLOB.search(str(patterns)) else (),
            )
        case "host":
            return Source(kind="path", address=source.host_path)
        case _:
            return Source(kind=source.kind, address=rest)


def _scaling(fields: Fields, recommended: JsonObject) -> Scaling | None:
    wish = fields.take("elasticConfig")
    if not wish:
        return None
    hpa = ((wish.get("scaleTrigger") or recommended.get("scaleTrigger") or {}).get("hpa")) or {}
    return Scaling(
        min_replicas=wish.get("minReplicas", 1),
        max_replicas=wish["maxReplicas"],
        metrics=tuple(hpa.get("metrics") or ()),
        behavior=hpa.get("behavior"),
    )


# --- writing ----------------------------------------------------------------------------------------------------------


def write_llmaz(written: Written) -> list[JsonObject]:
    """Write OpenModels, a Playground, and a BackendRuntime where none that llmaz ships will do."""
    d = written.described
    if len(d.name) > LONGEST_SERVICE or not re.fullmatch(SERVICE_LABEL, d.name):
        why = f"is no name for llmaz: Service `{d.name}-lb` needs a lower-case label that begins with a letter"
        raise SpecInvalid(field="metadata.name", why=f"`{d.name}` {why}")
    name = _name(written.take("model_name") or d.name)
    models = [_open_model(name, d.source, "source")]
    for attribute in ("model_format", "quantization"):
        written.take(attribute)  # the weights themselves tell
    claim: JsonObject = {"modelClaim": {"modelName": name}}
    draft = written.take("draft")
    if draft is not None and d.engine in ("llamacpp", "vllm"):
        models.append(_open_model(_name(draft.name), draft.source, "draft"))
        both = [{"name": name, "role": "main"}, {"name": _name(draft.name), "role": "draft"}]
        claim = {"modelClaims": {"models": both}}
    elif draft is not None:
        written.lose("draft", f"llmaz starts no draft with {d.engine}")
    config, runtimes = _runtime(written, name)
    spec: JsonObject = {"replicas": written.take("replicas"), **claim, "backendRuntimeConfig": config}
    scaling = written.take("scaling")
    if scaling is not None:
        spec["elasticConfig"] = _elastic(written, scaling)
    metadata = metadata_of(written, has_effect=effect_on_described_pods(d.annotations))
    metadata["name"] = d.name
    playground = {"apiVersion": SERVING, "kind": "Playground", "metadata": metadata, "spec": spec}
    return [*models, *runtimes, playground]


def _name(text: str) -> str:
    """Make a DNS label of a model's name."""
    return _LABEL.sub("-", text.lower()).strip("-")[:63].strip("-") or "model"


def _open_model(name: str, source: Source, field: str) -> JsonObject:
    spec: JsonObject = {"familyName": name, "source": _written_source(source, field)}
    return {"apiVersion": MODELS, "kind": "OpenModel", "metadata": {"name": name}, "spec": spec}


def _written_source(source: Source, field: str) -> JsonObject:
    match source.kind:
        case "hub" | "modelscope":
            hub: JsonObject = {"modelID": source.address}
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


def _runtime(written: Written, model: str) -> tuple[JsonObject, list[JsonObject]]:
    """Choose the backend: a shipped one by its name, or one of the service's own beside it."""
    d = written.described
    image, command = written.take("image"), written.take("command")
    args = _arguments(written, model)
    probes = {each: probe for each in _PROBES if (probe := written.take(f"probes.{each}"))}
    ours = shipped().get(d.engine)
    repository, _, tag = image.rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "latest")
    config: JsonObject = {}
    made: list[JsonObject] = []
    if ours is not None and not command and not probes and (not image or repository == ours.spec["image"]):
        config["backendName"] = ours.name
        if image:
            config["version"] = tag
        if args:
            config["args"] = args
    else:
        if not image and ours is None:
            raise SpecInvalid(field="image", why="llmaz has no runtime of its own for it; name an image")
        name = _name(f"{d.name}-runtime")
        spec: JsonObject = dict(ours.spec) if ours is not None else {}
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
    envs = list(written.take("env"))
    if token := written.take("hub_token"):
        written.lose("hub_token", "llmaz reads the Secret `modelhub-secret`, key HF_TOKEN; put the token there")
        envs = [entry for entry in envs if entry["name"] not in ("HF_TOKEN",)] if token else envs
    if envs:
        config["envs"] = envs
    if resources := amounts(written):
        config["resources"] = resources
    if size := written.take("shared_memory"):
        config["sharedMemorySize"] = size
    return config, made


def _arguments(written: Written, model: str) -> list[str]:
    d = written.described
    args, served = list(written.take("args")), written.take("served_name")
    if d.draft is not None and d.engine == "vllm":
        args, found = without(args, DRAFTED)
        if found.get(DRAFTED) not in (None, "5"):
            written.lose("args", "how many tokens are drafted is the BackendRuntime's to say")
    if d.draft is not None and d.engine == "llamacpp":
        args = without(args, "--spec-type")[0]
    if served and served != model and d.engine in ("vllm", "sglang"):
        args += ["--served-model-name", served]
    if d.engine == "ollama" and args:
        written.lose("args", "Ollama takes no arguments")
        return []
    return with_gpus(d.engine, args, d.gpus)


def _elastic(written: Written, scaling: Scaling) -> JsonObject:
    if scaling.min_replicas < 1:
        written.lose("scaling", "llmaz keeps at least one replica")
    found: JsonObject = {"minReplicas": max(1, scaling.min_replicas), "maxReplicas": scaling.max_replicas}
    hpa: JsonObject = {}
    if scaling.metrics:
        hpa["metrics"] = list(scaling.metrics)
    if scaling.behavior:
        hpa["behavior"] = scaling.behavior
    if hpa:
        found["scaleTrigger"] = {"hpa": hpa}
    else:
        written.lose("scaling", "names no metric, and llmaz's runtimes have none of their own")
    return found
