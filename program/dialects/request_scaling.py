"""Reads how the requests at the gateways scale a service, and refuses settings that contradict it. Pure.

The parsers of all dialects call `request_scaling`. An error names the field or the annotation that contradicts.
"""

from __future__ import annotations

from collections.abc import Mapping

from program.desired import keys
from program.desired.errors import SpecInvalid
from program.desired.service import Autoscaling, RequestScaling
from program.dialects.annotations import Annotated

IDLE_TIMEOUT_S = 300.0
"""The idle timeout of a service with `minReplicas: 0` that has no annotation for it."""
_SCALE_BY = f"metadata.annotations[{keys.ANNOTATION_SCALE_BY}]"
_TARGET = f"metadata.annotations[{keys.ANNOTATION_TARGET_REQUESTS}]"
_LARGEST = f"metadata.annotations[{keys.ANNOTATION_MAX_REPLICAS}]"


def request_scaling(
    annotations: Mapping[str, str],
    annotated: Annotated,
    *,
    replicas: int,
    autoscaling: Autoscaling | None = None,
    other_scaler: str = "",
    pinned: bool = False,
) -> RequestScaling | None:
    """Return how the gateways' requests scale a service; None if they do not.

    `replicas` is the number in the spec. `autoscaling` has the bounds of an InferenceService; other services have the
    upper one in an annotation. `other_scaler` is the field of an autoscaler that the service itself describes; empty if
    there is none. `pinned`: the service names its host, which runs one replica. Raises SpecInvalid.
    """
    target = _number(annotations, keys.ANNOTATION_TARGET_REQUESTS, "requests")
    largest = _number(annotations, keys.ANNOTATION_MAX_REPLICAS, "replicas")
    if not annotated.scale_by_requests:
        return None
    if other_scaler:
        raise SpecInvalid(
            field=other_scaler,
            why=f"asks for an autoscaler, and annotation {keys.ANNOTATION_SCALE_BY} scales by requests; remove one of "
            "the two",
        )
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
    if largest is not None:
        _check_largest(largest, target, replicas=replicas, autoscaling=autoscaling)
        autoscaling = Autoscaling(min_replicas=max(1, replicas), max_replicas=largest)
    if target is not None and pinned:
        why = f"needs several hosts, and annotation {keys.ANNOTATION_HOST} names one; remove one of the two"
        raise SpecInvalid(field=_TARGET, why=why)
    if target is not None and autoscaling is None:
        why = (
            f"needs the largest number of replicas: set annotation {keys.ANNOTATION_MAX_REPLICAS}, or "
            "spec.autoscaling.maxReplicas of an InferenceService"
        )
        raise SpecInvalid(field=_TARGET, why=why)
    if target is None and idle_s is None:
        raise SpecInvalid(
            field=_SCALE_BY,
            why=f"has nothing to do: add {keys.ANNOTATION_IDLE_TIMEOUT}, or spec.autoscaling with "
            f"{keys.ANNOTATION_TARGET_REQUESTS}",
        )
    if autoscaling is None:
        return RequestScaling(min_replicas=max(1, replicas), max_replicas=max(1, replicas), idle_timeout_s=idle_s)
    low = max(1, autoscaling.min_replicas) if target is not None else max(1, replicas)
    high = max(low, autoscaling.max_replicas)
    return RequestScaling(min_replicas=low, max_replicas=high, target=target, idle_timeout_s=idle_s)


def _check_largest(largest: int, target: int | None, *, replicas: int, autoscaling: Autoscaling | None) -> None:
    if target is None:
        why = f"has no effect without annotation {keys.ANNOTATION_TARGET_REQUESTS}; add that one, or remove this one"
    elif autoscaling is not None:
        why = "contradicts spec.autoscaling, which has the largest number of replicas too; remove one of the two"
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
