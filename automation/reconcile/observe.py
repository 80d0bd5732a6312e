"""Reads the objects that exist for one service from the informers' caches. Sends no request to the API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import ServiceCache
from automation.reconcile.plan import LiveObject, ObjectName
from automation.serving.engine_start import is_foreign
from components import naming
from kubeapi.json_types import Json
from program.desired.facts import (
    ClaimFacts,
    Problem,
    QueuePosition,
)
from program.desired.keys import ServiceKey


@dataclass(frozen=True)
class Observed:
    """The objects that exist for a service at one moment."""

    live: tuple[LiveObject, ...]
    claim_exists: bool
    """The namespace has a cache claim, whoever made it."""
    deployment: Json | None
    """The Deployment of an InferenceService, whoever made it."""
    pods: tuple[Json, ...]
    host_processes: Mapping[int, Json] = field(default_factory=dict)
    """The HostProcesses made for the service, by replica."""
    endpoint_slices: Mapping[int, Json] = field(default_factory=dict)
    """The EndpointSlices that agents publish for the service, by replica."""
    sets: Mapping[ObjectName, Json] | None = None
    """The Deployments and LeaderWorkerSets of a service of KServe or llmaz. None for an InferenceService, whose pods
    are those of `deployment`."""
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
    """The most memory that any node selected by the service could give one pod."""
    namespace_terminating: bool = False
    """The namespace is being deleted with all objects in it, so nothing can be created there."""

    @property
    def scaled_by(self) -> str:
        """The client that set the Deployment's replicas by its scale subresource: an autoscaler, `kubectl scale`."""
        return str(((self.deployment or {}).get("spec") or {}).get("scaled_by", ""))


def observe(cluster: ClusterCache, cache: ServiceCache, key: ServiceKey, *, owner: str | None) -> Observed:
    """Return what the caches hold for the service `key`.

    An object counts as live when the custom resource with the uid `owner` controls it. `owner` is None for a custom
    resource that is gone. An object that only has the service's label belongs to another owner.
    """
    objects = cache.index.objects(key.namespace, key.name)
    claim = cluster.claims.get(key.namespace, naming.CACHE_CLAIM)
    pods = (pod for pod in cache.index.pods(key.namespace, key.name) if not is_foreign(pod))
    processes = {obj["spec"]["replica"]: obj for (kind, _), obj in objects.items() if kind == "HostProcess"}
    observed = Observed(
        live=_live(objects, owner),
        claim_exists=claim is not None and not claim["metadata"]["deleting"],
        deployment=None,
        pods=tuple(_as_left(cluster, pod) for pod in pods),
        host_processes=processes,
        endpoint_slices=_endpoint_slices(cluster, key, {0, *processes}),
        autoscaler=_first(objects, "HorizontalPodAutoscaler", "ScaledObject", owner=owner),
        namespace_terminating=cluster.is_terminating(key.namespace),
    )
    if key.dialect != naming.LLMKUBE:
        return replace(observed, sets=live_sets(objects, owner))
    return _with_deployment(cluster, cache, key, observed, objects, owner=owner)


def _with_deployment(
    cluster: ClusterCache,
    cache: ServiceCache,
    key: ServiceKey,
    observed: Observed,
    objects: Mapping[tuple[str, str], Json],
    *,
    owner: str | None,
) -> Observed:
    """Add the facts that only an InferenceService has: a Deployment, a claim, a route, a place in the GPU queue."""
    deployment = objects.get(("Deployment", naming.deployment_name(key.name)))
    cr = cache.get(cache.kind, key.namespace, key.name) or {}
    queue, never_fits, preemption = cluster.scheduling.observe(key)
    return replace(
        observed,
        deployment=deployment,
        route=_first(objects, "HTTPRoute", "Ingress", owner=owner),
        cache_claim=_unbound_claim(cluster, key.namespace, deployment) if deployment else None,
        queue=queue,
        never_fits=never_fits,
        preemption=preemption,
        priority_value=_priority(cluster, cr, observed.pods),
        available_memory_bytes=cluster.scheduling.largest_memory_bytes((cr.get("spec") or {}).get("nodeSelector")),
    )


def live_sets(objects: Mapping[tuple[str, str], Json], owner: str | None) -> dict[ObjectName, Json]:
    """Return the Deployments and LeaderWorkerSets that live for a service."""
    return {
        ObjectName(kind, name): obj
        for (kind, name), obj in objects.items()
        if kind in ("Deployment", "LeaderWorkerSet")
        and obj["metadata"]["owner"] == owner
        and not obj["metadata"]["deleting"]
    }


def _live(objects: Mapping[tuple[str, str], Json], owner: str | None) -> tuple[LiveObject, ...]:
    """Return the objects that live for the custom resource with the uid `owner`; None: for one that is gone."""
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
    """Drop from a pod on a lost node what its kubelet reported before: ready containers and the completion check.

    When a node stops reporting, Kubernetes changes only the pod's Ready; ContainersReady stays as it was.
    """
    gone = not pod["ready"] or pod["metadata"]["deleting"]
    trouble = cluster.node_trouble(pod["node"]) if gone else ""
    if not trouble:
        return pod
    engine = {field: value for field, value in pod["engine"].items() if field not in ("healthy", "completed")}
    return {**pod, "engine": engine, "lost": trouble}


def _first(objects: Mapping[tuple[str, str], Json], *wanted: str, owner: str | None) -> Json | None:
    """Return the first object of these kinds that the service owns.

    KEDA's objects have its labels, but KEDA owns them.
    """
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
    """Return the priority of the pods; before there are any, the value of the PriorityClass that they will name."""
    values = [pod["priority"] for pod in pods if not pod["metadata"]["deleting"]]
    if values:
        return int(max(values))
    return cluster.priority_of(cr) if cr else None
