"""Writes the usage of GPUQuotas into their status, and fills the ledger at the start with the services that run.

`quota_ledger` decides. This module reports, soon after a change, and writes only statuses that differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from math import ceil

import structlog

from automation.admission.quota import Quota, QuotaClaim, QuotaName, QuotaUsage, over_use
from automation.cache.cluster_cache import ClusterCache
from automation.leadership.shards import WHOLE, Shard
from automation.reconcile.observe import live_sets
from automation.workqueue.debounce import Debounce, start_timer
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.quantities import read_quantity
from program.dialects.registry import LLMKUBE
from program.dialects.status.conditions import Type, set_condition

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 1.0
OTHERS_EVERY_S = 2.0
"""The interval at which the services of other shards are counted."""
RETRY_S = 10.0


class QuotaController:
    """Keeps the status of all GPUQuotas equal to the ledger. Call `start` after the caches are filled."""

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        *,
        shard: Shard = WHOLE,
        later: Callable[[float, Callable[[], None]], None] = start_timer,
    ) -> None:
        """`shard` is the part that this loop leads. The first one writes, and each counts the services of the others.

        `later` starts timers; tests pass their own.
        """
        self._later = later
        self._shard = shard
        self._others: dict[ServiceKey, QuotaClaim] = {}
        self._client = client
        self._cluster = cluster
        self._written: dict[QuotaName, tuple[str, int, Json]] = {}
        """By quota: its uid, and the version and the status of the last write."""
        self._soon = Debounce(self.report, delay_s=WRITE_EVERY_S)
        self._retry = Debounce(self.report, delay_s=RETRY_S)

    def start(self) -> None:
        """Count the running services, then report now and after each change."""
        self._cluster.quotas.now = lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for key, claim in running_claims(self._cluster).items():
            self._cluster.quotas.hold(key, claim)
        if self._shard.of > 1:
            self._count_again()
        if not self._shard.is_first:
            return
        self._cluster.quotas.on_changed = self._soon.trigger
        self.request_report()

    def request_report(self) -> None:
        """Request a `report` soon."""
        if self._shard.is_first:
            self._soon.trigger()

    def _count_again(self) -> None:
        """Count the services of other loops now and periodically, also after a failure."""
        try:
            self._count_other_loops()
        except Exception:
            log.exception("Failed to count the services that other loops admitted")
        self._later(OTHERS_EVERY_S, self._count_again)

    def _count_other_loops(self) -> None:
        """Count the services that other loops admitted, by their Deployments. `start` counts them first."""
        if self._cluster.quotas.quotas():
            claims = running_claims(self._cluster)
            others = {key: claim for key, claim in claims.items() if not self._shard.contains(key.namespace)}
            for key, claim in others.items():
                if self._others.get(key) != claim:
                    self._cluster.quotas.hold(key, claim)
            for key in self._others.keys() - others.keys():
                self._cluster.quotas.release(key)
            self._others = others

    def report(self) -> None:
        """Write each status that differs from the live one."""
        informer = self._cluster.optional.informer(kinds.GPU_QUOTAS)
        if informer is None:
            return
        quotas = self._cluster.quotas.quotas()
        for gone in self._written.keys() - quotas.keys():
            del self._written[gone]
        for name, usage in self._cluster.quotas.usages().items():
            if name not in quotas:
                continue
            try:
                if (cr := informer.get(name.namespace, name.name)) is not None:
                    self._report(cr, name, quotas[name], usage)
            except NotFound:
                continue
            except ApiError as error:
                log.warning("Could not write a quota's status", quota=f"{name.namespace}/{name.name}", error=str(error))
                self._retry.trigger()

    def _report(self, cr: Json, name: QuotaName, quota: Quota, usage: QuotaUsage) -> None:
        metadata = cr["metadata"]
        uid, version, written = self._written.get(name, ("", 0, {}))
        # The cache shows a write of this loop a moment later. A quota that was created again has no written status.
        behind = uid == metadata["uid"] and int(metadata["resourceVersion"]) < version
        current = written if behind else cr.get("status") or {}
        status = quota_status(quota, usage, current, generation=metadata["generation"], now=datetime.now(UTC))
        if status == current:
            return
        body = {
            "apiVersion": kinds.GPU_QUOTAS.api_version,
            "kind": kinds.GPU_QUOTAS.kind,
            "metadata": {"name": name.name, "namespace": name.namespace, "uid": metadata["uid"]},
            "status": status,
        }
        answer = self._client.apply(
            kinds.GPU_QUOTAS,
            name.namespace,
            body,
            field_manager=naming.FIELD_MANAGER,
            force=True,
            subresource="status",
        )
        self._written[name] = metadata["uid"], int(answer["metadata"]["resourceVersion"]), status


def quota_status(quota: Quota, usage: QuotaUsage, current: Json, *, generation: int, now: datetime) -> Json:
    """Make the status of a quota; equal to `current` when nothing has changed."""
    over = over_use(quota, usage)
    message = f"Services that existed before the quota use more than it allows: {over}" if over else "In force"
    status: Json = {
        "observedGeneration": generation,
        "usedGPUCount": usage.gpus,
        "usedVRAMBytes": usage.gpu_memory_bytes,
        "usedMemory": str(usage.memory_bytes),
        "admissionDenials": usage.denials,
        "conditions": set_condition(
            current.get("conditions") or [],
            type=Type.READY,
            status="True",
            reason="OverUsed" if over else "InForce",
            message=message,
            generation=generation,
            now=now,
        ),
    }
    if usage.last_denial is not None:
        status["lastDenial"] = asdict(usage.last_denial)
    return status


def running_claims(cluster: ClusterCache) -> dict[ServiceKey, QuotaClaim]:
    """Return the claim of each service that was admitted before the loop started, by the objects that run its pods.

    A Deployment does not hold the GPU memory of a pod, so that of the service's spec counts (`QuotaLedger.hold`).
    """
    found = _claims_of_workloads(cluster)
    for deployment in cluster.llmkube.listed(kinds.DEPLOYMENTS):
        metadata = deployment["metadata"]
        name = str(metadata["labels"].get(naming.LABEL_SERVICE, ""))
        cr = cluster.llmkube.get(kinds.INFERENCE_SERVICES, metadata["namespace"], name)
        if cr is not None and metadata["owner"] == cr["metadata"]["uid"]:
            found[ServiceKey(LLMKUBE, metadata["namespace"], name)] = running_claim(cluster, cr, deployment)
    return found


def running_claim(cluster: ClusterCache, cr: Json, deployment: Json) -> QuotaClaim:
    """Return the claim of one service by its Deployment, whichever controller made it."""
    metadata, spec = cr["metadata"], deployment["spec"]
    made = cluster.llmkube.index.objects(metadata["namespace"], metadata["name"]).values()
    maxima = [o.get("max_replicas") or 0 for o in made]
    # A service that sleeps keeps its claim.
    live = spec["replicas"] or _whole(deployment["metadata"]["annotations"].get(naming.ANNOTATION_ASLEEP))
    replicas = max(live, *maxima) if maxima else live
    requests = spec["requests"]
    gpus = sum(_whole(amount) for resource, amount in requests.items() if "/" in resource)
    resources = (cr.get("spec") or {}).get("resources") or {}
    return QuotaClaim(
        gpus=gpus * replicas,
        gpu_memory_bytes=_whole(resources.get("gpuMemory")) * replicas,
        memory_bytes=_whole(requests.get("memory")) * replicas,
        priority=cluster.priority_of(cr) or 0,
        created=str(metadata.get("creationTimestamp", "")),
    )


def _claims_of_workloads(cluster: ClusterCache) -> dict[ServiceKey, QuotaClaim]:
    """Return the claims of the services of other dialects than LLMKube's, by their Deployments and LeaderWorkerSets."""
    found = {}
    for dialect, cache in cluster.caches.items():
        for cr in cache.listed(cache.kind) if dialect != LLMKUBE else ():
            metadata = cr["metadata"]
            objects = cache.index.objects(metadata["namespace"], metadata["name"])
            maxima = {obj["target"]: obj["max_replicas"] or 0 for obj in objects.values() if "max_replicas" in obj}
            gpus = memory_bytes = 0
            for name, obj in live_sets(objects, metadata["uid"]).items():
                replicas = max(obj["spec"]["replicas"], maxima.get(name.name, 0))
                gpus += obj["spec"]["gpus"] * replicas
                memory_bytes += obj["spec"]["memory_bytes"] * replicas
            if gpus or memory_bytes:
                found[ServiceKey(dialect, metadata["namespace"], metadata["name"])] = QuotaClaim(
                    gpus=gpus,
                    memory_bytes=memory_bytes,
                    priority=cluster.priority_of(cr) or 0,
                    created=str(metadata.get("creationTimestamp", "")),
                )
    return found


def _whole(amount: object) -> int:
    try:
        return max(0, ceil(read_quantity(str(amount)))) if amount else 0
    except ValueError:
        return 0
