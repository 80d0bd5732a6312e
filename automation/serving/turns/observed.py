"""Reads pools and their members from the caches. Called by `pools`; sends no request but for a new namespace."""

from __future__ import annotations

from automation.approval.modes import mode_of
from automation.cache.cluster_cache import ClusterCache
from automation.leadership.shards import Shard
from automation.serving.scaling import AUTOSCALING_MANAGERS
from automation.serving.sleep_rule import start_failure
from automation.serving.turns.members import AgedPool, ServiceFacts
from automation.serving.turns.rules import Member
from automation.status.ownership import written_by_another
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.keys import ANNOTATION_IDLE_TIMEOUT, ANNOTATION_MODEL_GROUP, ANNOTATION_SCALE_BY, ServiceKey
from program.dialects.llmkube.parse.pool import pool_of
from program.dialects.registry import LLMKUBE

Problem = tuple[str, str]
"""Reason and message."""
_ENDED = ("Succeeded", "Failed")


def member_key(namespace: str, name: str) -> ServiceKey:
    """Return the key of a member: pools name InferenceServices of their own namespace."""
    return ServiceKey(LLMKUBE, namespace, name)


class PoolServices:
    """The pools that this loop manages, and the services that they name. Thread-safe."""

    def __init__(self, cluster: ClusterCache, shard: Shard) -> None:
        self._cluster = cluster
        self._shard = shard

    def pools(self, namespace: str | None = None) -> dict[tuple[str, str], Json]:
        """Return the pools of one namespace, or all, by namespace and name. Empty while the kind is not served."""
        informer = self._cluster.optional.informer(kinds.MODEL_POOLS)
        found = {}
        for cr in informer.list(namespace) if informer is not None else ():
            metadata = cr["metadata"]
            if self._shard.contains(metadata["namespace"]) and "deletionTimestamp" not in metadata:
                found[metadata["namespace"], metadata["name"]] = cr
        return found

    def is_ours(self, cr: Json) -> bool:
        """Return whether this loop manages a pool or a service. A pool of LLMKube's controller has to name Herdsman."""
        held = cr.get("kind") == kinds.MODEL_POOLS.kind and written_by_another(cr.get("status"))
        return self._cluster.is_ours(cr, held=held)

    def parsed(self, cr: Json) -> AgedPool | Problem:
        """Parse a pool, or return why it is not valid."""
        try:
            return AgedPool(pool_of(cr), str(cr["metadata"].get("creationTimestamp", "")))
        except SpecInvalid as error:
            return error.reason, f"{error}; the members stay as they are"

    def paused(self, cr: Json) -> Problem | None:
        """Return reason and message if the mode of a pool is Paused, or not valid."""
        try:
            mode = mode_of(cr, self._cluster.namespace_annotations(cr["metadata"]["namespace"]))
        except SpecInvalid as error:
            return error.reason, str(error)
        if mode != "Paused":
            return None
        return "Paused", f"The pool is in mode {mode}; the members stay as they are"

    def facts(self, key: ServiceKey, *, hosted: bool | None) -> ServiceFacts | None:
        """Return what decides whether a service can be a member; None for a service that does not exist.

        `hosted` is whether its last pass found it on hosts; None before the first pass.
        """
        cr = self._service(key)
        if cr is None or "deletionTimestamp" in cr["metadata"]:
            return None
        if hosted is None:
            objects = self._cluster.llmkube.index.objects(key.namespace, key.name)
            hosted = any(kind == kinds.HOST_PROCESSES.kind for kind, _ in objects)
        return facts_of(cr, self._deployment(key), managed=self.is_ours(cr), hosted=hosted)

    def generation(self, key: ServiceKey) -> int:
        """Return the generation of a service's spec; 0 where there is no service."""
        return int(((self._service(key) or {}).get("metadata") or {}).get("generation") or 0)

    def member(self, key: ServiceKey, *, waiting_since: float | None, stuck: bool, comes_last: bool) -> Member:
        """Return the state of a service that takes turns. `stuck`: its last pass could change nothing."""
        cr = self._service(key) or {}
        deployment = self._deployment(key)
        pods = [p for p in self._cluster.llmkube.index.pods(key.namespace, key.name) if p["phase"] not in _ENDED]
        live, status = (deployment or {}).get("spec") or {}, (deployment or {}).get("status") or {}
        runs = bool(live.get("replicas"))
        ready = any(pod["ready"] and not pod["metadata"]["deleting"] for pod in pods)
        return Member(
            name=key.name,
            runs=runs,
            occupies=runs or bool(status.get("replicas")) or bool(pods),
            ready=ready,
            failure="" if ready else start_failure(cr),
            frozen=stuck or self._is_frozen(cr),
            starts_alone=not (cr.get("metadata") or {}).get("annotations", {}).get(ANNOTATION_IDLE_TIMEOUT),
            comes_last=comes_last,
            waiting_since=waiting_since,
        )

    def _is_frozen(self, cr: Json) -> bool:
        try:
            return mode_of(cr, self._cluster.namespace_annotations(cr["metadata"]["namespace"])) != "Apply"
        except SpecInvalid:
            return True

    def _service(self, key: ServiceKey) -> Json | None:
        return self._cluster.llmkube.get(kinds.INFERENCE_SERVICES, key.namespace, key.name)

    def _deployment(self, key: ServiceKey) -> Json | None:
        objects = self._cluster.llmkube.index.objects(key.namespace, key.name)
        return objects.get((kinds.DEPLOYMENTS.kind, naming.deployment_name(key.name)))


def facts_of(cr: Json, deployment: Json | None, *, managed: bool, hosted: bool) -> ServiceFacts:
    """Return what decides whether a service can be a member. `deployment` has the form of `trim.deployment`."""
    spec, annotations = cr.get("spec") or {}, cr["metadata"].get("annotations") or {}
    live = (deployment or {}).get("spec") or {}
    scaled_by = str(live.get("scaled_by", ""))
    return ServiceFacts(
        managed=managed,
        autoscaled=bool(spec.get("autoscaling")),
        by_requests=bool(annotations.get(ANNOTATION_SCALE_BY)),
        scaled_by=scaled_by if scaled_by in AUTOSCALING_MANAGERS and live.get("replicas") else "",
        stopped=spec.get("replicas") == 0 or bool(spec.get("suspend")),
        hosted=hosted,
        own_group=str(annotations.get(ANNOTATION_MODEL_GROUP, "")),
        gpus=_gpus(live, spec.get("replicas", 1)),
        node_labels=spec.get("nodeSelector") or {},
    )


def _gpus(live: Json, replicas: object) -> int:
    """Return the GPUs that the replicas of a Deployment request."""
    amounts = [str(value) for name, value in (live.get("requests") or {}).items() if "/" in name]
    each = sum(int(amount) for amount in amounts if amount.isdigit())
    return each * (replicas if isinstance(replicas, int) else 1)
