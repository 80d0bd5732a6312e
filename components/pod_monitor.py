"""The PodMonitor of a service: Prometheus' operator scrapes its engine. Called by `components.render`.

Job and labels are those of LLMKube's chart, so that its dashboards and alerts find the same series.
"""

from __future__ import annotations

from components import naming
from components.object_metadata import object_metadata, selector_labels
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService

JOB = "llmkube-inference"
INTERVAL = "30s"

_LABELS = {"service": naming.LABEL_SERVICE, "model": naming.LABEL_MODEL, "runtime": naming.LABEL_RUNTIME}


def pod_monitor(desired: DesiredService) -> RenderedObject:
    """Build the monitor. Where the engine wants an API key, Prometheus reads it from the same Secret."""
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
    manifest: Json = {
        "apiVersion": kinds.POD_MONITORS.api_version,
        "kind": kinds.POD_MONITORS.kind,
        "metadata": object_metadata(desired, naming.deployment_name(desired.key.name), labels),
        "spec": {"selector": {"matchLabels": labels}, "podMetricsEndpoints": [endpoint]},
    }
    return RenderedObject("monitor", naming.TYPE_MONITORING, manifest)


def _meta_label(label: str) -> str:
    """Name a pod's label as Prometheus' service discovery does."""
    return "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in label)
