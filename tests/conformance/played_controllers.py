"""Writes the statuses that the controllers of workloads, autoscalers and gateways would write. It makes no pods.

KServe's vectors were recorded without these controllers; only the step `simulate-ready` wrote their statuses. llmaz's
vectors were recorded with the controllers of workloads; pods became ready only in the step `pods-ready`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.conformance.environment import condition, gateway_status

_WHO = "example.com/simulated"


class PlayedControllers:
    """Plays the controllers in the namespace of one vector."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._unready: int | None = None
        """How many pods of each workload are not ready; None: all of them."""
        self._told: dict[str, Json] = {}
        """By uid the specs of the Deployments that were reported as ready."""
        self.answering = False
        """Whether new objects become ready at once, too."""

    def pods_ready(self, *, but: int = 0) -> None:
        """From now on report all pods of each workload as ready, except `but` of them."""
        self._unready = but

    def workloads(self) -> bool:
        """Write the ready pods into the status of every Deployment and LeaderWorkerSet; return whether any changed."""
        wrote = [
            self._write(kind, thing, said(thing, _ready_of(thing, self._unready)))
            for kind, said in ((kinds.DEPLOYMENTS, _deployment), (kinds.LEADER_WORKER_SETS, _leader_worker_set))
            for thing in self._list(kind)
        ]
        return any(wrote)

    def looked_again(self) -> bool:
        """Write the latest generation into the status of ready Deployments whose spec is unchanged.

        Their controller would do the same. The generation of a Deployment also changes with an annotation. Returns
        whether any status changed.
        """
        wrote = [
            self._write(kinds.DEPLOYMENTS, each, {"observedGeneration": each["metadata"]["generation"]})
            for each in self._list(kinds.DEPLOYMENTS)
            if self._told.get(each["metadata"]["uid"]) == each["spec"]
        ]
        return any(wrote)

    def everything_ready(self) -> bool:
        """Write into the status of all workloads, routes, pools, autoscalers and gateways that they are ready.

        Returns whether any status changed.
        """
        self.pods_ready()
        played: tuple[tuple[Kind, Callable[[Json], Json]], ...] = (
            (kinds.HTTP_ROUTES, _route),
            (kinds.INFERENCE_POOLS, _pool),
            (kinds.AUTOSCALERS, _autoscaler),
            (kinds.SCALED_OBJECTS, _scaled_object),
            (kinds.GATEWAYS, gateway_status),
        )
        wrote = [self.workloads()]
        self._told = {each["metadata"]["uid"]: each["spec"] for each in self._list(kinds.DEPLOYMENTS)}
        wrote += [self._write(kind, thing, said(thing)) for kind, said in played for thing in self._list(kind)]
        return any(wrote)

    def _list(self, kind: Kind) -> Iterator[Json]:
        with contextlib.suppress(NotFound):  # a kind that is not served
            yield from self._client.list(kind, self._namespace)["items"]

    def _write(self, kind: Kind, thing: Json, status: Json) -> bool:
        if _holds(thing.get("status") or {}, status):
            return False
        with contextlib.suppress(Conflict, NotFound):
            patch = {"status": status}
            self._client.patch(kind, self._namespace, thing["metadata"]["name"], patch, subresource="status")
        return True


def _holds(status: Any, wanted: Any) -> bool:
    """Return whether a status already has all values of `wanted`."""
    if isinstance(wanted, dict):
        return isinstance(status, dict) and all(_holds(status.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(status, list) and len(status) == len(wanted) and all(map(_holds, status, wanted))
    return bool(status == wanted or (not status and not wanted))  # the API server does not store empty values


def _ready_of(thing: Json, unready: int | None) -> int:
    replicas: int = thing["spec"].get("replicas", 1)
    return 0 if unready is None else max(replicas - unready, 0)


def _deployment(thing: Json, ready: int) -> Json:
    replicas, enough = thing["spec"].get("replicas", 1), ready >= thing["spec"].get("replicas", 1)
    return {
        "observedGeneration": thing["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": replicas - ready,
        "conditions": [
            condition("Available", enough, f"MinimumReplicas{'A' if enough else 'Una'}vailable"),
            condition("Progressing", True, "NewReplicaSetAvailable" if enough else "ReplicaSetUpdated"),
        ],
    }


def _leader_worker_set(thing: Json, ready: int) -> Json:
    name, replicas = thing["metadata"]["name"], thing["spec"].get("replicas", 1)
    enough = ready >= replicas
    told = condition("Available", True, "AllGroupsReady"), condition("Progressing", True, "GroupsProgressing")
    label = "leaderworkerset.sigs.k8s.io"
    return {
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": ready,
        "hpaPodSelector": f"{label}/name={name},{label}/worker-index=0",
        "conditions": [told[0] if enough else told[1]],
    }


def _parent(parent: Json, generation: int) -> Json:
    return {
        "parentRef": {
            key: parent[key] for key in ("group", "kind", "namespace", "name", "sectionName") if key in parent
        },
        "controllerName": _WHO,
        "conditions": [condition(kind, True, kind, generation) for kind in ("Accepted", "ResolvedRefs")],
    }


def _route(thing: Json) -> Json:
    generation = thing["metadata"]["generation"]
    return {"parents": [_parent(parent, generation) for parent in thing["spec"].get("parentRefs", ())]}


def _pool(thing: Json) -> Json:
    gateway = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "kserve-ingress-gateway"}
    return {"parents": [_parent({**gateway, "namespace": "kserve"}, thing["metadata"]["generation"])]}


def _autoscaler(thing: Json) -> Json:
    return {
        "currentReplicas": thing["spec"].get("minReplicas", 1),
        "desiredReplicas": thing["spec"].get("minReplicas", 1),
        "observedGeneration": thing["metadata"].get("generation", 1),
        "conditions": [
            condition("AbleToScale", True, "ReadyForNewScale"),
            condition("ScalingActive", True, "ValidMetricFound"),
        ],
    }


def _scaled_object(thing: Json) -> Json:
    return {"conditions": [condition("Ready", True, "ScaledObjectReady"), condition("Active", True, "ScalerActive")]}
