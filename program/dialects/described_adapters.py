"""LoRAAdapters with a source for services that describe their pods themselves: those of KServe and llmaz. Pure.

The dialects call it after they have parsed a service; `components.adapter_pods` adds the files to the pods, and the
arguments of llama-server. vLLM and SGLang load the files by a request of the loop (`automation.serving.adapters`).
"""

from __future__ import annotations

from dataclasses import replace

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import AdapterFile, AdapterReason
from program.desired.service import DesiredService
from program.desired.workloads import PodSet, Workloads
from program.dialects.dialect import Lookup, Parsed
from program.dialects.llmkube.parse.adapter import ENGINES, claims_of, why_not_read
from program.dialects.pods.engine import engine_in_container
from program.dialects.pods.llama_server import POSSIBLE, Refusal, why_no_arguments
from program.dialects.registry import ENGINE_CONTAINERS


def with_adapters(parsed: Parsed, cr: Json, look: Lookup, *, dialect: str) -> Parsed:
    """Add the LoRAAdapters whose files the pods of a service download. Services on hosts get none."""
    desired, metadata = parsed.desired, cr["metadata"]
    if desired.workloads is None or desired.host_placement is not None:
        return parsed
    namespace = str(metadata.get("namespace") or "default")
    crs = look.listed(kinds.LORA_ADAPTERS, namespace)
    if not crs:
        return parsed
    ending = {each["metadata"].get("uid") for each in crs if "deletionTimestamp" in each["metadata"]}
    container = _engine_container(desired.workloads)
    engine = engine_in_container(container)
    refusal = why_no_arguments(container) if engine == "llamacpp" else POSSIBLE
    found = tuple(
        each.file
        for each in sorted(claims_of(crs).values(), key=lambda each: (each.created, each.resource))
        if (each.dialect, each.service) == (dialect, metadata["name"])
        and each.uid not in ending
        and each.file is not None
        and not why_not_downloaded(engine, each.file, refusal)[0]
    )
    for file in found:
        look(kinds.LORA_ADAPTERS, namespace, file.resource)  # so that it counts as an object the service refers to
    if not found:
        return parsed
    described = desired.workloads if _is_paced_by_user(cr) else _starting_new_pods_first(desired, desired.workloads)
    return replace(parsed, desired=desired.model_copy(update={"adapters": found, "workloads": described}))


def why_not_downloaded(engine: str, file: AdapterFile, refusal: Refusal) -> Refusal:
    """Return why such a service cannot have an adapter. `refusal` is that of its llama-server: `why_no_arguments`."""
    if engine not in ENGINES:
        return AdapterReason.RUNTIME_MISMATCH, "the pods run no engine that serves adapters"
    if engine == "llamacpp" and refusal[0] is not None:
        return refusal
    return why_not_read(engine, file)


def _is_paced_by_user(cr: Json) -> bool:
    spec = cr.get("spec")
    return isinstance(spec, dict) and bool(spec.get("rolloutStrategy"))


def _starting_new_pods_first(desired: DesiredService, workloads: Workloads) -> Workloads:
    """Let a new pod serve before an old one ends, so that an adapter that cannot be downloaded stops no replica.

    llmaz ends the old pod first by default. Pods with GPUs keep this, because the new pod would wait for the GPUs of
    the old one; and groups, which are made of such pods.
    """
    if desired.gpu is not None and not desired.gpu.shared:
        return workloads
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}

    def changed(pods: PodSet) -> PodSet:
        ours = pods.part == "main" and pods.group is None and pods.strategy is not None
        return pods.model_copy(update={"strategy": rolling}) if ours else pods

    return workloads.model_copy(update={"pods": tuple(changed(pods) for pods in workloads.pods)})


def _engine_container(workloads: Workloads) -> Json:
    """Return the container of the pods that serve; an empty object if it is unknown."""
    main = workloads.main
    template = main.group.leader if main.group is not None and main.group.leader is not None else main.template
    containers = template["spec"].get("containers") or ()
    return next((each for each in containers if each.get("name") in ENGINE_CONTAINERS), {})
