"""Which changes of watched objects concern a service, and which say nothing new. Pure; `cluster_cache` asks."""

from __future__ import annotations

from kubeapi.json_types import Json


def asks_for_work(old: Json, new: Json) -> bool:
    """Tell an edit by somebody from our own status write."""
    before, after = old["metadata"], new["metadata"]
    return bool(
        before.get("generation") != after.get("generation")
        or before.get("annotations") != after.get("annotations")
        or before.get("deletionTimestamp") != after.get("deletionTimestamp")
        or before["uid"] != after["uid"]
    )


def without_version(obj: Json) -> Json:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
    return {**obj, "metadata": metadata}


def priority_class_of(service: Json) -> str:
    """Name the PriorityClass that a service's pods have."""
    spec = service.get("spec") or {}
    return str(spec.get("priorityClassName") or f"llmkube-{spec.get('priority') or 'normal'}")
