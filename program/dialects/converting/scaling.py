"""Converts autoscalers: metrics of a HorizontalPodAutoscaler, triggers of KEDA, and LLMKube's form of both. Pure.

KEDA turns its triggers `cpu` and `memory` into the metrics of a HorizontalPodAutoscaler, so these convert both ways.
Other triggers are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubeapi.json_types import Json
from program.desired.engines import EngineSettings, Generic, LlamaCpp, Ollama, Sglang, TensorRtLlm, Tgi, Vllm
from program.desired.service import DEFAULT_UTILIZATION
from program.dialects.converting.description import Scaling, TrackedDescription
from program.dialects.converting.fields import Fields
from program.runtimes import runtime_for

DEFAULT_TARGET = "2"
"""Running requests per pod, which LLMKube's autoscalers target if the user names no metric."""
_RESOURCES = ("cpu", "memory")
_ENGINES: dict[str, EngineSettings] = {
    each.kind: each for each in (LlamaCpp(), Vllm(), Sglang(), Tgi(), TensorRtLlm(), Ollama(), Generic())
}
_MOST = {"minReplicas": 10, "maxReplicas": 100}
"""Maximum values of LLMKube's fields."""
_BEHAVIOR = ("scaling", "keda", "advanced", "horizontalPodAutoscalerConfig", "behavior")


def of_pods(metric: str, target: str) -> Json:
    """Return a metric of pods in the format of autoscaling/v2."""
    return {
        "type": "Pods",
        "pods": {"metric": {"name": metric}, "target": {"type": "AverageValue", "averageValue": target}},
    }


def of_resource(name: str, utilization: Any) -> Json:
    """Return a utilization of the pods' requests in the format of autoscaling/v2."""
    target = {"type": "Utilization", "averageUtilization": utilization}
    return {"type": "Resource", "resource": {"name": name, "target": target}}


def from_kserve(fields: Fields) -> Scaling | None:
    """Read `scaling` of an LLMInferenceService. Unsupported parts stay unread, so they become losses."""
    most = fields.peek("scaling", "maxReplicas")
    if most is None:
        return None
    fields.read("scaling", "maxReplicas")
    fields.read("scaling", "minReplicas")
    metrics = []
    for index, trigger in enumerate(fields.peek("scaling", "keda", "triggers") or ()):
        if metric := _metric(trigger):
            fields.read("scaling", "keda", "triggers", index)
            metrics.append(metric)
    if fields.peek(*_BEHAVIOR):
        fields.read(*_BEHAVIOR)
    return Scaling(
        min_replicas=int(fields.peek("scaling", "minReplicas") or 1),
        max_replicas=int(most),
        metrics=tuple(metrics),
        behavior=fields.peek(*_BEHAVIOR) or None,
    )


def _metric(trigger: Any) -> Json | None:
    told = trigger.get("metadata") if isinstance(trigger, dict) else None
    if not isinstance(told, dict):
        return None
    kind, value = trigger.get("metricType", told.get("type")), str(told.get("value") or "")
    if trigger.get("type") not in _RESOURCES or set(told) - {"value", "type"} or not value:
        return None
    if kind == "Utilization" and value.isdecimal():
        return of_resource(trigger["type"], int(value))
    if kind == "AverageValue":
        target = {"type": kind, "averageValue": value}
        return {"type": "Resource", "resource": {"name": trigger["type"], "target": target}}
    return None


def to_kserve(written: TrackedDescription) -> Json | None:
    """Return `scaling` of an LLMInferenceService with KEDA; None if there is no trigger."""
    scaling: Scaling | None = written.use("scaling")
    if scaling is None:
        return None
    if written.description.replicas == 0:
        written.add_loss(
            "scaling",
            "the service is stopped (0 replicas), and KServe cannot have a number of replicas together with an "
            "autoscaler",
        )
        return None
    triggers = [trigger for metric in scaling.metrics if (trigger := _trigger(metric)) is not None]
    if len(triggers) < len(scaling.metrics) or not triggers:
        named = ", ".join(sorted({_name(metric) for metric in scaling.metrics if _trigger(metric) is None}))
        what = (
            f"and {named} needs the address of a Prometheus for that"
            if named
            else "and this autoscaler names no metric"
        )
        written.add_loss("scaling", f"KServe scales by KEDA's triggers, {what}")
    if not triggers:
        return None
    if scaling.min_replicas < 1:
        written.add_loss("scaling", "KServe keeps at least one replica")
    keda: Json = {"triggers": triggers}
    if scaling.behavior:
        keda["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": scaling.behavior}}
    return {"minReplicas": max(1, scaling.min_replicas), "maxReplicas": scaling.max_replicas, "keda": keda}


def _trigger(metric: Json) -> Json | None:
    body = metric.get("resource") or {}
    target = body.get("target") or {}
    if metric.get("type") != "Resource" or body.get("name") not in _RESOURCES:
        return None
    for kind, field in (("Utilization", "averageUtilization"), ("AverageValue", "averageValue")):
        if target.get(field):
            return {"type": body["name"], "metricType": kind, "metadata": {"value": str(target[field])}}
    return None


def _name(metric: Json) -> str:
    kind = str(metric.get("type") or "")
    body = metric.get(kind[:1].lower() + kind[1:]) or {}
    return str(body.get("name") or (body.get("metric") or {}).get("name") or kind)


def from_llmkube(fields: Fields, engine: EngineSettings) -> Scaling | None:
    """Read `autoscaling` of an InferenceService. Without a metric, it means the runtime's default metric."""
    wish = fields.read("autoscaling")
    if not wish:
        return None
    metrics = []
    for metric in wish.get("metrics") or ():
        if metric["type"] == "Resource":
            metrics.append(of_resource(metric["name"], metric.get("targetAverageUtilization") or DEFAULT_UTILIZATION))
        else:
            metrics.append(of_pods(metric["name"], str(metric.get("targetAverageValue"))))
    if not metrics and (default_metric := runtime_for(engine).default_hpa_metric):
        metrics.append(of_pods(default_metric, DEFAULT_TARGET))
    low = wish.get("minReplicas")
    return Scaling(min_replicas=1 if low is None else low, max_replicas=wish["maxReplicas"], metrics=tuple(metrics))


def to_llmkube(written: TrackedDescription) -> Json | None:
    """Return `autoscaling` of an InferenceService; None if there is no metric."""
    scaling: Scaling | None = written.use("scaling")
    if scaling is None:
        return None
    metrics = list(_in_llmkube(written, scaling))
    default_metric = runtime_for(_ENGINES[written.description.engine]).default_hpa_metric
    if scaling.behavior:
        written.add_loss("scaling", "LLMKube's autoscalers have no behavior")
    if not metrics and not default_metric:
        written.add_loss(
            "scaling",
            f"names no metric that LLMKube has, and runtime {written.description.engine} has no default metric",
        )
        return None
    if not metrics:
        why = (
            f"names no metric that LLMKube knows; the converted service scales on {default_metric}, "
            f"{DEFAULT_TARGET} per pod"
        )
        written.add_loss("scaling", why)
    numbers = {"minReplicas": scaling.min_replicas, "maxReplicas": scaling.max_replicas}
    for name, number in numbers.items():
        if number > _MOST[name]:
            written.add_loss("scaling", f"{name} is at most {_MOST[name]} with LLMKube, not {number}")
    found: Json = {name: min(number, _MOST[name]) for name, number in numbers.items()}
    # The runtime's default metric is left out, so that the service follows a later change of the default.
    if metrics and metrics != [_pods(default_metric, DEFAULT_TARGET)]:
        found["metrics"] = metrics
    return found


def _in_llmkube(written: TrackedDescription, scaling: Scaling) -> Iterator[Json]:
    for metric in scaling.metrics:
        body = metric.get(str(metric.get("type", "")).lower()) or {}
        target = body.get("target") or {}
        if metric.get("type") == "Resource" and target.get("averageUtilization"):
            yield {
                "type": "Resource",
                "name": body["name"],
                "targetAverageUtilization": target["averageUtilization"],
            }
        elif metric.get("type") == "Pods" and target.get("averageValue"):
            yield _pods(body["metric"]["name"], str(target["averageValue"]))
        else:
            written.add_loss("scaling", f"LLMKube has no metric of type {metric.get('type')} with such a target")


def _pods(name: str, target: str) -> Json:
    return {"type": "Pods", "name": name, "targetAverageValue": target}
