"""The autoscaler of a service: a HorizontalPodAutoscaler, or KEDA's ScaledObject. Called by `engine_workloads`.

KEDA scales services that can scale to zero or that follow a query. KEDA makes a HorizontalPodAutoscaler for each
ScaledObject, so Herdsman makes one of the two, never both. `components.extensions` reports what KEDA cannot scale.
"""

from __future__ import annotations

import re
from typing import Literal

from components import naming
from components.naming import selector_labels
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.quantities import parse_quantity
from program.desired.service import DEFAULT_UTILIZATION, Autoscaling, DesiredService, RequestScaling, ScalingMetric
from program.desired.workloads import PodSet, Scaler, Workloads
from program.runtimes import runtime_for

REQUESTS_METRIC = "herdsman_gateway_active_requests"
"""The external metric that `automation.external_metrics` serves: the requests under way of a service."""
LABEL_SERVICE, LABEL_DIALECT = "service", "dialect"
"""The labels of that metric."""
DEFAULT_TARGET = "2"
"""Requests under way for each pod, above which the autoscaler adds pods."""

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)


def scaler(desired: DesiredService, scaling: Autoscaling, options: RenderOptions) -> Scaler:
    """Build the autoscaler. Raises SpecInvalid for a metric without the target that its type needs."""
    name, labels = naming.autoscaler_name(desired.key.name), selector_labels(desired)
    if keda_scales(desired, scaling, options):
        spec: Json = {
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "triggers": _triggers(desired, scaling, options.prometheus_url),
        }
        return Scaler(part="main", logical_part="scaler", kind="ScaledObject", name=name, labels=labels, spec=spec)
    spec = {
        # Kubernetes' own autoscaler cannot scale from zero.
        "minReplicas": max(1, scaling.min_replicas),
        "maxReplicas": scaling.max_replicas,
        "metrics": _metrics(desired, scaling),
    }
    return Scaler(part="main", logical_part="hpa", kind="HorizontalPodAutoscaler", name=name, labels=labels, spec=spec)


def with_request_scaler(workloads: Workloads, desired: DesiredService, options: RenderOptions) -> Workloads:
    """Add the autoscaler that follows the requests at the gateways to the serving pods, if the options ask for it."""
    rules = desired.by_requests
    if not options.requests_autoscaled or rules is None or rules.target is None:
        return workloads
    main, *others = workloads.pods
    scaled = main.model_copy(update={"scaler": request_scaler(desired, main, rules, rules.target)})
    return workloads.model_copy(update={"pods": (scaled, *others)})


def request_scaler(desired: DesiredService, pods: PodSet, rules: RequestScaling, target: int) -> Scaler:
    """Build the autoscaler that follows the requests at the gateways, for a service that is awake."""
    selector = {"matchLabels": {LABEL_SERVICE: desired.key.name, LABEL_DIALECT: desired.key.dialect}}
    average: Json = {"type": "AverageValue", "averageValue": str(target)}
    metric = {"metric": {"name": REQUESTS_METRIC, "selector": selector}, "target": average}
    spec: Json = {
        # A service sleeps by the loop, and Kubernetes' own autoscaler cannot scale from zero.
        "minReplicas": max(1, rules.min_replicas),
        "maxReplicas": rules.max_replicas,
        "metrics": [{"type": "External", "external": metric}],
    }
    if rules.behavior:
        spec["behavior"] = rules.behavior
    kind: Literal["HorizontalPodAutoscaler"] = "HorizontalPodAutoscaler"
    labels = selector_labels(desired) if desired.workloads is None else pods.labels
    return Scaler(part=pods.part, logical_part="hpa", kind=kind, name=pods.name, labels=labels, spec=spec)


def follows_requests(autoscaler: Json) -> bool:
    """Return whether a live HorizontalPodAutoscaler is one of `request_scaler`."""
    named = ((each.get("external") or {}).get("metric") or {} for each in autoscaler["spec"].get("metrics") or ())
    return any(each.get("name") == REQUESTS_METRIC for each in named)


def keda_scales(desired: DesiredService, scaling: Autoscaling, options: RenderOptions) -> bool:
    """Return whether KEDA scales a service: the service needs KEDA, KEDA is installed, and it has a metric."""
    able = options.is_installed(kinds.SCALED_OBJECTS) and bool(options.prometheus_url)
    return able and needs_keda(scaling) and _is_followed(desired, scaling)


def needs_keda(scaling: Autoscaling) -> bool:
    """Return whether an autoscaling needs KEDA: for a minimum of zero, or for a query."""
    return scaling.min_replicas == 0 or bool(scaling.query)


def is_in_prometheus(metric: ScalingMetric) -> bool:
    """Return whether a metric of pods has a valid Prometheus name."""
    return metric.type == "Pods" and _METRIC_NAME.fullmatch(metric.name) is not None


def _is_followed(desired: DesiredService, scaling: Autoscaling) -> bool:
    """Return whether KEDA has a Prometheus series to follow, which it needs to scale from zero."""
    own = runtime_for(desired.engine).default_hpa_metric
    return bool(scaling.query or own) or any(is_in_prometheus(each) for each in scaling.metrics)


def _metrics(desired: DesiredService, scaling: Autoscaling) -> list[Json]:
    """List the metrics that the user names, else that of the engine, else the CPU, as Kubernetes does by default."""
    metrics = [_metric(metric, f"spec.autoscaling.metrics[{index}]") for index, metric in enumerate(scaling.metrics)]
    if metrics:
        return metrics
    own = runtime_for(desired.engine).default_hpa_metric
    return [_pods_metric(own, DEFAULT_TARGET) if own else _resource_metric("cpu", DEFAULT_UTILIZATION)]


def _metric(metric: ScalingMetric, field: str) -> Json:
    if metric.type == "Pods":
        return _pods_metric(metric.name, _target_average(metric, field))
    return _resource_metric(metric.name, _target_utilization(metric))


def _resource_metric(name: str, utilization: int) -> Json:
    target: Json = {"type": "Utilization", "averageUtilization": utilization}
    return {"type": "Resource", "resource": {"name": name, "target": target}}


def _pods_metric(name: str, average: str) -> Json:
    target: Json = {"type": "AverageValue", "averageValue": average}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}


def _target_average(metric: ScalingMetric, field: str) -> str:
    if not metric.target_average_value:
        raise SpecInvalid(field=f"{field}.targetAverageValue", why="is required for a metric of type `Pods`")
    return metric.target_average_value


def _target_utilization(metric: ScalingMetric) -> int:
    """Return the target of a resource in percent."""
    target = metric.target_average_utilization
    return DEFAULT_UTILIZATION if target is None else target


def _triggers(desired: DesiredService, scaling: Autoscaling, server: str) -> list[Json]:
    """List KEDA's triggers, without metrics whose name is not valid in Prometheus."""
    triggers: list[Json] = []
    targets: list[str] = []
    for index, metric in enumerate(scaling.metrics):
        if metric.type == "Resource":
            value = {"value": str(_target_utilization(metric))}
            triggers.append({"type": metric.name, "metricType": "Utilization", "metadata": value})
        elif scaling.query or is_in_prometheus(metric):
            targets.append(_target_average(metric, f"spec.autoscaling.metrics[{index}]"))
            if not scaling.query:
                triggers.append(_prometheus(server, _query(desired, metric.name), targets[-1]))
    if scaling.query:
        triggers.insert(0, _prometheus(server, scaling.query, targets[0] if targets else DEFAULT_TARGET))
    elif not targets and (own := runtime_for(desired.engine).default_hpa_metric):
        # Without pods there is no CPU or memory to measure, so KEDA needs another metric to scale from zero.
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
