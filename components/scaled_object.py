"""KEDA's ScaledObject of a service: what scales to nothing and back, or by a query. Called by `components.render`.

KEDA makes a HorizontalPodAutoscaler of its own from it, so a service has one or the other of ours, never both.
"""

from __future__ import annotations

import re

from components import naming
from components.object_metadata import object_metadata, selector_labels
from components.options import RenderOptions
from components.pod_autoscaler import DEFAULT_TARGET, target_average, target_utilization
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.quantities import parse_quantity
from program.desired.service import Autoscaling, DesiredService, ScalingMetric
from program.runtimes import runtime_for

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)


def scaled_object(desired: DesiredService, scaling: Autoscaling, options: RenderOptions) -> RenderedObject:
    """Build the ScaledObject.

    Metrics whose name Prometheus cannot have are left out. Raises SpecInvalid for a metric without its target.
    """
    manifest: Json = {
        "apiVersion": kinds.SCALED_OBJECTS.api_version,
        "kind": kinds.SCALED_OBJECTS.kind,
        "metadata": object_metadata(desired, naming.autoscaler_name(desired.key.name), selector_labels(desired)),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": naming.deployment_name(desired.key.name),
            },
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "triggers": _triggers(desired, scaling, options.prometheus_url),
        },
    }
    return RenderedObject("scaler", naming.TYPE_AUTOSCALER, manifest)


def is_followed(desired: DesiredService, scaling: Autoscaling) -> bool:
    """Tell whether KEDA has something in Prometheus to look at, without which it cannot start from nothing."""
    own = runtime_for(desired.engine).default_hpa_metric
    return bool(scaling.query or own) or any(is_in_prometheus(each) for each in scaling.metrics)


def is_in_prometheus(metric: ScalingMetric) -> bool:
    """Tell whether a metric of pods has a name that Prometheus can have."""
    return metric.type == "Pods" and _METRIC_NAME.fullmatch(metric.name) is not None


def _triggers(desired: DesiredService, scaling: Autoscaling, server: str) -> list[Json]:
    triggers: list[Json] = []
    targets: list[str] = []
    for index, metric in enumerate(scaling.metrics):
        if metric.type == "Resource":
            value = {"value": str(target_utilization(metric))}
            triggers.append({"type": metric.name, "metricType": "Utilization", "metadata": value})
        elif scaling.query or is_in_prometheus(metric):
            targets.append(target_average(metric, f"spec.autoscaling.metrics[{index}]"))
            if not scaling.query:
                triggers.append(_prometheus(server, _query(desired, metric.name), targets[-1]))
    if scaling.query:
        triggers.insert(0, _prometheus(server, scaling.query, targets[0] if targets else DEFAULT_TARGET))
    elif not targets and (own := runtime_for(desired.engine).default_hpa_metric):
        # CPU and memory of no pod say nothing, so KEDA wants something else beside them to start from.
        triggers.insert(0, _prometheus(server, _query(desired, own), DEFAULT_TARGET))
    return triggers


def _query(desired: DesiredService, metric: str) -> str:
    return f'sum({metric}{{namespace="{desired.key.namespace}",service="{desired.key.name}"}})'


def _prometheus(server: str, query: str, target: str) -> Json:
    threshold = f"{parse_quantity(target, field='spec.autoscaling.metrics'):f}"
    if "." in threshold:
        threshold = threshold.rstrip("0").rstrip(".")
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {"serverAddress": server, "query": query, "threshold": threshold},
    }
