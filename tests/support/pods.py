"""Builders of pods as the API server returns them."""

from __future__ import annotations

from typing import Any

from automation.cache import trim
from components import naming
from kubeapi.json_types import Json


def pod(
    name: str = "p",
    *,
    healthy: bool = True,
    run: str = "c1",
    gate: bool = False,
    completed: tuple[str, str, str] | None = None,
    restarts: int = 0,
    waiting: str = "",
    created: str = "2026-01-01T00:00:00Z",
    **metadata: Any,
) -> Json:
    """A pod of service `svc` with one engine; `completed` holds status, reason and message of the `Completed`
    condition.
    """
    conditions = [{"type": kind, "status": str(healthy)} for kind in ("ContainersReady", "Ready")]
    if completed is not None:
        status, reason, message = completed
        conditions.append({"type": naming.CONDITION_COMPLETED, "status": status, "reason": reason, "message": message})
    state: Json = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    container = {"name": "llama-server", "ports": [{"name": "http", "containerPort": 8080}]}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "creationTimestamp": created,
            "labels": {naming.LABEL_SERVICE: "svc", "pod-template-hash": "abc"},
            **metadata,
        },
        "spec": {
            "containers": [container],
            **({"readinessGates": [{"conditionType": naming.CONDITION_COMPLETED}]} if gate else {}),
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [
                {"name": "llama-server", "containerID": run, "restartCount": restarts, "state": state, "ready": healthy}
            ],
        },
    }


def remembered(*args: Any, **kwargs: Any) -> Json:
    """A pod in the form that the loop caches."""
    return trim.pod(pod(*args, **kwargs))
