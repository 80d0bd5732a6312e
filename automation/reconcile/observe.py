"""Read what exists for one service out of the informers' caches: live objects for the plan, facts for the status.

Called by the controller once per pass. Reads caches only; never asks the API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from automation.cache.cluster_cache import ClusterCache
from automation.cache.references import priority_class_of
from automation.cache.service_index import ServiceIndex
from automation.cache.trim import LABEL_COMPONENT
from automation.hosts.host_allocations import PlacementDecision
from automation.hosts.hosted import hosted_facts
from automation.hosts.registry import HostRegistry
from automation.reconcile.plan import LiveObject, ObjectName
from automation.serving import scaling
from automation.serving.engine_start import is_foreign
from components import naming
from components.deployment import is_stopped
from kubeapi.json_types import Json
from program import sizing
from program.desired.facts import (
    AutoscalerFacts,
    ClaimFacts,
    GatewayFacts,
    MemoryFacts,
    PodFacts,
    Problem,
    QueuePosition,
    ServiceFacts,
)
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.llmkube.status.model import failure_of


@dataclass(frozen=True)
class Observed:
    """The objects that exist for a service at one moment."""

    live: tuple[LiveObject, ...]
    claim_exists: bool
    """The namespace's cache claim is there, whoever made it."""
    deployment: Json | None
    pods: tuple[Json, ...]
    host_processes: Mapping[int, Json] = field(default_factory=dict)
    """The HostProcesses made for the service, by replica."""
    endpoint_slices: Mapping[int, Json] = field(default_factory=dict)
    """The EndpointSlices that agents publish for the service, by replica."""
    sets: Mapping[ObjectName, Json] = field(default_factory=dict)
    """The Deployments and LeaderWorkerSets of a service that describes its pods itself."""
    autoscaler: Json | None = None
    """The HorizontalPodAutoscaler or ScaledObject made for the service."""
    route: Json | None = None
    """The HTTPRoute or Ingress made for the service."""
    cache_claim: ClaimFacts | None = None
    """A claim that the pods mount and that is not bound."""
    queue: QueuePosition | None = None
    never_fits: str = ""
    preemption: tuple[Problem, ...] = ()
    priority_value: int | None = None
    available_memory_bytes: int | None = None
    """Most memory that any node which the service selects could give one pod."""
    namespace_terminating: bool = False
    """Nothing can be made in the namespace any more; what is in it is being deleted."""

    @property
    def scaled_by(self) -> str:
        """Who set the Deployment's replicas through its scale subresource (an autoscaler, `kubectl scale`)."""
        return str(((self.deployment or {}).get("spec") or {}).get("scaled_by", ""))


def observe(cluster: ClusterCache, key: ServiceKey, *, owner: str | None) -> Observed:
    """Collect all that the caches know of the service `key`.

    An object counts as live for it when the custom resource with the uid `owner` controls it (None: one that is gone).
    An object that only carries the service's label belongs to somebody else.
    """
    objects = cluster.index.objects(key.namespace, key.name)
    live = _live(objects, owner)
    claim = cluster.claims.get(key.namespace, naming.CACHE_CLAIM)
    deployment = objects.get(("Deployment", naming.deployment_name(key.name)))
    pods = tuple(_as_left(cluster, pod) for pod in cluster.index.pods(key.namespace, key.name) if not is_foreign(pod))
    processes = {obj["spec"]["replica"]: obj for (kind, _), obj in objects.items() if kind == "HostProcess"}
    cr = cluster.services.get(key.namespace, key.name) or {}
    return Observed(
        live=live,
        claim_exists=claim is not None and not claim["metadata"]["deleting"],
        deployment=deployment,
        pods=pods,
        host_processes=processes,
        endpoint_slices=_endpoint_slices(cluster, key, {0, *processes}),
        autoscaler=_first(objects, "HorizontalPodAutoscaler", "ScaledObject", owner=owner),
        route=_first(objects, "HTTPRoute", "Ingress", owner=owner),
        cache_claim=_unbound_claim(cluster, key.namespace, deployment) if deployment else None,
        queue=cluster.scheduling.place(key),
        never_fits=cluster.scheduling.never_fits(key),
        preemption=cluster.scheduling.preemption(key),
        priority_value=_priority(cluster, cr, pods),
        available_memory_bytes=cluster.scheduling.largest_memory_bytes((cr.get("spec") or {}).get("nodeSelector")),
        namespace_terminating=cluster.is_terminating(key.namespace),
    )


def observe_described(cluster: ClusterCache, index: ServiceIndex, key: ServiceKey, *, owner: str | None) -> Observed:
    """Collect the same of a service of another dialect, which describes its pods itself."""
    objects = index.objects(key.namespace, key.name)
    processes = {obj["spec"]["replica"]: obj for (kind, _), obj in objects.items() if kind == "HostProcess"}
    sets = {
        ObjectName(kind, name): obj
        for (kind, name), obj in objects.items()
        if kind in ("Deployment", "LeaderWorkerSet")
        and obj["metadata"]["owner"] == owner
        and not obj["metadata"]["deleting"]
    }
    pods = tuple(_as_left(cluster, pod) for pod in index.pods(key.namespace, key.name))
    return Observed(
        live=_live(objects, owner),
        claim_exists=True,
        deployment=None,
        pods=pods,
        host_processes=processes,
        endpoint_slices=_endpoint_slices(cluster, key, {0, *processes}),
        sets=sets,
        autoscaler=_first(objects, "HorizontalPodAutoscaler", "ScaledObject", owner=owner),
        namespace_terminating=cluster.is_terminating(key.namespace),
    )


def _live(objects: Mapping[tuple[str, str], Json], owner: str | None) -> tuple[LiveObject, ...]:
    """Name the objects that live for the custom resource with the uid `owner`; None: for one that is gone."""
    return tuple(
        LiveObject(
            name=ObjectName(kind, name),
            uid=obj["metadata"]["uid"],
            applied_hash=obj["metadata"]["annotations"].get(naming.ANNOTATION_APPLIED_HASH, ""),
            generation=obj["metadata"]["generation"],
            owned=obj["metadata"].get("owned", ""),
            content=obj["metadata"].get("content", 0),
        )
        for (kind, name), obj in sorted(objects.items())
        if not obj["metadata"]["deleting"]
        and (obj["metadata"]["owner"] == owner or (owner is None and obj["metadata"]["owner"]))
    )


def _endpoint_slices(cluster: ClusterCache, key: ServiceKey, replicas: Iterable[int]) -> dict[int, Json]:
    names = ((number, naming.endpoint_slice_name(key.name, number, key.dialect)) for number in replicas)
    found = ((number, cluster.endpoint_slices.get(key.namespace, name)) for number, name in names)
    return {number: each for number, each in found if each is not None}


def _as_left(cluster: ClusterCache, pod: Json) -> Json:
    """Take from a pod on a lost node what its kubelet said before: that its containers are ready, what they answered.

    When a node falls silent, Kubernetes changes the pod's Ready alone; ContainersReady stays as it was.
    """
    gone = not pod["ready"] or pod["metadata"]["deleting"]
    trouble = cluster.node_trouble(pod["node"]) if gone else ""
    if not trouble:
        return pod
    engine = {field: value for field, value in pod["engine"].items() if field not in ("healthy", "completed")}
    return {**pod, "engine": engine, "lost": trouble}


def _first(objects: Mapping[tuple[str, str], Json], *wanted: str, owner: str | None) -> Json | None:
    """Find the service's own object of one of these kinds; what KEDA makes carries the labels, but is KEDA's."""
    for (kind, _), obj in sorted(objects.items()):
        if kind in wanted and obj["metadata"]["owner"] == owner and not obj["metadata"]["deleting"]:
            return obj
    return None


def _unbound_claim(cluster: ClusterCache, namespace: str, deployment: Json) -> ClaimFacts | None:
    for name in deployment["spec"]["claims"]:
        claim = cluster.claims.get(namespace, name)
        phase = claim["status"]["phase"] if claim is not None else ""
        if phase != "Bound":
            return ClaimFacts(name=name, found=claim is not None, phase=phase)
    return None


def _priority(cluster: ClusterCache, cr: Json, pods: tuple[Json, ...]) -> int | None:
    """The value that the pods have; before there are any, that of the class which they will name."""
    values = [pod["priority"] for pod in pods if not pod["metadata"]["deleting"]]
    if values:
        return int(max(values))
    return cluster.priority_value(priority_class_of(cr)) if cr else None


def service_facts(
    observed: Observed,
    *,
    desired: DesiredService | None,
    cr: Json,
    model: Json | None,
    applying: bool,
    objects_exist: bool,
    problem: Problem | None,
    unsupported: tuple[Problem, ...],
    now: datetime,
    proofs: Mapping[str, tuple[str, str]] | None = None,
    quota: Problem | None = None,
    registry: HostRegistry | None = None,
    hosts: PlacementDecision | None = None,
) -> ServiceFacts:
    """Turn what was observed into the facts that a status is made of.

    `proofs` says by a pod's uid what the completion check found (`PodFacts.proof`, message); a ready pod that it says
    nothing of has not been asked yet and does not count. None: no check is made. `registry` and `hosts`, what was
    decided, are asked for a service that runs on hosts.
    """
    spec_replicas = (cr.get("spec") or {}).get("replicas", 1)
    model_status = (model or {}).get("status") or {}
    common: dict[str, Any] = {
        "model_found": model is not None,
        "model_ready": model_status.get("phase") == "Ready",
        "model_failed": failure_of(model) if model is not None else "",
        "objects_exist": objects_exist,
        "applying": applying,
        "problem": problem,
        "unsupported": unsupported,
        "quota": quota,
        "priority_value": observed.priority_value,
    }
    if desired is not None and desired.host_placement is not None:
        target = 0 if is_stopped(desired) else desired.replicas
        placed = desired.host_placement.hosts[: max(1, target)]
        hosted, ready = hosted_facts(
            registry or HostRegistry(), placed, observed.host_processes, observed.endpoint_slices, hosts, now=now
        )
        return ServiceFacts(desired_replicas=target, replicas=target, ready_replicas=ready, hosted=hosted, **common)
    deployment = observed.deployment or {}
    status = deployment.get("status") or {}
    target = (deployment.get("spec") or {}).get("replicas", spec_replicas)
    if desired is not None and is_stopped(desired):
        target = 0
    elif desired is not None and desired.autoscaling is None and not scaled_elsewhere(desired, observed):
        # The spec is the truth at once; the Deployment follows in a moment.
        target = desired.replicas
    pods = [p for p in observed.pods if p["preempted"] or p.get("lost") or not p["metadata"]["deleting"]]
    facts = tuple(pod_facts(pod, proofs) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])))
    checked = proofs is not None and (desired is None or desired.completion_check)
    unproved = sum(1 for pod in facts if checked and pod.ready and pod.proof in ("", "failed"))
    return ServiceFacts(
        desired_replicas=target,
        # Until the Deployment controller has looked, nobody knows how many exist; the target is the best guess.
        replicas=status.get("replicas", 0) if status.get("observedGeneration") else target,
        ready_replicas=max(0, status.get("readyReplicas", 0) - unproved),
        unproved_replicas=unproved,
        pods=facts,
        queue=observed.queue,
        never_fits=observed.never_fits,
        preemption=observed.preemption,
        replica_failure=deployment.get("replica_failure", ""),
        cache_claim=observed.cache_claim,
        autoscaler=autoscaler_facts(observed.autoscaler),
        gateway=_gateway_facts(observed.route, desired),
        template_hash=_template_hash(deployment),
        behind=f"Deployment {deployment['metadata']['name']}" if deployment and is_behind(deployment) else "",
        **common,
    )


def memory_facts(desired: DesiredService, observed: Observed) -> MemoryFacts | None:
    """Estimate a replica's memory; what nodes could give counts only where the weights lie in it."""
    found = sizing.estimate(desired)
    if found is None or desired.gpu is not None or desired.host_placement is not None:
        return found
    return found.model_copy(update={"available_bytes": observed.available_memory_bytes})


def scaled_elsewhere(desired: DesiredService, observed: Observed) -> bool:
    """Tell whether the replicas are somebody else's, who set them on the Deployment."""
    return scaling.scaled_elsewhere(desired, observed.deployment)


def autoscaler_facts(autoscaler: Json | None) -> AutoscalerFacts | None:
    """Say what an autoscaler complains of."""
    if autoscaler is None:
        return None
    return AutoscalerFacts(kind=autoscaler["kind"], problem=autoscaler["problem"])


def _gateway_facts(route: Json | None, desired: DesiredService | None) -> GatewayFacts | None:
    if route is None or route["accepted"] is None:
        return None
    endpoint = ""
    host = next((host for host in route["hosts"] if host and not host.startswith("*")), "")
    if host and route["accepted"] and desired is not None:
        endpoint = f"{'https' if route['tls'] else 'http'}://{host}{desired.endpoint.path}"
    return GatewayFacts(accepted=route["accepted"], message=route["message"], endpoint=endpoint)


def is_behind(workload: Json) -> bool:
    """Tell whether a controller has looked at an earlier spec of its object and not yet at the present one.

    A LeaderWorkerSet's controller may say nothing of generations; then nobody can tell.
    """
    observed = workload["status"].get("observedGeneration")
    return observed is not None and observed < workload["metadata"]["generation"]


def _template_hash(deployment: Json) -> str:
    """Name the template that all replicas run, once the Deployment controller has seen it and replaced the last one."""
    status, metadata = deployment.get("status") or {}, deployment.get("metadata") or {}
    if not status.get("replicas") or status.get("observedGeneration") != metadata["generation"]:
        return ""
    if status.get("updatedReplicas") != status["replicas"]:
        return ""
    return str(metadata["annotations"].get(naming.ANNOTATION_TEMPLATE_HASH, ""))


def pod_facts(pod: Json, proofs: Mapping[str, tuple[str, str]] | None) -> PodFacts:
    """Say how one pod is; `proofs` as in `service_facts`."""
    problem = next((p for p in pod["problems"] if p["reason"]), pod["problems"][0] if pod["problems"] else {})
    proof, proof_message = (proofs or {}).get(pod["metadata"]["uid"], ("", "")) if pod["ready"] else ("", "")
    return PodFacts(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        component=pod["metadata"]["labels"].get(LABEL_COMPONENT, ""),
        node=pod["node"],
        node_lost=pod.get("lost", ""),
        leaving=pod["metadata"]["deleting"],
        phase=pod["phase"],
        ready=pod["ready"],
        proof=proof,
        proof_message=proof_message,
        unschedulable=pod["unschedulable"],
        waiting_reason=problem.get("reason", ""),
        waiting_message=problem.get("message", ""),
        container=problem.get("container", pod["init_running"]),
        init=problem.get("init", bool(pod["init_running"])),
        oom_killed=problem.get("oom_killed", False),
        exit_code=problem.get("exit_code"),
        restarts=problem.get("restarts", pod["engine"].get("restarts", 0)),
        image=problem.get("image", ""),
        preempted=pod["preempted"],
        nominated_node=pod["nominated_node"],
        requests={name: str(amount) for name, amount in pod["requests"].items()},
    )
