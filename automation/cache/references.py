"""Which changes of watched objects concern a service, and which say nothing new. Pure; `cluster_cache` asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ANNOTATION_EXPOSE
from program.dialects.registry import DIALECTS, LLMKUBE

MADE = frozenset(
    {
        "Deployment",
        "Service",
        "HorizontalPodAutoscaler",
        "HostProcess",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "Ingress",
    }
)
"""Kinds that are made for InferenceServices and that every cluster serves."""


def uses(service: Json, changed: frozenset[Kind]) -> bool:
    """Tell whether what is rendered for a service depends on one of these kinds being served."""
    spec = service.get("spec") or {}
    exposed = (service["metadata"].get("annotations") or {}).get(ANNOTATION_EXPOSE) == "gateway"
    gateway = ((spec.get("endpoint") or {}).get("gateway") or {}).get("enabled")
    return bool(
        kinds.POD_MONITORS in changed
        or (kinds.HTTP_ROUTES in changed and (exposed or gateway))
        or (kinds.SCALED_OBJECTS in changed and spec.get("autoscaling"))
        or (kinds.SERVICE_LEVEL_OBJECTIVES in changed and spec.get("slo"))
    )


def asks_for_work(old: Json, new: Json) -> bool:
    """Tell an edit by somebody from our own status write."""
    before, after = old["metadata"], new["metadata"]
    return bool(
        before.get("generation") != after.get("generation")
        or before.get("annotations") != after.get("annotations")
        or before.get("deletionTimestamp") != after.get("deletionTimestamp")
        or before["uid"] != after["uid"]
    )


def changed_hands(
    old: Json | None,
    new: Json | None,
    service_of: Callable[[Mapping[str, str]], str] = DIALECTS[LLMKUBE].mark.service_of,
) -> bool:
    """Tell whether somebody gave an object the label of another service: for the first it is gone."""
    if old is None or new is None:
        return False
    before, after = (service_of(obj["metadata"]["labels"]) for obj in (old, new))
    return before != after


def without_version(obj: Json) -> Json:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return {**obj, "metadata": metadata}


def priority_class_of(service: Json) -> str:
    """Name the PriorityClass that a service's pods have."""
    spec = service.get("spec") or {}
    return str(spec.get("priorityClassName") or f"llmkube-{spec.get('priority') or 'normal'}")
