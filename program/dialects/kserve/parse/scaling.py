"""The autoscalers of an LLMInferenceService: a HorizontalPodAutoscaler, or a ScaledObject of KEDA. Pure.

`wva` scales on a metric of llm-d's variant autoscaler, `keda` on the user's triggers. While the autoscaler exists,
Herdsman does not set `replicas`. A service that is scaled by requests has no such autoscaler, but keeps its bounds.
"""

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.desired.workloads import Scaler
from program.dialects.kserve import naming
from program.dialects.kserve.parse.subject import Subject
from program.dialects.kserve.settings import PrometheusSettings
from program.dialects.request_scaling import OwnScaler

NO_PROMETHEUS = "PrometheusNotConfigured"
METRIC = "wva_desired_replicas"
ACCELERATOR = "inference.optimization/acceleratorName"
DEFAULT_COST = "10.0"
KEDA_COOLDOWN_S = 300.0
"""KEDA's default for cooldownPeriod."""
_KEDA_FIELDS = ("pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount", "fallback")


def scaler_of(subject: Subject, workload: Json, *, prefill: bool, field: str) -> Scaler | None:
    """Return the autoscaler of a workload; None if it has none, or if `scaler_fault` returns a problem."""
    scaling = workload.get("scaling")
    if scaling is None or scaler_fault(subject, workload, field=field) is not None:
        return None
    part = "prefill" if prefill else "main"
    common = naming.of_component(subject.name, naming.WORKLOAD)
    wva, keda = scaling.get("wva"), scaling.get("keda")
    if keda is not None:
        spec = {**_bounds(scaling), **_keda(keda), "triggers": list(keda.get("triggers") or ())}
        name = naming.scaled_object(subject.name, prefill=prefill)
        return Scaler(part=part, kind="ScaledObject", name=name, labels=common, spec=spec)
    if wva is None:
        raise SpecInvalid(field=f"{field}.scaling", why="names no autoscaler; set wva or keda")
    common[ACCELERATOR] = str((workload.get("labels") or {}).get(ACCELERATOR) or "unknown")
    annotations = {
        "llm-d.ai/managed": "true",
        "llm-d.ai/model-id": subject.model_name,
        "llm-d.ai/variant-cost": str(wva.get("variantCost") or DEFAULT_COST),
    }
    if wva.get("keda") is not None:
        name = naming.scaled_object(subject.name, prefill=prefill)
        trigger = _trigger(subject.settings.prometheus, name, subject.namespace)
        spec = {**_bounds(scaling), **_keda(wva["keda"]), "triggers": [trigger]}
        return Scaler(part=part, kind="ScaledObject", name=name, labels=common, annotations=annotations, spec=spec)
    name = naming.autoscaler(subject.name, prefill=prefill)
    return Scaler(
        part=part,
        kind="HorizontalPodAutoscaler",
        name=name,
        labels=common,
        annotations=annotations,
        spec=_autoscaler(scaling, wva.get("hpa") or {}, name),
    )


def own_scaler(scaling: Json | None, *, field: str, prefill: bool = False) -> OwnScaler | None:
    """Return what a scaling by requests uses of a workload's autoscaler; None if it has none.

    KEDA's `idleReplicaCount: 0` becomes the sleep after `cooldownPeriod`. Prefill pods only have bounds, because they
    follow the serving pods.
    """
    if scaling is None:
        return None
    wva = scaling.get("wva") or {}
    keda: Json = wva.get("keda") or {}
    at_keda = f"{field}.wva.keda"
    advanced: Json = keda.get("advanced") or {}
    config: Json = advanced.get("horizontalPodAutoscalerConfig") or {}
    behavior = (wva.get("hpa") or config).get("behavior") or None
    behavior_field = f"{field}.wva.hpa.behavior"
    if wva.get("hpa") is None:
        behavior_field = f"{at_keda}.advanced.horizontalPodAutoscalerConfig.behavior"
    cooldown = keda.get("cooldownPeriod")
    cooldown_s = KEDA_COOLDOWN_S if cooldown is None else max(1.0, float(cooldown))
    sleeps = not prefill and keda.get("idleReplicaCount") == 0
    used = ("idleReplicaCount", "cooldownPeriod") if sleeps else ()
    unused = [f"{at_keda}.{name}" for name in _KEDA_FIELDS if keda.get(name) is not None and name not in used]
    unused += [f"{at_keda}.advanced.{name}" for name in advanced if name != "horizontalPodAutoscalerConfig"]
    if str(wva.get("variantCost") or DEFAULT_COST) != DEFAULT_COST:
        unused.append(f"{field}.wva.variantCost")
    if prefill and behavior is not None:
        unused.append(behavior_field)
    return OwnScaler(
        field=field,
        min_replicas=int(scaling.get("minReplicas") or 1),
        max_replicas=int(scaling["maxReplicas"]),
        metrics_field=f"{field}.keda.triggers" if scaling.get("keda") is not None else "",
        behavior=None if prefill else behavior,
        behavior_field=behavior_field,
        idle_timeout_s=cooldown_s if sleeps else None,
        unused=tuple(unused),
    )


def scaler_fault(subject: Subject, workload: Json, *, field: str) -> Problem | None:
    """Return why the autoscaler of a workload cannot be created. The workload itself is created without it."""
    wva = (workload.get("scaling") or {}).get("wva") or {}
    if wva.get("keda") is None or subject.settings.prometheus.url:
        return None
    why = (
        "needs a Prometheus, and the cluster's settings name none, so the number of pods does not change. Set "
        "`prometheus.url` in key `autoscaling-wva-controller-config` of ConfigMap kserve/inferenceservice-config"
    )
    return Problem(reason=NO_PROMETHEUS, message=why, field=f"{field}.scaling.wva.keda")


def _bounds(scaling: Json) -> Json:
    return {"minReplicaCount": int(scaling.get("minReplicas") or 1), "maxReplicaCount": int(scaling["maxReplicas"])}


def _keda(keda: Json) -> Json:
    return {name: keda[name] for name in (*_KEDA_FIELDS, "advanced") if keda.get(name) is not None}


def _autoscaler(scaling: Json, hpa: Json, name: str) -> Json:
    metric = {"name": METRIC, "selector": {"matchLabels": {"variant_name": name}}}
    spec: Json = {
        "minReplicas": int(scaling.get("minReplicas") or 1),
        "maxReplicas": int(scaling["maxReplicas"]),
        "metrics": [{"type": "External", "external": {"metric": metric, "target": {"type": "Value", "value": "1"}}}],
    }
    if hpa.get("behavior"):
        spec["behavior"] = hpa["behavior"]
    return spec


def _trigger(prometheus: PrometheusSettings, name: str, namespace: str) -> Json:
    metadata = {
        "serverAddress": prometheus.url,
        "query": f'{METRIC}{{variant_name="{name}",exported_namespace="{namespace}"}}',
        "threshold": "1",
        "unsafeSsl": "true" if prometheus.tls_insecure_skip_verify else "false",
    }
    if prometheus.auth_modes:
        metadata["authModes"] = prometheus.auth_modes
    trigger: Json = {"type": "prometheus", "name": "wva-desired-replicas", "metadata": metadata}
    if prometheus.trigger_auth_name:
        reference = {"name": prometheus.trigger_auth_name}
        if prometheus.trigger_auth_kind:
            reference["kind"] = prometheus.trigger_auth_kind
        trigger["authenticationRef"] = reference
    return trigger
