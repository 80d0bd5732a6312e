"""Replaces pods that are older than the user allows: by eviction, one at a time, only while the service is whole.

Called by the controller at the end of a pass. Eviction respects PodDisruptionBudgets; what they forbid is asked again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

import structlog

from automation.serving.engine_start import is_healthy, start_of
from automation.serving.idleness import IdleCheck, Idleness
from automation.serving.readiness import Proofs
from automation.status.event_recorder import EventRecorder
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from kubeapi.json_types import Json
from kubeapi.pods import evict
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.runtimes import runtime_for

log = structlog.get_logger(__name__)

FORBIDDEN_RETRY_S = 30.0
IDLE_RECHECK_S = 5.0
LONGEST_WAIT_S = 6 * 3600.0


class PodLifetime:
    """Evicts expired pods. Thread-safe for different services."""

    def __init__(
        self,
        client: KubeClient,
        recorder: EventRecorder,
        idle: IdleCheck,
        *,
        requeue: Callable[[ServiceKey, float], None],
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._idle = idle
        self._requeue = requeue

    def enforce(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        deployment: Json | None,
        pods: tuple[Json, ...],
        proofs: Proofs | None,
        *,
        now: datetime,
    ) -> None:
        """Evict one pod that is too old, if nothing speaks against it now; ask for a pass when it may be time."""
        lifetime_s = desired.max_pod_lifetime_s
        if lifetime_s is None or desired.host_placement is not None or not pods:
            return
        pod = min(pods, key=lambda pod: _age_s(pod, now=now) * -1.0)
        left_s = lifetime_s - _age_s(pod, now=now)
        if left_s > 0:
            self._requeue(key, min(left_s, LONGEST_WAIT_S))
            return
        if not is_whole(deployment, pods, proofs):
            return  # what makes it whole again brings the key back
        if not self._may_go(key, desired, pod, overdue_s=-left_s):
            self._requeue(key, IDLE_RECHECK_S)
            return
        self._evict(key, cr, pod, lifetime_s)

    def _may_go(self, key: ServiceKey, desired: DesiredService, pod: Json, *, overdue_s: float) -> bool:
        limit_s = desired.pod_lifetime_idle_timeout_s
        probe, start = runtime_for(desired.engine).idle_probe(desired), start_of(pod)
        said: Idleness | None = None
        if limit_s is not None and probe is not None and start is not None:
            said = self._idle.latest(start, probe, changed=lambda: self._requeue(key, 0.0))
        return may_go(limit_s, said, overdue_s=overdue_s)

    def _evict(self, key: ServiceKey, cr: Json, pod: Json, lifetime_s: int) -> None:
        name = pod["metadata"]["name"]
        try:
            evict(self._client, key.namespace, name, uid=pod["metadata"]["uid"])
        except (NotFound, Conflict):
            return
        except (TooManyRequests, Forbidden) as error:
            message = f"Could not evict pod {name}, which is older than {lifetime_s} s: {error.message}"
            self._recorder.record(cr, type="Warning", reason="PodRecycleForbidden", message=message)
            self._requeue(key, FORBIDDEN_RETRY_S)
            return
        except ApiError as error:
            log.warning("Could not evict an expired pod", pod=name, error=str(error))
            self._requeue(key, FORBIDDEN_RETRY_S)
            return
        log.info("Evicted an expired pod", pod=name)
        message = f"Evicted pod {name}, which is older than spec.maxPodLifetimeSeconds ({lifetime_s} s) allows"
        self._recorder.record(cr, type="Normal", reason="PodRecycled", message=message)


def is_whole(deployment: Json | None, pods: tuple[Json, ...], proofs: Proofs | None) -> bool:
    """Whether every replica that is wanted serves, and no rollout, scaling or replacement is under way. Pure."""
    if deployment is None:
        return False
    target, status = deployment["spec"]["replicas"], deployment.get("status") or {}
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")}
    if counts != {target} or status.get("observedGeneration") != deployment["metadata"]["generation"]:
        return False
    serve = proofs is None or all(proof is not None and proof.serves for proof in proofs.values())
    return len(pods) == target and all(is_healthy(pod) for pod in pods) and serve


def may_go(limit_s: int | None, said: Idleness | None, *, overdue_s: float) -> bool:
    """Whether an expired pod may be evicted now: idle, not to be waited for, or waited for long enough. Pure."""
    if limit_s is None or overdue_s >= limit_s:
        return True
    return said is not None and said.state == "idle"


def _age_s(pod: Json, *, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(pod["engine"]["created"])).total_seconds()
    except (KeyError, ValueError):
        return -math.inf
