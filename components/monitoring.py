"""The monitoring of a service: a PodMonitor for the Prometheus operator, a ServiceLevelObjective for Pyrra.

Called by `components.engine_workloads`. Job and labels are those of LLMKube's chart, so that its dashboards and alerts
find the same series.
"""

from __future__ import annotations

from components import naming
from components.naming import selector_labels
from kubeapi.json_types import Json
from program.desired.engines import EngineSettings, Sglang, Tgi, Vllm
from program.desired.service import DesiredService, ServiceLevelObjective
from program.desired.workloads import ObjectSpec

JOB = "llmkube-inference"
INTERVAL = "30s"

_LABELS = {"service": naming.LABEL_SERVICE, "model": naming.LABEL_MODEL, "runtime": naming.LABEL_RUNTIME}
_LATENCY: dict[type[EngineSettings], str] = {
    Vllm: "vllm:e2e_request_latency_seconds",
    Sglang: "sglang:e2e_request_latency_seconds",
    Tgi: "tgi_request_duration",
}
"""By engine, the histogram of the duration of whole requests in seconds. Other engines have none."""


def pod_monitor(desired: DesiredService) -> ObjectSpec:
    """Build the PodMonitor. If the engine requires an API key, Prometheus reads it from the service's Secret."""
    relabelings: list[Json] = [
        {"action": "replace", "sourceLabels": [_meta_label(label)], "targetLabel": name}
        for name, label in _LABELS.items()
    ]
    relabelings += [
        {"action": "replace", "sourceLabels": ["__meta_kubernetes_namespace"], "targetLabel": "namespace"},
        {"action": "replace", "replacement": JOB, "targetLabel": "job"},
    ]
    endpoint: Json = {"port": "http", "path": "/metrics", "interval": INTERVAL, "relabelings": relabelings}
    if desired.api_key is not None:
        key = {"name": desired.api_key.name, "key": desired.api_key.key}
        endpoint["authorization"] = {"type": "Bearer", "credentials": key}
    labels = selector_labels(desired)
    spec: Json = {"selector": {"matchLabels": labels}, "podMetricsEndpoints": [endpoint]}
    return ObjectSpec(name=naming.deployment_name(desired.key.name), labels=labels, spec=spec)


def measures_latency(engine: EngineSettings) -> bool:
    """Return whether an engine measures the duration of requests."""
    return type(engine) in _LATENCY


def level_objective(desired: DesiredService, slo: ServiceLevelObjective) -> ObjectSpec | None:
    """Build the objective from the series of the service's PodMonitor; None if the engine lacks the needed series."""
    series = f'{{namespace="{desired.key.namespace}",service="{desired.key.name}"'
    if slo.indicator == "availability":
        indicator: Json = {"bool_gauge": {"metric": f"up{series}}}"}}
    elif measures_latency(desired.engine):
        histogram = _LATENCY[type(desired.engine)]
        # Prometheus writes the bounds of buckets as floats.
        bound = str(float(slo.latency_threshold))
        indicator = {
            "latency": {
                "success": {"metric": f'{histogram}_bucket{series},le="{bound}"}}'},
                "total": {"metric": f"{histogram}_count{series}}}"},
            }
        }
    else:
        return None
    spec: Json = {
        "target": slo.objective,
        "window": slo.window,
        "description": f"{slo.indicator.capitalize()} of inference service `{desired.key.name}`.",
        "indicator": indicator,
    }
    name = slo.name or f"{desired.key.name}-{slo.indicator}"
    return ObjectSpec(name=name, labels=selector_labels(desired), spec=spec)


def _meta_label(label: str) -> str:
    """Return the name of a pod's label in Prometheus' service discovery."""
    return "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in label)
