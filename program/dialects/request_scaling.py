"""Reads how the requests at the gateways scale a service, and refuses settings that contradict it. Pure.

The parsers of all dialects call `request_scaling`. An error names the field or the annotation that contradicts. An
autoscaler that the service describes itself (`OwnScaler`) gives the bounds; `without_effect` lists the rest of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.service import Autoscaling, RequestScaling
from program.dialects.annotations import Annotated

IDLE_TIMEOUT_S = 300.0
"""The idle timeout of a service with `minReplicas: 0` that has no annotation for it."""
LONGEST_WINDOW_S = 3600
"""The longest window of a HorizontalPodAutoscaler, in seconds."""
_SCALE_BY = f"metadata.annotations[{keys.ANNOTATION_SCALE_BY}]"
_TARGET = f"metadata.annotations[{keys.ANNOTATION_TARGET_REQUESTS}]"
_WINDOW = "stabilizationWindowSeconds"
_LARGEST = f"metadata.annotations[{keys.ANNOTATION_MAX_REPLICAS}]"


@dataclass(frozen=True)
class OwnScaler:
    """The autoscaler that a service of llmaz or KServe describes itself."""

    field: str
    """Its path, such as `spec.elasticConfig`."""
    min_replicas: int
    max_replicas: int
    metrics_field: str = ""
    """Path of the metrics that the user names; empty if there are none."""
    behavior: Json | None = None
    """Speed of scaling in the format of autoscaling/v2."""
    behavior_field: str = ""
    idle_timeout_s: float | None = None
    """The time without use after which it stops all replicas; None if it never does."""
    unused: tuple[str, ...] = ()
    """Paths of its fields that mean nothing to a scaling by requests."""


def request_scaling(
    annotations: Mapping[str, str],
    annotated: Annotated,
    *,
    replicas: int,
    autoscaling: Autoscaling | None = None,
    own: OwnScaler | None = None,
    pinned: bool = False,
) -> RequestScaling | None:
    """Return how the gateways' requests scale a service; None if they do not.

    `replicas` is the number in the spec. `autoscaling` has the bounds of an InferenceService; other services have the
    upper one in an annotation, or in the autoscaler that they describe (`own`). `pinned`: the service names its host,
    which runs one replica. Raises SpecInvalid.
    """
    target = _number(annotations, keys.ANNOTATION_TARGET_REQUESTS, "requests")
    largest = _number(annotations, keys.ANNOTATION_MAX_REPLICAS, "replicas")
    if not annotated.scale_by_requests:
        return None
    if own is not None:
        check_metrics(own)
        autoscaling = Autoscaling(min_replicas=own.min_replicas, max_replicas=own.max_replicas)
    if autoscaling is not None and autoscaling.metrics:
        raise SpecInvalid(
            field="spec.autoscaling.metrics",
            why=f"has no effect with annotation {keys.ANNOTATION_SCALE_BY}: requests, which scales by the requests "
            "under way; remove one of the two",
        )
    if annotated.scale_query:
        raise SpecInvalid(
            field=f"metadata.annotations[{keys.ANNOTATION_SCALE_QUERY}]",
            why=f"is a query for KEDA, and annotation {keys.ANNOTATION_SCALE_BY} scales by requests; remove one of the "
            "two",
        )
    idle_s = annotated.sleep.idle_timeout_s if annotated.sleep is not None else None
    if idle_s is None and autoscaling is not None and autoscaling.min_replicas == 0:
        idle_s = IDLE_TIMEOUT_S
    if idle_s is None and own is not None:
        idle_s = own.idle_timeout_s
    if largest is not None:
        bounds_field = own.field if own is not None else "spec.autoscaling" if autoscaling is not None else ""
        _check_largest(largest, target, replicas=replicas, bounds_field=bounds_field)
        autoscaling = Autoscaling(min_replicas=max(1, replicas), max_replicas=largest)
    if target is not None and pinned:
        why = f"needs several hosts, and annotation {keys.ANNOTATION_HOST} names one; remove one of the two"
        raise SpecInvalid(field=_TARGET, why=why)
    if target is not None and autoscaling is None:
        why = (
            f"needs the largest number of replicas: set annotation {keys.ANNOTATION_MAX_REPLICAS}, or the autoscaler's "
            "maxReplicas (spec.autoscaling, spec.elasticConfig, spec.scaling)"
        )
        raise SpecInvalid(field=_TARGET, why=why)
    if target is None and idle_s is None:
        raise SpecInvalid(
            field=_SCALE_BY,
            why=f"has nothing to do: add {keys.ANNOTATION_IDLE_TIMEOUT}, or an autoscaler (such as spec.autoscaling) "
            f"with {keys.ANNOTATION_TARGET_REQUESTS}",
        )
    if autoscaling is None:
        return RequestScaling(min_replicas=max(1, replicas), max_replicas=max(1, replicas), idle_timeout_s=idle_s)
    low = max(1, autoscaling.min_replicas) if target is not None else max(1, replicas)
    high = max(low, autoscaling.max_replicas)
    found = RequestScaling(min_replicas=low, max_replicas=high, target=target, idle_timeout_s=idle_s)
    if own is None or target is None:
        return found
    window_s = _down_window_s(own)
    speed = {"behavior": own.behavior, **({"down_window_s": window_s} if window_s is not None else {})}
    return found.model_copy(update=speed)


def check_metrics(own: OwnScaler) -> None:
    """Raise SpecInvalid if the autoscaler follows metrics that the user names."""
    if own.metrics_field:
        raise SpecInvalid(
            field=own.metrics_field,
            why=f"names what the autoscaler follows, and annotation {keys.ANNOTATION_SCALE_BY} scales by the requests "
            "under way; remove one of the two",
        )


def without_effect(own: OwnScaler | None, rules: RequestScaling | None) -> Iterator[Problem]:
    """Yield the parts of a service's own autoscaler that scaling by requests does not use."""
    if own is None or rules is None:
        return
    for field in own.unused:
        yield unsupported_field(field, f"has no effect with annotation {keys.ANNOTATION_SCALE_BY}: requests")
    if rules.target is None:
        why = f"has no effect without annotation {keys.ANNOTATION_TARGET_REQUESTS}"
        yield unsupported_field(f"{own.field}.maxReplicas", f"{why}: the number is the same while the service is awake")
    elif set(own.behavior or {}) - {"scaleDown"} or set(_scale_down(own)) - {_WINDOW}:
        why = f"counts only while a HorizontalPodAutoscaler follows the requests; the loop itself uses {_WINDOW}"
        yield unsupported_field(own.behavior_field, f"{why} of scaleDown")


def _down_window_s(own: OwnScaler) -> float | None:
    """Return the window for scaling down, in seconds; None if the autoscaler sets none. Raises SpecInvalid."""
    value = _scale_down(own).get(_WINDOW)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LONGEST_WINDOW_S:
        field = f"{own.behavior_field}.scaleDown.{_WINDOW}"
        raise SpecInvalid(field=field, why=f"`{str(value)[:64]}` is not a number of 0 to {LONGEST_WINDOW_S} seconds")
    return float(value)


def _scale_down(own: OwnScaler) -> Json:
    down = (own.behavior or {}).get("scaleDown") or {}
    if not isinstance(down, dict):
        raise SpecInvalid(field=f"{own.behavior_field}.scaleDown", why="is not an object")
    return down


def _check_largest(largest: int, target: int | None, *, replicas: int, bounds_field: str) -> None:
    if target is None:
        why = f"has no effect without annotation {keys.ANNOTATION_TARGET_REQUESTS}; add that one, or remove this one"
    elif bounds_field:
        why = f"contradicts {bounds_field}, which has the largest number of replicas too; remove one of the two"
    elif largest < replicas:
        why = f"{largest} is less than the {replicas} replicas of the spec, which is the smallest number"
    else:
        return
    raise SpecInvalid(field=_LARGEST, why=why)


def _number(annotations: Mapping[str, str], name: str, of: str) -> int | None:
    value, field = annotations.get(name, ""), f"metadata.annotations[{name}]"
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 6 and int(value)):
        raise SpecInvalid(field=field, why=f"`{value[:64]}` is not a number of 1 to 99999 {of}")
    if not annotations.get(keys.ANNOTATION_SCALE_BY):
        raise SpecInvalid(
            field=field,
            why=f"has no effect without annotation {keys.ANNOTATION_SCALE_BY}: requests; add that one, or remove this "
            "one",
        )
    return int(value)
