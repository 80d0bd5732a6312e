"""Parses an InferenceService's scaling, rollouts, weight cache and service level objective. Pure.

Raises SpecInvalid with the field's path, even if the CRD has a rule for it, because the API server has not checked
objects from files.
"""

from __future__ import annotations

from collections.abc import Iterator

from program.desired import keys
from program.desired.errors import SpecInvalid
from program.desired.quantities import check_quantity
from program.desired.service import (
    DEFAULT_UTILIZATION,
    Autoscaling,
    Disruption,
    Exposure,
    ModelStorage,
    RolloutPolicy,
    ScalingMetric,
    ServiceLevelObjective,
)
from program.dialects.annotation_values import is_name
from program.dialects.annotations import Annotated
from program.dialects.llmkube.schema.service import (
    AutoscalingSpec,
    DisruptionSpec,
    EndpointSpec,
    Metric,
    ModelCacheSpec,
    RolloutPolicySpec,
    ServiceSpec,
    SloSpec,
)

IDLE_TIMEOUT_S = 300
"""Seconds that a change waits for idle replicas by default."""
NO_END_S = 100 * 365 * 24 * 3600
"""Seconds of a wait without an end."""


def exposure(annotated: Annotated, endpoint: EndpointSpec | None, *, model_ref: str) -> Exposure | None:
    """Return how clients reach the service: from the annotations or from LLMKube's `spec.endpoint.gateway`.

    Raises SpecInvalid if both are set.
    """
    gateway = endpoint.gateway if endpoint else None
    if gateway is None or not gateway.enabled:
        return annotated.expose
    if annotated.expose is not None:
        raise SpecInvalid(
            field="spec.endpoint.gateway",
            why=f"conflicts with annotation {keys.ANNOTATION_EXPOSE}; remove one of the two",
        )
    for part, value in (("name", gateway.gateway_ref.name), ("namespace", gateway.gateway_ref.namespace)):
        if value is not None and not is_name(value):
            raise SpecInvalid(field=f"spec.endpoint.gateway.gatewayRef.{part}", why=f"`{value[:64]}` is not a name")
    return Exposure(
        by="gateway",
        gateway=gateway.gateway_ref.name,
        gateway_namespace=gateway.gateway_ref.namespace or "",
        model_name=gateway.model_name or model_ref,
    )


def autoscaling(spec: AutoscalingSpec, *, query: str) -> Autoscaling:
    """Read the autoscaler, without the metrics that no autoscaler accepts. `query` is KEDA's, from an annotation."""
    metrics = tuple(_metric(each) for each in spec.metrics if not _metric_fault(each))
    low = min(spec.min_replicas, spec.max_replicas)
    return Autoscaling(min_replicas=low, max_replicas=spec.max_replicas, metrics=metrics, query=query)


def autoscaling_faults(spec: AutoscalingSpec) -> Iterator[tuple[str, str]]:
    """Yield the fields of the autoscaler that are ignored, with the cause."""
    at = "spec.autoscaling"
    if spec.min_replicas > spec.max_replicas:
        why = f"is {spec.min_replicas}, more than maxReplicas ({spec.max_replicas}); {spec.max_replicas} replicas run"
        yield f"{at}.minReplicas", why
    for index, metric in enumerate(spec.metrics):
        if fault := _metric_fault(metric):
            field, why = fault
            yield f"{at}.metrics[{index}].{field}", f"{why}; the autoscaler does not use this metric"


def _metric(metric: Metric) -> ScalingMetric:
    utilization = metric.target_average_utilization
    if metric.type == "Resource" and utilization is None:
        utilization = DEFAULT_UTILIZATION
    return ScalingMetric(
        type=metric.type,
        name=metric.name,
        target_average_value=metric.target_average_value,
        target_average_utilization=utilization,
    )


def _metric_fault(metric: Metric) -> tuple[str, str] | None:
    if metric.type == "Pods":
        if metric.target_average_value is None:
            return "targetAverageValue", "is needed for a metric of type Pods"
        try:
            check_quantity(metric.target_average_value, field="targetAverageValue", unit="cpu")
        except SpecInvalid as invalid:
            return invalid.field, invalid.why
        return None
    if metric.name not in ("cpu", "memory"):
        return "name", f"`{metric.name[:64]}` is not a resource; use cpu or memory"
    if metric.target_average_utilization is not None and metric.target_average_utilization < 1:
        return "targetAverageUtilization", "must be at least 1 for a metric of type Resource"
    return None


def disruption(spec: DisruptionSpec | None, annotated: Annotated) -> Disruption:
    wish = spec or DisruptionSpec()
    return Disruption(
        protect_startup=wish.protect_startup,
        protect_always=bool(wish.protect_always),
        max_unavailable=annotated.max_unavailable,
    )


def rollout(spec: RolloutPolicySpec | None, annotated: Annotated) -> RolloutPolicy:
    wish = spec or RolloutPolicySpec()
    return RolloutPolicy(
        wait_for_idle=bool(wish.wait_for_idle),
        idle_timeout_s=wish.idle_timeout_seconds or IDLE_TIMEOUT_S,
        force=bool(wish.force),
        rollback=annotated.rollback,
    )


def pod_lifetime_idle_timeout(spec: ServiceSpec) -> int | None:
    """Return how many seconds an old pod's replacement waits for it to be idle; None without `waitForIdle`: no wait."""
    policy = spec.rollout_policy
    if spec.max_pod_lifetime_seconds is None or policy is None or not policy.wait_for_idle or policy.force:
        return None
    limit = spec.max_pod_lifetime_idle_timeout_seconds
    return NO_END_S if limit is None else limit or None


def storage(spec: ModelCacheSpec | None) -> ModelStorage:
    if spec is None:
        return ModelStorage()
    if spec.persistence == "Ephemeral" and spec.claim_name is not None:
        raise SpecInvalid(
            field="spec.modelCache.claimName",
            why="names a volume for the weights, but persistence Ephemeral keeps no weights; remove one of the two",
        )
    return ModelStorage(persistence=spec.persistence or "Cached", claim_name=spec.claim_name or "")


def objective(spec: SloSpec | None) -> ServiceLevelObjective | None:
    if spec is None:
        return None
    if not 50 <= float(spec.objective) <= 99.999:
        raise SpecInvalid(field="spec.slo.objective", why=f"`{spec.objective}` is not a percentage from 50 to 99.999")
    if spec.indicator == "latency" and spec.latency_threshold is None:
        raise SpecInvalid(field="spec.slo.latencyThreshold", why="is required when indicator is latency")
    return ServiceLevelObjective(
        name=spec.name or "",
        objective=spec.objective,
        window=spec.window,
        indicator=spec.indicator,
        latency_threshold=spec.latency_threshold or "",
    )
