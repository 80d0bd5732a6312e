"""Reads llmaz's Playground, with its OpenModel and BackendRuntime, into a description. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired import keys
from program.dialects.converting.arguments import split_adapters, split_arguments, without_gpus
from program.dialects.converting.description import Description, Engine, Loss, Scaling, Source, Weights
from program.dialects.converting.fields import Fields, kept_metadata, on_hosts
from program.dialects.converting.pods import PROBES, RESOURCES, amounts_of
from program.dialects.converting.scaling import of_resource
from program.dialects.crds.reading import read, unknown_fields, without_nulls
from program.dialects.dialect import Lookup
from program.dialects.llmaz.dialect import PLAYGROUNDS
from program.dialects.llmaz.parse.flavors import Choice, choose, with_affinity
from program.dialects.llmaz.parse.models import Model, claims_of, find_models
from program.dialects.llmaz.parse.runtimes import (
    DEFAULT_CONFIG,
    SPECULATIVE_CONFIG,
    Runtime,
    fill,
    find_runtime,
    image_of,
    merged_resources,
    shipped,
    variables_of,
    with_limits,
)
from program.dialects.llmaz.schema.playground import PlaygroundSpec

NAME = "llmaz"
_GLOB = re.compile(r"[*?\[\]]")
PORT = 8080


def read_llmaz(cr: Json, look: Lookup) -> Description:
    """Describe a Playground with its models and its runtime. Raises SpecInvalid and NotYet as its dialect does."""
    PLAYGROUNDS.parse(cr, look)
    fields = Fields(cr, dialect="llmaz")
    spec = read(PlaygroundSpec, without_nulls(cr.get("spec") or {}), field="spec")
    labels, annotations, lost = kept_metadata(cr, fields.document)
    claims, asked, flavor_field = claims_of(spec.model_claim, spec.model_claims)
    fields.read("modelClaim")
    fields.read("modelClaims")
    models = find_models(claims, look)
    config: dict[str, Any] = fields.peek("backendRuntimeConfig") or {}
    runtime = find_runtime(config.get("backendName") or "vllm", look)
    custom = _is_custom(runtime)
    for name in ("backendName", "configName", "version", "args", "envs", "resources", "sharedMemorySize"):
        fields.read("backendRuntimeConfig", name)
    automatic = SPECULATIVE_CONFIG if len(models) > 1 else DEFAULT_CONFIG
    recommended = runtime.config(config.get("configName") or automatic, chosen=bool(config.get("configName")))
    choice = choose(models[0], asked, field=flavor_field)
    variables = variables_of(models, choice.params, fetched=True)
    preset = fill(recommended.get("args") or [], variables, field=f"BackendRuntime `{runtime.name}`")
    # Unchanged: llmaz replaces variables only in the arguments of its runtimes.
    own = [str(argument) for argument in config.get("args") or []]
    engine = _engine_of(runtime)
    # llmaz's shipped runtime for Ollama is a script that starts it.
    arguments = split_arguments(engine, [*(preset if custom or engine != "ollama" else ()), *own])
    hosted = on_hosts(annotations)
    # A host uses what the Playground asks for; the recommendations of runtimes are for pods.
    resources = merged_resources(config.get("resources") or {}, {} if hosted else recommended.get("resources") or {})
    requests, limits, gpus, gpu, strange = amounts_of(with_limits(resources, choice.limits))
    losses = [Loss(fields.document, flavor_field, f"other dialects have no resource `{name}`") for name in strange]
    losses += [
        Loss(fields.document, path, "is not a field of a Playground") for path, _ in unknown_fields(spec, field="spec")
    ]
    args, loaded = split_adapters(engine, without_gpus(engine, arguments.rest, gpus))
    losses += [loss for model in models for loss in losses_of_model(model, look)]
    if custom:
        losses += _of_runtime(runtime)
    name = str(cr["metadata"]["name"])
    source = source_of(models[0])
    if (chosen := annotations.pop(keys.ANNOTATION_MODEL_FILE, "")) and not source.file:
        source = replace(source, file=chosen)
    return Description(
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
        aliases=arguments.aliases,
        image=_image(runtime, config.get("version"), custom),
        command=tuple(runtime.spec.get("command") or ()) if custom and not _usual(runtime, engine) else (),
        args=tuple(args),
        adapters=loaded,
        env=_env(runtime.spec.get("envs") if custom else (), config.get("envs") or ()),
        requests=requests,
        limits=limits,
        gpus=gpus,
        gpu_resource=gpu,
        shared_memory=str(
            config.get("sharedMemorySize") or ("" if hosted else recommended.get("sharedMemorySize") or "")
        ),
        port=PORT if engine == "generic" else 0,
        probes={each: p for each in PROBES if custom and (p := runtime.spec.get(f"{each}Probe"))},
        replicas=spec.replicas if fields.read("replicas") is not None else 1,
        scaling=_scaling(fields, recommended),
        draft=Weights(name=models[1].name, source=source_of(models[1])) if len(models) > 1 else None,
        pod={} if hosted else nodes_of({}, choice),
        origins={
            "engine": "spec.backendRuntimeConfig.backendName",
            "source": claims[0].field,
            "model_name": claims[0].field,
            "served_name": "spec.backendRuntimeConfig.args",
            "aliases": "spec.backendRuntimeConfig.args",
            "draft": claims[-1].field,
            "replicas": "spec.replicas",
            "scaling": "spec.elasticConfig",
            "env": "spec.backendRuntimeConfig.envs",
            "args": "spec.backendRuntimeConfig.args",
            "adapters": "spec.backendRuntimeConfig.args",
            "port": "spec.backendRuntimeConfig.backendName",
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
                for each in RESOURCES
            },
        },
        losses=(
            *lost,
            *losses,
            *(loss for loss in fields.unread() if loss.field not in {each.field for each in losses}),
        ),
    )


def _is_custom(runtime: Runtime) -> bool:
    """Return whether a BackendRuntime is not one of the runtimes that every installation of llmaz has."""
    ours = shipped().get(runtime.name)
    return ours is None or ours.spec != runtime.spec


def _engine_of(runtime: Runtime) -> Engine:
    name = runtime.engine
    command = runtime.spec.get("command") or ("",)
    if name != "ollama" and command[0].rpartition("/")[2] in ("sh", "bash"):
        return "generic"
    return name if name in ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm", "ollama") else "generic"  # type: ignore[return-value]


def _usual(runtime: Runtime, engine: Engine) -> bool:
    """Return whether a runtime starts its engine like llmaz's shipped runtime."""
    ours = shipped().get(engine)
    return ours is not None and ours.spec.get("command") == runtime.spec.get("command")


def _image(runtime: Runtime, version: Any, custom: bool) -> str:
    return image_of(runtime.spec["image"], str(version or runtime.spec["version"])) if custom or version else ""


def _env(below: Any, above: Any) -> tuple[Json, ...]:
    return tuple({entry["name"]: entry for entry in (*(below or ()), *above)}.values())


def nodes_of(pod: Json, choice: Choice) -> Json:
    """Add the nodes of the chosen flavors to fields of a pod: the selector of one, or a preference among several."""
    if len(choice.flavors) != 1:
        return with_affinity(pod, choice)
    selector = {**choice.flavors[0].node_selector, **(pod.get("nodeSelector") or {})}
    return {**pod, "nodeSelector": selector} if selector else pod


def losses_of_model(model: Model, look: Lookup) -> list[Loss]:
    """List the parts of an OpenModel that only llmaz supports."""
    document, losses = f"OpenModel `{model.name}`", []
    spec = without_nulls((look(kinds.OPEN_MODELS, None, model.name) or {}).get("spec") or {})
    hub = (spec.get("source") or {}).get("modelHub") or {}
    if hub.get("ignorePatterns"):
        losses.append(Loss(document, "spec.source.modelHub.ignorePatterns", "only llmaz has it"))
    if any(_GLOB.search(each) for each in hub.get("allowPatterns") or ()):
        losses.append(Loss(document, "spec.source.modelHub.allowPatterns", "only llmaz selects files by patterns"))
    if any(flavor.params for flavor in model.flavors):
        losses.append(Loss(document, "spec.inferenceConfig.flavors", "only llmaz has params of flavors"))
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


def _scaling(fields: Fields, recommended: Json) -> Scaling | None:
    wish = fields.read("elasticConfig")
    if not wish:
        return None
    hpa = (wish.get("scaleTrigger") or recommended.get("scaleTrigger") or {}).get("hpa")
    # Kubernetes' default for an autoscaler without a metric.
    metrics = () if hpa is None else tuple(hpa.get("metrics") or ()) or (of_resource("cpu", 80),)
    return Scaling(
        min_replicas=wish.get("minReplicas", 1),
        max_replicas=wish["maxReplicas"],
        metrics=metrics,
        behavior=(hpa or {}).get("behavior"),
    )
