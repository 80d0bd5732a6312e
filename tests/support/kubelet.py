"""Writes the statuses of pods that a kubelet would write, for control planes without nodes."""

from __future__ import annotations

from typing import Any

from components import naming
from kubeapi import kinds
from kubeapi.client import STRATEGIC_PATCH, KubeClient
from kubeapi.json_types import Json


def pods_of(client: KubeClient, namespace: str, service: str = "svc") -> list[Json]:
    """The pods of a service that are not being deleted, the oldest first."""
    found = client.list(kinds.PODS, namespace, label_selector=f"{naming.LABEL_SERVICE}={service}")["items"]
    alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return sorted(alive, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))


def write_ready_status(client: KubeClient, pod: Json, *, run: str = "c1", address: str = "") -> None:
    """Write a status in which the pod's containers run and are healthy; `address` is the pod's IP address."""
    _say(client, pod, ready=True, run=run, address=address, state={"running": {"startedAt": "2026-01-01T00:00:00Z"}})


def write_crashing_status(
    client: KubeClient, pod: Json, *, restarts: int = 4, run: str = "c1", message: str = "boom"
) -> None:
    """Write a status in which the pod's engine is in CrashLoopBackOff."""
    ended = {"exitCode": 1, "reason": "Error", "message": message, "containerID": "c0"}
    _say(
        client,
        pod,
        ready=False,
        run=run,
        restarts=restarts,
        state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting"}},
        lastState={"terminated": ended},
    )


def _say(
    client: KubeClient,
    pod: Json,
    *,
    ready: bool,
    run: str,
    state: Json,
    restarts: int = 0,
    address: str = "",
    **more: Any,
) -> None:
    word = "True" if ready else "False"
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": ready,
            "containerID": f"containerd://{run}",
            "restartCount": restarts,
            "state": state,
            **more,
        }
        for container in pod["spec"]["containers"]
    ]
    conditions = [{"type": kind, "status": word} for kind in ("PodScheduled", "Initialized")]
    conditions += [{"type": kind, "status": word} for kind in ("ContainersReady", "Ready")]
    status: Json = {"phase": "Running", "conditions": conditions, "containerStatuses": containers}
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    client.patch(
        kinds.PODS,
        pod["metadata"]["namespace"],
        pod["metadata"]["name"],
        {"status": status},
        content_type=STRATEGIC_PATCH,
        subresource="status",
    )
