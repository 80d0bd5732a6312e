"""Adds LoRA adapters to pods that a custom resource describes, those of KServe and llmaz: downloads and arguments.

Called by `components.render`. The pods of an InferenceService get them with their model (`components.model_files`).
"""

from __future__ import annotations

from components.model_files import adapter_downloads
from components.options import RenderOptions
from kubeapi.json_types import Json
from program.desired.service import DesiredService
from program.desired.workloads import PodSet, Workloads
from program.dialects.pods.engine import argv_of, engine_in_container
from program.dialects.pods.llama_server import why_no_arguments
from program.dialects.registry import ENGINE_CONTAINERS
from program.runtimes.llamacpp import adapter_flags

_SERVING = ("main", "prefill")
"""The sets of pods that run an engine."""


def with_adapters(workloads: Workloads, desired: DesiredService, options: RenderOptions) -> Workloads:
    """Return the workloads with the adapters of the service in all pods with an engine, workers of groups included."""
    if not desired.adapters:
        return workloads

    def added(template: Json | None) -> Json | None:
        return _with_downloads(template, desired, options) if template is not None else None

    def changed(pods: PodSet) -> PodSet:
        if pods.part not in _SERVING:
            return pods
        group = pods.group
        if group is not None:
            leaders = {"leader": added(group.leader), "counted_leader": added(group.counted_leader)}
            group = group.model_copy(update=leaders)
        templates = {"template": added(pods.template), "counted": added(pods.counted)}
        return pods.model_copy(update={**templates, "group": group})

    return workloads.model_copy(update={"pods": tuple(changed(pods) for pods in workloads.pods)})


def _with_downloads(template: Json, desired: DesiredService, options: RenderOptions) -> Json:
    spec = template["spec"]
    if not any(map(_takes_adapters, spec.get("containers") or ())):
        return template
    volumes, mount, downloads = adapter_downloads(
        desired.adapters, options, pod_security=spec.get("securityContext") or {}, hub_token=None
    )
    there = spec.get("volumes") or []
    added = {
        "volumes": [*there, *(each for each in volumes if each not in there)],
        "initContainers": [*(spec.get("initContainers") or ()), *downloads],
        "containers": [
            _loading(each, mount, desired) if _takes_adapters(each) else each for each in spec["containers"]
        ],
    }
    return {**template, "spec": {**spec, **added}}


def _takes_adapters(container: Json) -> bool:
    """Return whether a container runs an engine that reads the files.

    A worker of a group of llama.cpp runs another program, which gets its weights from the leader.
    """
    if container.get("name") not in ENGINE_CONTAINERS:
        return False
    return engine_in_container(container) != "llamacpp" or why_no_arguments(container)[0] is None


def _loading(container: Json, mount: Json, desired: DesiredService) -> Json:
    """Return an engine's container with the files, and for llama-server with the arguments that load them."""
    changed = {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), mount]}
    if engine_in_container(container) == "llamacpp":
        flags = adapter_flags([each.pod_path for each in desired.adapters], argv_of(container))
        changed["args"] = [*(container.get("args") or ()), *flags]
    return changed
