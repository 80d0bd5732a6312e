"""What runs pods: a Deployment, or a LeaderWorkerSet for pods in groups. Called by `render` of this package."""

from __future__ import annotations

from components import naming
from components.options import RenderOptions
from components.rendered import RenderedObject, fingerprint_of
from components.uncounted_fields import noted
from components.workloads.parts import component_of, manifest, settled
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.service import DesiredService
from program.desired.workloads import PodGroup, PodSet


def kind_of(pods: PodSet) -> Kind:
    """Say which kind runs a set of pods."""
    return kinds.DEPLOYMENTS if pods.group is None else kinds.LEADER_WORKER_SETS


def pod_set(desired: DesiredService, pods: PodSet, options: RenderOptions, *, is_main: bool = False) -> RenderedObject:
    """Build the object that runs a set of pods.

    The number of pods is left to others while an autoscaler sets it, or, of the pods that serve, while somebody scales
    them by hand (`options.scaled_elsewhere`). An autoscaler that scales the custom resource leaves it to us.
    """
    spec, as_counted = _spec(desired, pods), _as_counted(pods)
    counted = spec if as_counted is pods else _spec(desired, as_counted)
    template = counted["template"] if pods.group is None else counted["leaderWorkerTemplate"]
    annotations = {
        **pods.annotations,
        **noted(spec, counted),
        naming.ANNOTATION_TEMPLATE_HASH: fingerprint_of(template),
    }
    if is_main and options.scaled_elsewhere and pods.replicas is not None:
        annotations[naming.ANNOTATION_ASKED_REPLICAS] = str(pods.replicas)
    elif pods.replicas is not None and (pods.scaler is None or pods.scaler.target is not None):
        spec, counted = {"replicas": pods.replicas, **spec}, {"replicas": pods.replicas, **counted}
    made = manifest(desired, kind_of(pods), pods.name, labels=pods.labels, annotations=annotations, spec=spec)
    differs = counted if naming.ANNOTATION_UNCOUNTED in annotations else None
    return RenderedObject(f"pods/{pods.part}", component_of(pods.part), made, counted_spec=differs)


def _as_counted(pods: PodSet) -> PodSet:
    """Copy a set of pods as hashes count it; the same where they count it as it is."""
    group = pods.group
    if pods.counted is None and (group is None or group.counted_leader is None):
        return pods
    if group is not None and group.counted_leader is not None:
        group = group.model_copy(update={"leader": group.counted_leader})
    template = pods.template if pods.counted is None else pods.counted
    return pods.model_copy(update={"template": template, "group": group})


def _spec(desired: DesiredService, pods: PodSet) -> Json:
    return _deployment_spec(desired, pods) if pods.group is None else _group_spec(pods, pods.group)


def _deployment_spec(desired: DesiredService, pods: PodSet) -> Json:
    spec: Json = {"selector": {"matchLabels": pods.selector}, "template": _template(pods.template)}
    if pods.strategy is not None:
        spec["strategy"] = settled(pods.strategy)
    if desired.revision_history_limit is not None:
        spec["revisionHistoryLimit"] = desired.revision_history_limit
    return spec


def _group_spec(pods: PodSet, group: PodGroup) -> Json:
    of_group: Json = {"size": group.size, "workerTemplate": _template(pods.template)}
    if group.leader is not None:
        of_group["leaderTemplate"] = _template(group.leader)
    if group.restart_policy:
        of_group["restartPolicy"] = group.restart_policy
    if group.sub_group_policy is not None:
        of_group["subGroupPolicy"] = settled(group.sub_group_policy)
    spec: Json = {"leaderWorkerTemplate": of_group}
    if group.startup_policy:
        spec["startupPolicy"] = group.startup_policy
    if group.rollout is not None:
        spec["rolloutStrategy"] = settled(group.rollout)
    return spec


def _template(template: Json) -> Json:
    """Copy a pod template, without metadata that says nothing."""
    copied = settled(template)
    assert isinstance(copied, dict)
    metadata = {key: value for key, value in (copied.get("metadata") or {}).items() if value != {}}
    rest = {key: value for key, value in copied.items() if key != "metadata"}
    return {"metadata": metadata, **rest} if metadata else rest
