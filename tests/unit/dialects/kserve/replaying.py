"""Facts for unit tests of statuses: the objects of a service, and the statuses that controllers write."""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.facts import ConditionFact, ServiceFacts, WorkloadFacts
from program.desired.service import DesiredService
from program.desired.workloads import PodSet
from tests.conformance.environment import gateway_status

HTTP = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
_INGRESS = {**HTTP, "namespace": "kserve", "name": "kserve-ingress-gateway"}


def facts_of(desired: DesiredService | None, *, ready: bool, **more: Any) -> ServiceFacts:
    """Return facts in which each set of pods exists; all of them are ready, or none is."""
    workloads = desired.workloads if desired is not None else None
    sets = () if workloads is None or (desired and desired.suspended) else workloads.pods
    told = tuple(workload(pods, ready=ready) for pods in sets)
    main = told[0] if told else None
    return ServiceFacts(
        desired_replicas=main.wanted_replicas if main else 0,
        replicas=main.replicas if main else 0,
        ready_replicas=main.ready_replicas if main else 0,
        objects_exist=True,
        workloads=told,
        **more,
    )


def workload(pods: PodSet, *, ready: bool) -> WorkloadFacts:
    """Return facts in which one set of pods exists, and is either ready or not observed yet."""
    wanted = 1 if pods.replicas is None else pods.replicas
    grouped = pods.group is not None
    common = {"part": pods.part, "kind": "LeaderWorkerSet" if grouped else "Deployment", "name": pods.name}
    if not ready:
        return WorkloadFacts(**common, found=True, seen=False, wanted_replicas=wanted)
    return WorkloadFacts(
        **common,
        found=True,
        seen=True,
        wanted_replicas=wanted,
        replicas=wanted,
        ready_replicas=wanted,
        updated_replicas=wanted,
        available=ConditionFact(status="True", reason="MinimumReplicasAvailable"),
        progressing=None if grouped else ConditionFact(status="True", reason="NewReplicaSetAvailable"),
    )


def made_for(desired: DesiredService, *, ready: bool) -> list[Json]:
    """Return the route, the pool and the autoscalers of a service; their statuses report them as ready if `ready`."""
    workloads, namespace = desired.workloads, desired.key.namespace
    found: list[Json] = []
    if workloads is None or desired.suspended:
        return found
    if (route := workloads.route) is not None:
        parents = route.spec.get("parentRefs") or ()
        found.append(_object("gateway.networking.k8s.io/v1", "HTTPRoute", route.name, namespace, route.spec))
        found[-1]["status"] = {"parents": [accepted(parent) for parent in parents] if ready else []}
    if (pool := workloads.pool) is not None:
        found.append(_object("inference.networking.k8s.io/v1", "InferencePool", pool.name, namespace, pool.spec))
        found[-1]["status"] = {"parents": [accepted(_INGRESS)] if ready else []}
    for pods in workloads.pods:
        if (scaler := pods.scaler) is not None:
            version = "keda.sh/v1alpha1" if scaler.kind == "ScaledObject" else "autoscaling/v2"
            found.append(_object(version, scaler.kind, scaler.name, namespace, scaler.spec))
            told = {"type": "Ready" if scaler.kind == "ScaledObject" else "ScalingActive", "status": "True"}
            found[-1]["status"] = {"conditions": [told] if ready else []}
    return found


def accepted(parent: Json, generation: int = 1) -> Json:
    """Return the status entry by which a gateway accepts a route or pool."""
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "observedGeneration": generation}
        for kind in ("Accepted", "ResolvedRefs")
    ]
    return {"parentRef": dict(parent), "controllerName": "example.com/gateway", "conditions": conditions}


def said_of(thing: Json, *, ready: bool) -> Json:
    """Return an object of the user; if `ready`, with the status that its controller would write."""
    if not ready:
        return thing
    if thing["kind"] == "Gateway":
        return {**thing, "status": gateway_status(thing)}
    if thing["kind"] == "HTTPRoute":
        return {**thing, "status": {"parents": [accepted(p) for p in thing["spec"].get("parentRefs") or ()]}}
    if thing["kind"] == "InferencePool":
        return {**thing, "status": {"parents": [accepted(_INGRESS)]}}
    return thing


def _object(api_version: str, kind: str, name: str, namespace: str, spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "generation": 1}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
