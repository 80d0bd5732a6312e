"""The HorizontalPodAutoscaler of a service. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import object_metadata, selector_labels
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.service import DEFAULT_UTILIZATION, Autoscaling, DesiredService, ScalingMetric
from program.runtimes import runtime_for

DEFAULT_TARGET = "2"
"""Requests under way per pod, above which pods are added."""


def pod_autoscaler(desired: DesiredService, scaling: Autoscaling) -> RenderedObject:
    """Build the autoscaler. It keeps one replica at least: Kubernetes' own cannot start from nothing.

    Without a metric that the user or the engine names it follows the CPU, as Kubernetes does.
    Raises SpecInvalid for a metric without the target that its type needs.
    """
    metrics = [_metric(metric, f"spec.autoscaling.metrics[{index}]") for index, metric in enumerate(scaling.metrics)]
    if not metrics:
        own = runtime_for(desired.engine).default_hpa_metric
        metrics = [_pods_metric(own, DEFAULT_TARGET) if own else _resource_metric("cpu", DEFAULT_UTILIZATION)]
    manifest: Json = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": object_metadata(desired, naming.autoscaler_name(desired.key.name), selector_labels(desired)),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": naming.deployment_name(desired.key.name),
            },
            "minReplicas": max(1, scaling.min_replicas),
            "maxReplicas": scaling.max_replicas,
            "metrics": metrics,
        },
    }
    return RenderedObject("hpa", naming.TYPE_AUTOSCALER, manifest)


def target_average(metric: ScalingMetric, field: str) -> str:
    """Return the target of a metric of pods. Raises SpecInvalid when it has none."""
    if not metric.target_average_value:
        raise SpecInvalid(field=f"{field}.targetAverageValue", why="a metric of type `Pods` needs it")
    return metric.target_average_value


def target_utilization(metric: ScalingMetric) -> int:
    """Return the target of a resource, in percent."""
    target = metric.target_average_utilization
    return DEFAULT_UTILIZATION if target is None else target


def _metric(metric: ScalingMetric, field: str) -> Json:
    if metric.type == "Pods":
        return _pods_metric(metric.name, target_average(metric, field))
    return _resource_metric(metric.name, target_utilization(metric))


def _resource_metric(name: str, utilization: int) -> Json:
    target: Json = {"type": "Utilization", "averageUtilization": utilization}
    return {"type": "Resource", "resource": {"name": name, "target": target}}


def _pods_metric(name: str, average: str) -> Json:
    target: Json = {"type": "AverageValue", "averageValue": average}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}
