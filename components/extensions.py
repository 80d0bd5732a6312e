"""The cluster extensions that a service needs, such as the Gateway API, KEDA or the Prometheus operator. Pure.

The loop, previews and static fleets report the objects that are left out because an extension is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from components.monitoring import measures_latency
from components.options import RenderOptions
from components.scaling import is_in_prometheus, keda_scales, needs_keda
from kubeapi import kinds
from kubeapi.kinds import Kind
from program.desired import keys
from program.desired.facts import Problem
from program.desired.service import DesiredService
from program.desired.workloads import Workloads

REASON = "NotInstalled"


def unsupported_by_cluster(desired: DesiredService, options: RenderOptions) -> tuple[Problem, ...]:
    """List the fields of a service in pods that need a missing extension, or that an extension does not support.

    Each problem concerns one object or setting; the other objects of the service are rendered.
    """
    if desired.host_placement is not None:
        return ()
    return (
        *_of_scaling(desired, options),
        *_of_exposure(desired, options),
        *_of_slo(desired, options),
        *_of_workloads(desired.workloads, options),
    )


def _of_scaling(desired: DesiredService, options: RenderOptions) -> Iterator[Problem]:
    scaling = desired.autoscaling
    if scaling is None or not needs_keda(scaling):
        return
    if keda_scales(desired, scaling, options):
        for index, metric in enumerate(scaling.metrics):
            if not scaling.query and metric.type == "Pods" and not is_in_prometheus(metric):
                why = (
                    f"`{metric.name[:64]}` is not a valid name of a Prometheus metric, so the autoscaler does not "
                    f"use it"
                )
                at = f"spec.autoscaling.metrics[{index}].name"
                yield Problem(reason="NotHonoured", message=why, field=at, terminal=True)
        return
    if not options.is_installed(kinds.SCALED_OBJECTS):
        cause = "KEDA is not installed"
    elif not options.prometheus_url:
        cause = "no Prometheus is configured for KEDA (HERDSMAN_PROMETHEUS_URL)"
    else:
        cause = (
            f"runtime {desired.engine.kind} has no default metric for KEDA; name a metric in spec.autoscaling.metrics"
        )
    if scaling.min_replicas == 0:
        yield _problem(
            "spec.autoscaling.minReplicas", f"is 0, which needs KEDA, and {cause}; one replica keeps running"
        )
    if scaling.query:
        field = f"metadata.annotations[{keys.ANNOTATION_SCALE_QUERY}]"
        yield _problem(field, f"needs KEDA, and {cause}; the autoscaler uses spec.autoscaling.metrics instead")


def _of_exposure(desired: DesiredService, options: RenderOptions) -> Iterator[Problem]:
    expose = desired.expose
    if expose is None or expose.by != "gateway" or options.is_installed(kinds.HTTP_ROUTES):
        return
    # Only LLMKube's own field routes by the name of the model.
    field = "spec.endpoint.gateway" if expose.model_name else f"metadata.annotations[{keys.ANNOTATION_EXPOSE}]"
    yield _problem(
        field, "needs the Gateway API, which is not installed; the service is reachable only inside the cluster"
    )


def _of_slo(desired: DesiredService, options: RenderOptions) -> Iterator[Problem]:
    slo = desired.slo
    if slo is None:
        return
    if not options.is_installed(kinds.SERVICE_LEVEL_OBJECTIVES):
        yield _problem("spec.slo", "needs Pyrra, which is not installed")
    elif slo.indicator == "latency" and not measures_latency(desired.engine):
        why = f"runtime {desired.engine.kind} has no metric for the duration of requests; use indicator availability"
        yield Problem(reason="NotHonoured", message=why, field="spec.slo.indicator", terminal=True)


def _of_workloads(workloads: Workloads | None, options: RenderOptions) -> Iterator[Problem]:
    if workloads is None:
        return
    asked: list[tuple[Kind, str, str, str]] = []
    if (route := workloads.route) is not None:
        why = "needs the Gateway API, which is not installed; the service is reachable only inside the cluster"
        asked.append((kinds.HTTP_ROUTES, route.name, route.asked_by, why))
    if (pool := workloads.pool) is not None:
        why = f"needs {kinds.INFERENCE_POOLS.full_name} (Gateway API inference extension), which is not installed"
        asked.append((kinds.INFERENCE_POOLS, pool.name, pool.asked_by, why))
    for template in workloads.claim_templates:
        why = (
            f"needs {kinds.CLAIM_TEMPLATES.full_name}, which this API server does not serve; the pods cannot start "
            f"without it"
        )
        asked.append((kinds.CLAIM_TEMPLATES, template.name, template.asked_by, why))
    for pods in workloads.pods:
        if (scaler := pods.scaler) is not None and scaler.kind == kinds.SCALED_OBJECTS.kind:
            why = "needs KEDA, which is not installed; the number of pods does not change"
            asked.append((kinds.SCALED_OBJECTS, scaler.name, scaler.asked_by, why))
    for kind, name, field, why in asked:
        if not options.may_have(kind):
            yield _problem(field or "spec", f"{kind.kind} {name} {why}")


def _problem(field: str, message: str) -> Problem:
    return Problem(reason=REASON, message=message, field=field)
