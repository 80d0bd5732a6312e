"""What the loop keeps of objects of services that describe their pods themselves; see also `automation.cache.trim`.

Called by the informers of `dialect_cache`. Pure.
"""

from __future__ import annotations

from sys import intern

from automation.cache import trim
from automation.serving.engine_start import engine_of
from kubeapi.json_types import Json

_ENGINES = ("main", "model-runner")
"""Names of the containers in which KServe and llmaz run the engine."""


def workload(obj: Json) -> Json:
    """Keep of a Deployment or LeaderWorkerSet of a service that describes its pods itself: also its conditions."""
    status = obj.get("status") or {}
    conditions = {
        kind: {key: str(each.get(key, ""))[: trim.MESSAGE_LENGTH] for key in ("status", "reason", "message")}
        for kind, each in trim.conditions_of(obj).items()
        if kind in ("Available", "Progressing")
    }
    selector = ((obj.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    chosen = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    return {
        **trim.deployment(obj),
        "kind": intern(obj.get("kind", "")),
        "conditions": conditions,
        "selector": status.get("hpaPodSelector") or chosen,
    }


def scaler(obj: Json) -> Json:
    """Keep of an autoscaler also its conditions, but for their words, which change with every measurement."""
    kept = trim.autoscaler(obj)
    conditions = [
        {key: str(each.get(key, "")) for key in ("type", "status", "reason")}
        for each in (obj.get("status") or {}).get("conditions") or ()
    ]
    version = f"{kept['metadata']['resourceVersion']} {conditions}"
    metadata = {**kept["metadata"], "resourceVersion": version}
    return {**kept, "metadata": metadata, "status": {"conditions": conditions}}


def whole(obj: Json) -> Json:
    """Keep an object that others read by its own fields, and what tells whose it is beside that."""
    kept = trim.custom_resource(obj)
    return {**kept, "metadata": {**kept["metadata"], **trim.made(obj), "labels": obj["metadata"].get("labels") or {}}}


def described_pod(obj: Json) -> Json:
    """Keep of a pod of such a service what is kept of others; its engine is known by the container's name, too."""
    kept = trim.pod(obj)
    engine = engine_of(obj, _ENGINES)
    engine.pop("foreign", None)
    return {**kept, "engine": engine}
