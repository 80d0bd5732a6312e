"""Builds the desired state of an LLMInferenceService on hosts, and lists the fields without effect there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.dialects.annotations import Annotated
from program.dialects.dialect import Parsed
from program.dialects.hosts.model import HostedModel
from program.dialects.hosts.service import HostedArgs, hosted_service, not_on_hosts
from program.dialects.kserve.parse.scaling import own_scaler
from program.dialects.kserve.parse.subject import MAIN, Subject, is_stopped, main_container, value_at
from program.dialects.pods.engine import argv_of, engine_in
from program.dialects.pods.gpus import gpu_of_container

_PROGRAMS = {"llama-server": "llamacpp", "vllm": "vllm"}
_STARTS = re.compile(r"(^|[\s;&|/])vllm(\s|$)")
_OF_PODS = (
    ("router",),
    ("prefill",),
    ("worker",),
    ("scaling",),
    ("parallelism",),
    ("kvCacheOffloading",),
    ("rolloutStrategy",),
    ("tracing",),
    ("labels",),
    ("annotations",),
    ("storageInitializer",),
    ("model", "lora"),
    ("model", "confidential"),
)
_PRESET_ENV = frozenset({"HOME", "VLLM_LOGGING_LEVEL", "HF_HUB_CACHE"})
_TAKEN = frozenset({"name", "args", "command", "env", "resources"})
"""Used fields of the serving container. Its image has no effect, because the engine on a host is an installed
program.
"""


def hosted(subject: Subject, annotated: Annotated) -> Parsed:
    """Return the service as processes on hosts. Raises SpecInvalid for a model that no host can fetch."""
    main = main_container(subject.at("template"), field="spec.template")
    engine, own = _arguments(main)
    resources = main.get("resources") or {}
    memory = (resources.get("requests") or {}).get("memory") or (resources.get("limits") or {}).get("memory")
    gpu = gpu_of_container(main)
    scaler = own_scaler(subject.at("scaling"), field="spec.scaling") if annotated.scale_by_requests else None
    replicas = scaler.min_replicas if scaler is not None else subject.at("replicas")
    index = next(i for i, c in enumerate(subject.spec["template"]["containers"]) if c.get("name") == MAIN)
    field = f"spec.template.containers[{index}]"
    parsed = hosted_service(
        subject.cr,
        key=ServiceKey("kserve", subject.namespace, subject.name),
        annotated=annotated,
        model=HostedModel(
            address=str(subject.at("model", "uri") or ""), field="spec.model.uri", name=subject.model_name
        ),
        args=HostedArgs(engine=engine, own=own, field=f"{field}.args"),
        env=[variable for variable in main.get("env") or () if variable["name"] not in _PRESET_ENV],
        env_field=f"{field}.env",
        replicas=1 if replicas is None else int(replicas),
        memory=str(memory) if memory else None,
        gpus=gpu.count if gpu is not None else 0,
        scaler=scaler,
        unsupported=not_on_hosts(_lost(subject, scaled=scaler is not None)),
    )
    if not is_stopped(subject.cr):
        return parsed
    return Parsed(parsed.desired.model_copy(update={"suspended": True}), parsed.unsupported)


def _arguments(main: Json) -> tuple[str, list[str]]:
    """Return the container's engine and its arguments. The preset's script starts vLLM with the user's arguments."""
    args = [str(arg) for arg in main.get("args") or ()]
    command = [str(word) for word in main.get("command") or ()]
    engine = _PROGRAMS.get(PurePosixPath(command[0]).name, "") if command else ""
    if engine:
        return engine, [*command[1:], *args]
    return ("vllm" if starts_vllm(main) else ""), args


def engine_of(main: Json) -> str:
    """Return the engine of a container as the kind of its settings; empty if it is unknown."""
    engine, _ = _arguments(main)
    return engine or engine_in([*argv_of(main), str(main.get("image") or "")])


def starts_vllm(main: Json) -> bool:
    """Return whether a container runs vLLM, as the presets' start script does."""
    return any(_STARTS.search(str(word)) for word in main.get("command") or ())


def _lost(subject: Subject, *, scaled: bool) -> Iterator[str]:
    """Yield the fields that the user sets and that only pods have. `scaled`: the bounds of `scaling` have an effect."""
    for path in _OF_PODS:
        if path == ("scaling",) and scaled:
            continue
        if value_at(subject.combined.own, *path) is not None:
            yield ".".join(("spec", *path))
    template = value_at(subject.combined.own, "template") or {}
    for name, value in template.items():
        if name != "containers" and value not in (None, [], {}):
            yield f"spec.template.{name}"
    for index, container in enumerate(template.get("containers") or ()):
        field = f"spec.template.containers[{index}]"
        if container.get("name") != MAIN:
            yield field
            continue
        for name in container:
            if name not in _TAKEN:
                yield f"{field}.{name}"
        if container.get("command") and not starts_vllm(container) and not _arguments(container)[0]:
            yield f"{field}.command"
