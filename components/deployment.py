"""The Deployment that runs a service's pods. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.hardware import is_exclusive
from components.object_metadata import object_metadata, selector_labels, workload_labels
from components.options import RenderOptions
from components.pod_template import pod_template
from components.rendered import RenderedObject, fingerprint_of
from kubeapi.json_types import Json
from program.desired.service import DesiredService


def deployment(desired: DesiredService, options: RenderOptions) -> RenderedObject:
    """Build the Deployment. While the service runs and somebody else scales it, the replicas are left to them."""
    template = pod_template(desired, options)
    spec: Json = {"selector": {"matchLabels": selector_labels(desired)}, "template": template}
    if is_stopped(desired) or options.asleep:
        spec["replicas"] = 0
    elif desired.autoscaling is None and not options.scaled_elsewhere:
        spec["replicas"] = desired.replicas
    if strategy := _strategy(desired):
        spec["strategy"] = strategy
    if desired.revision_history_limit is not None:
        spec["revisionHistoryLimit"] = desired.revision_history_limit
    annotations = {naming.ANNOTATION_TEMPLATE_HASH: fingerprint_of(template)}
    if options.scaled_elsewhere:
        annotations[naming.ANNOTATION_ASKED_REPLICAS] = str(desired.replicas)
    if options.asleep:
        annotations[naming.ANNOTATION_ASLEEP] = str(desired.replicas)
    name = naming.deployment_name(desired.key.name)
    metadata = object_metadata(desired, name, workload_labels(desired), annotations)
    manifest: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    return RenderedObject("deployment", naming.TYPE_SERVICE, manifest)


def is_stopped(desired: DesiredService) -> bool:
    """Tell whether no replica shall run, whatever an autoscaler would like.

    `replicas: 0` stops a service, but for one that scales to nothing by itself, for which it is only the start.
    """
    scaling = desired.autoscaling
    return desired.suspended or (desired.replicas == 0 and (scaling is None or scaling.min_replicas > 0))


def count_or_share(text: str) -> int | str:
    """Read `1` or `25%`, as budgets and strategies take it."""
    return int(text) if text.isdigit() else text


def _strategy(desired: DesiredService) -> Json | None:
    """Say how pods are replaced; None leaves it to Kubernetes, which starts a new pod before it ends an old one."""
    away = desired.disruption.max_unavailable
    exclusive = is_exclusive(desired.gpu)
    if away:
        rolling: Json = {"maxUnavailable": count_or_share(away)}
        if exclusive and away not in ("0", "0%"):
            # An additional pod would wait for hardware that only the pods that go can give back.
            rolling["maxSurge"] = 0
        return {"type": "RollingUpdate", "rollingUpdate": rolling}
    # The new pod would wait for the GPUs that the old one holds.
    return {"type": "Recreate"} if exclusive else None
