"""Pyrra's ServiceLevelObjective of a service. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import object_metadata, selector_labels
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.engines import EngineSettings, Sglang, Tgi, Vllm
from program.desired.service import DesiredService, ServiceLevelObjective

_LATENCY: dict[type[EngineSettings], str] = {
    Vllm: "vllm:e2e_request_latency_seconds",
    Sglang: "sglang:e2e_request_latency_seconds",
    Tgi: "tgi_request_duration",
}
"""The histogram of whole requests, in seconds, of the engines that have one."""


def measures_latency(engine: EngineSettings) -> bool:
    """Tell whether an engine counts how long its requests took."""
    return type(engine) in _LATENCY


def level_objective(desired: DesiredService, slo: ServiceLevelObjective) -> RenderedObject | None:
    """Build the objective from the series that the service's PodMonitor makes; None for what its engine never says."""
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
    manifest: Json = {
        "apiVersion": kinds.SERVICE_LEVEL_OBJECTIVES.api_version,
        "kind": kinds.SERVICE_LEVEL_OBJECTIVES.kind,
        "metadata": object_metadata(
            desired, slo.name or f"{desired.key.name}-{slo.indicator}", selector_labels(desired)
        ),
        "spec": {
            "target": slo.objective,
            "window": slo.window,
            "description": f"{slo.indicator.capitalize()} of inference service `{desired.key.name}`.",
            "indicator": indicator,
        },
    }
    return RenderedObject("objective", naming.TYPE_MONITORING, manifest)
