"""Lists the pods and processes that restart or stop, the models that are downloaded, the fields that running pods keep.

Pure. Called by `previewer` and `rendering` with the live and the coming version of each object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from automation.engine.differences import shown as shown_value
from automation.preview.changes import Download
from automation.preview.comparing import pod_template_changes
from automation.preview.dry_run import DryRun
from automation.reconcile.plan import ObjectName
from components import naming
from components.model_files import claim_name
from components.options import RenderOptions
from components.providers.kubernetes_diff import MISSING
from components.providers.kubernetes_templates import as_made, same_template
from components.rendered import RenderedService
from components.uncounted_fields import Path, paths_of, shown_path, value_at
from kubeapi.json_types import Json
from program.desired.model import DesiredModel, SourceKind
from program.desired.service import DesiredService
from program.desired.web_address import shown
from program.desired.workloads import Workloads
from program.dialects.llmkube.parse.source import needs_cache
from program.runtimes import runtime_for

_LOADING = frozenset({"main", "prefill"})
"""Parts of a service whose pods load the model."""
_MOUNTED = frozenset({"pvc", "host", "oci", "oci+native", "oci+modelcar"})
"""Schemes of models that are present before the pod starts."""
_SETS_OF_PODS = frozenset({"Deployment", "LeaderWorkerSet"})
_RESTING = frozenset({"Pending", "Stopped", "Asleep", "Failed", "BackingOff"})
"""Phases of a HostProcess without a process that could be restarted."""


def restarts(dry_runs: Iterable[DryRun]) -> tuple[str, ...]:
    """Name the pods and processes that restart."""
    return tuple(words for each in dry_runs if not each.change.refused for words in _restarted(each))


def stops(dry_runs: Iterable[DryRun]) -> tuple[str, ...]:
    """Name the pods and processes that stop and are not started again."""
    return tuple(words for each in dry_runs if not each.change.refused for words in _stopped(each))


def _restarted(each: DryRun) -> Iterator[str]:
    live, after, change = each.live, each.after, each.change
    if live is None or change.op not in ("update", "replace", "create"):
        return
    if change.kind in _SETS_OF_PODS:
        stay = _running(live) if change.op != "update" else min(_running(live), _replicas(after))
        if stay and (change.op != "update" or (after is not None and pod_template_changes(live, after))):
            yield f"{_pods(stay, live)} of {change.kind} {change.name}"
    elif change.kind == "HostProcess" and _runs(live):
        host, then = _spec(live).get("host"), _spec(after).get("host")
        if after is None or host != then:
            yield f"process {change.name} on host {host}" + (f", which moves to host {then}" if then else "")
        elif _launch_hash(live) != _launch_hash(after):
            yield f"process {change.name} on host {host}"


def _stopped(each: DryRun) -> Iterator[str]:
    live, after, change = each.live, each.after, each.change
    if live is None or change.op not in ("update", "delete"):
        return
    if change.kind in _SETS_OF_PODS:
        gone = _running(live) - (0 if change.op == "delete" or after is None else _replicas(after))
        if gone > 0 and (after is not None or change.op == "delete"):
            yield f"{_pods(gone, live)} of {change.kind} {change.name}"
    elif change.kind == "HostProcess" and change.op == "delete" and _runs(live):
        yield f"process {change.name} on host {_spec(live).get('host')}"


def _pods(count: int, live: Json) -> str:
    """Count pods; those of a LeaderWorkerSet by its groups, each of which has several."""
    size = int((_spec(live).get("leaderWorkerTemplate") or {}).get("size") or 1)
    return "1 pod" if count * size == 1 else f"{count * size} pods"


def _spec(obj: Json | None) -> Json:
    return (obj or {}).get("spec") or {}


def _replicas(deployment: Json | None) -> int:
    return int(_spec(deployment).get("replicas", 1))


def _running(deployment: Json) -> int:
    """Count the pods, or groups: by the status, or by `spec.replicas` before the controller has written one."""
    status = deployment.get("status") or {}
    looked = status.get("observedGeneration") or (
        "leaderWorkerTemplate" in _spec(deployment) and status.get("conditions")
    )
    return int(status.get("replicas", 0)) if looked else _replicas(deployment)


def _runs(process: Json) -> bool:
    return ((process.get("status") or {}).get("phase") or "Pending") not in _RESTING


def _launch_hash(process: Json) -> str:
    """Hash the fields whose change makes the host's agent restart a process, by the agent's rule."""
    from agent.contract import ProcessPlan
    from agent.processes.command_line import launch_hash

    try:
        return launch_hash(ProcessPlan.model_validate(_spec(process)), "")
    except ValueError:
        return ""  # written by a newer release; the agent decides how to read it


# --- downloads --------------------------------------------------------------------------------------------------------


def downloads(desired: DesiredService, dry_runs: Iterable[DryRun], options: RenderOptions) -> tuple[Download, ...]:
    """Name the models that started pods and processes download, as far as the running ones show."""
    found = [
        download
        for each in dry_runs
        if each.change.op in ("create", "update", "replace") and not each.change.refused
        for download in (
            _to_pods(desired.workloads, each)
            if desired.workloads is not None
            else _to_claim(desired, each, options)
            if each.change.kind == "Deployment"
            else _to_host(desired, each)
            if each.change.kind == "HostProcess"
            else ()
        )
    ]
    return tuple(dict.fromkeys(found))


def _to_claim(desired: DesiredService, each: DryRun, options: RenderOptions) -> Iterator[Download]:
    if not _replicas(each.after) or desired.skip_model_init:
        return
    restarted = each.live is None or each.after is None or pod_template_changes(each.live, each.after)
    before = json.dumps(_spec(each.live).get("template") or {})
    for model in filter(None, (desired.model, desired.draft)):
        if model.cache_key and desired.storage.persistence == "Cached":
            if model.cache_key not in before:
                yield _download(model, f"claim {claim_name(desired, options)}, unless it has it already")
        elif needs_cache(model.source, model.files) and runtime_for(desired.engine).needs_model_init:
            if restarted:
                yield _download(model, "a volume of each pod")
        elif model.source.kind is SourceKind.REPOSITORY and restarted:
            yield _download(model, "each pod, by its engine")


def _to_pods(workloads: Workloads, each: DryRun) -> Iterator[Download]:
    """Return the models that pods of `Workloads` download: all but mounted models and models in an image."""
    loads = {pods.name for pods in workloads.pods if pods.part in _LOADING}
    if each.change.kind not in _SETS_OF_PODS or each.change.name not in loads or not _replicas(each.after):
        return
    if each.live is None or each.after is None or pod_template_changes(each.live, each.after):
        for artifact in workloads.artifacts:
            if artifact.address.partition("://")[0] not in _MOUNTED:
                yield Download(shown(artifact.address), "each pod")


def _to_host(desired: DesiredService, each: DryRun) -> Iterator[Download]:
    host, was = _spec(each.after).get("host"), _spec(each.live)
    known = _files(was) if was.get("host") == host else {}
    sizes = {model.cache_key: model.size_bytes for model in filter(None, (desired.model, desired.draft))}
    for key, plan in _files(_spec(each.after)).items():
        if key in known or str(plan.get("source", "")).startswith(("/", "file:")):
            continue
        alone = len(_files(_spec(each.after))) == 1
        size = sizes.get(str(plan.get("cacheKey"))) if alone else None
        yield Download(shown(str(plan.get("source", ""))), f"host {host}, unless it has it already", size)


def _files(spec: Json) -> dict[str, Json]:
    plans = [spec.get("file"), *(spec.get("files") or {}).values()]
    return {f"{plan.get('cacheKey')}/{plan.get('fileName')}": plan for plan in plans if plan}


def _download(model: DesiredModel, where: str) -> Download:
    return Download(shown(model.source.address), where, model.size_bytes)


# --- fields that running pods keep ------------------------------------------------------------------------------------


def kept_fields(rendered: RenderedService, live: Mapping[ObjectName, Json]) -> Iterator[str]:
    """Name each field of running pods that gets another value with the next change of the service (docs/adr/0042)."""
    for each in rendered.objects:
        obj = live.get(ObjectName(each.kind, each.name))
        if obj is None or not same_template(each.manifest, obj):
            continue
        paths = {shown_path(path): path for path in (*paths_of(each.manifest), *paths_of(obj))}
        if not paths:
            continue
        made = as_made(each.manifest, obj, field_manager=naming.FIELD_MANAGER)
        changed = [
            f"{name} {_value(path, now)} -> {_value(path, then)}"
            for name, path in sorted(paths.items())
            if (now := value_at(made, path)) != (then := value_at(each.manifest, path))
        ]
        if changed:
            yield (
                f"{each.kind} {each.name}: its pods are not restarted; with the next change of the service they get: "
                f"{', '.join(changed)}"
            )


def _value(path: Path, value: Any) -> str:
    """Write a short value that is no secret."""
    if value is MISSING:
        return "(none)"
    # A variable of an environment may be a secret, whatever its name.
    text = "" if "env" in path else shown_value(value, next(step for step in reversed(path) if isinstance(step, str)))
    return text or "(set)"
