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
from program.desired.base import JsonObject
from program.desired.errors import SpecInvalid
from program.desired.service import Autoscaling, DesiredService
from program.dialects.quantities import parse_quantity
from program.runtimes import runtime_for

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)


def scaled_object(desired: DesiredService, scaling: Autoscaling, options: RenderOptions) -> RenderedObject:
    """Build the ScaledObject.

    Raises SpecInvalid for a metric without its target, and for a name that Prometheus has no metric of.
    """
    manifest: JsonObject = {
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


def _triggers(desired: DesiredService, scaling: Autoscaling, server: str) -> list[JsonObject]:
    triggers: list[JsonObject] = []
    targets: list[str] = []
    for index, metric in enumerate(scaling.metrics):
        field = f"spec.autoscaling.metrics[{index}]"
        if metric.type == "Resource":
            value = {"value": str(target_utilization(metric, field))}
            triggers.append({"type": metric.name, "metricType": "Utilization", "metadata": value})
            continue
        targets.append(target_average(metric, field))
        if not scaling.query:
            triggers.append(_prometheus(server, _query(desired, metric.name, field), targets[-1]))
    if scaling.query:
        triggers.insert(0, _prometheus(server, scaling.query, targets[0] if targets else DEFAULT_TARGET))
    elif not targets:
        # CPU and memory of no pod say nothing, so KEDA wants something else beside them to start from.
        name = runtime_for(desired.engine).default_hpa_metric
        triggers.insert(0, _prometheus(server, _query(desired, name, ""), DEFAULT_TARGET))
    return triggers


def _query(desired: DesiredService, metric: str, field: str) -> str:
    if not _METRIC_NAME.fullmatch(metric):
        raise SpecInvalid(field=f"{field}.name", why=f"`{metric[:64]}` is not the name of a metric in Prometheus")
    return f'sum({metric}{{namespace="{desired.key.namespace}",service="{desired.key.name}"}})'


def _prometheus(server: str, query: str, target: str) -> JsonObject:
    threshold = f"{parse_quantity(target, field='spec.autoscaling.metrics'):f}"
    if "." in threshold:
        threshold = threshold.rstrip("0").rstrip(".")
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {"serverAddress": server, "query": query, "threshold": threshold},
    }
