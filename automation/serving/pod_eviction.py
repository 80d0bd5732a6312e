"""Decides which pods may be evicted: old ones one at a time, and all ready ones by the node autoscaler.

Called at the end of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime

from automation.reconcile.actions import EvictPod, PatchPod, RequeueAfter
from automation.serving.engine_start import is_healthy, start_of
from automation.serving.idleness import IdleCheck, Idleness
from automation.serving.readiness import Proofs
from components import naming
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.runtimes import runtime_for

IDLE_RECHECK_S = 5.0
LONGEST_WAIT_S = 6 * 3600.0


class PodLifetime:
    """Thread-safe for different services. `requeue` asks for a pass of a service after some seconds."""

    def __init__(self, idle: IdleCheck, *, requeue: Callable[[ServiceKey, float], None]) -> None:
        self._idle = idle
        self._requeue = requeue

    def expired_pod(
        self,
        key: ServiceKey,
        desired: DesiredService,
        deployment: Json | None,
        pods: tuple[Json, ...],
        proofs: Proofs | None,
        *,
        now: datetime,
    ) -> tuple[EvictPod | RequeueAfter, ...]:
        """Return the action for the oldest pod: evict it, or reconcile the service when it may be evicted.

        Nothing for a service without a lifetime of pods or on hosts, and while not every replica serves.
        """
        lifetime_s = desired.max_pod_lifetime_s
        if lifetime_s is None or desired.host_placement is not None or not pods:
            return ()
        pod = min(pods, key=lambda pod: _age_s(pod, now=now) * -1.0)
        left_s = lifetime_s - _age_s(pod, now=now)
        if left_s > 0:
            return (RequeueAfter(min(left_s, LONGEST_WAIT_S)),)
        if not is_whole(deployment, pods, proofs):
            return ()  # the change that makes it complete enqueues the service again
        if not self._may_evict(key, desired, pod, overdue_s=-left_s):
            return (RequeueAfter(IDLE_RECHECK_S),)
        return (EvictPod(pod["metadata"]["name"], pod["metadata"]["uid"], lifetime_s),)

    def _may_evict(self, key: ServiceKey, desired: DesiredService, pod: Json, *, overdue_s: float) -> bool:
        limit_s = desired.pod_lifetime_idle_timeout_s
        probe, start = runtime_for(desired.engine).idle_probe(desired), start_of(pod)
        said: Idleness | None = None
        if limit_s is not None and probe is not None and start is not None:
            said = self._idle.latest(start, probe, changed=lambda: self._requeue(key, 0.0))
        return may_evict(limit_s, said, overdue_s=overdue_s)


def is_whole(deployment: Json | None, pods: tuple[Json, ...], proofs: Proofs | None) -> bool:
    """Return whether every desired replica serves, and no rollout, scaling or replacement is under way. Pure."""
    if deployment is None:
        return False
    target, status = deployment["spec"]["replicas"], deployment.get("status") or {}
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")}
    if counts != {target} or status.get("observedGeneration") != deployment["metadata"]["generation"]:
        return False
    serve = proofs is None or all(proof is not None and proof.serves for proof in proofs.values())
    return len(pods) == target and all(is_healthy(pod) for pod in pods) and serve


def may_evict(limit_s: int | None, said: Idleness | None, *, overdue_s: float) -> bool:
    """Return whether an expired pod may be evicted now: it is idle, or the time to wait for that is over. Pure."""
    if limit_s is None or overdue_s >= limit_s:
        return True
    return said is not None and said.state == "idle"


def _age_s(pod: Json, *, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(pod["engine"]["created"])).total_seconds()
    except (KeyError, ValueError):
        return -math.inf


def unprotect_ready_pods(desired: DesiredService, pods: Iterable[Json]) -> tuple[PatchPod, ...]:
    """Return the actions that remove the annotation `do-not-disrupt` from ready pods.

    It is removed from the pod and not from the template, because a change of the template would restart the pod.
    """
    if desired.disruption.protect_always or naming.ANNOTATION_DO_NOT_DISRUPT in desired.pod.annotations:
        return ()
    return tuple(
        PatchPod(pod, {naming.ANNOTATION_DO_NOT_DISRUPT: None})
        for pod in pods
        if pod["ready"] and naming.ANNOTATION_DO_NOT_DISRUPT in pod["metadata"]["annotations"]
    )
