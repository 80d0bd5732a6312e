"""Combines the checks of replicas: which serve, which are idle, and which hardware computes.

No method blocks a pass or changes a pod.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from automation.adoption.kept_templates import KeptTemplates
from automation.reconcile.actions import EvictPod, RequeueAfter
from automation.reconcile.observe import Observed
from automation.reconcile.plan import ObjectName
from automation.serving.acceleration import Acceleration, reported
from automation.serving.completion_check import CompletionCheck
from automation.serving.engine_start import start_of
from automation.serving.idleness import IdleCheck, Idleness
from automation.serving.pod_eviction import PodLifetime
from automation.serving.readiness import Proofs
from automation.serving.replicas import ReplicaReview, Replicas
from automation.serving.rollback import Rollback
from automation.serving.rollout import OPEN, RECHECK_S, Gate, deferred, gate, has_timed_out, may_serve, replaces_pods
from automation.serving.stall_watch import StallWatch
from automation.settings import Settings
from automation.telemetry.metrics import Metrics
from components import naming
from components.rendered import RenderedService
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.facts import AccelerationFacts, RolloutFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.runtimes import runtime_for


class Checks:
    """The checks of replicas, one method for each that a pass needs. `close` ends all threads."""

    def __init__(
        self,
        client: KubeClient,
        *,
        settings: Settings,
        metrics: Metrics,
        requeue: Callable[[ServiceKey, float], None],
    ) -> None:
        self._requeue = requeue
        self._metrics = metrics
        self._completion: CompletionCheck | None = None
        self._stalls: StallWatch | None = None
        if settings.completion_check:
            self._completion = CompletionCheck(
                client, timeout_s=settings.completion_timeout_s, on_answer=metrics.on_completion_check
            )
            self._stalls = StallWatch(
                client, self._completion.check, every_s=settings.stall_check_s, stall_s=settings.stall_timeout_s
            )
        self._kept = KeptTemplates(client)
        self._idle = IdleCheck(client)
        self._acceleration = Acceleration(client)
        self._rollback = Rollback(client)
        self._lifetime = PodLifetime(self._idle, requeue=requeue)
        self.replicas = Replicas(
            check=self._completion,
            stalls=self._stalls,
            requeue=requeue,
            on_stalled=metrics.on_stalled,
        )

    def review_replicas(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        observed: Observed,
        *,
        now: datetime,
        may_replace: bool = True,
    ) -> ReplicaReview:
        """Review the replicas; see `Replicas.review`."""
        return self.replicas.review(key, cr, desired, observed.pods, now=now, may_replace=may_replace)

    def apply_rollback(
        self, key: ServiceKey, cr: Json, desired: DesiredService, rendered: RenderedService, observed: Observed
    ) -> tuple[RenderedService, RolloutFacts]:
        """Replace a failing template by the last one that served; see `Rollback.apply`.

        An adopted service without a change keeps the template from before its adoption (`KeptTemplates`).
        """
        if desired.host_placement is not None:
            return rendered, RolloutFacts()
        live = observed.sets or {}
        if observed.deployment is not None:
            live = {ObjectName("Deployment", naming.deployment_name(key.name)): observed.deployment}
        rendered, kept = self._kept.apply(key, cr, rendered, live)
        if kept is not None or desired.workloads is not None:
            return rendered, RolloutFacts(kept=kept)
        wanted = desired.rollout.rollback
        return self._rollback.apply(key, cr, rendered, observed.deployment, observed.pods, wanted=wanted)

    def gate(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        rendered: RenderedService,
        observed: Observed,
        *,
        now: datetime,
    ) -> Gate:
        """Return whether the rendered change may be applied now, or waits until the replicas are idle."""
        policy = desired.rollout
        if not policy.wait_for_idle or policy.force or not replaces_pods(rendered, observed.deployment):
            return OPEN
        if has_timed_out(cr):
            return Gate(True, RolloutFacts(timed_out=True))
        found = gate(policy, observed.pods, self._idleness(key, desired, observed), before=deferred(cr), now=now)
        if not found.open:
            self._requeue(key, RECHECK_S)
        return found

    def _idleness(
        self, key: ServiceKey, desired: DesiredService, observed: Observed
    ) -> dict[str, Idleness | None] | None:
        probe = runtime_for(desired.engine).idle_probe(desired)
        if probe is None:
            return None
        found: dict[str, Idleness | None] = {}
        for pod in observed.pods:
            start = start_of(pod)
            if start is not None and may_serve(pod):
                again = lambda: self._requeue(key, 0.0)  # noqa: E731
                found[pod["metadata"]["name"]] = self._idle.latest(start, probe, changed=again)
        return found

    def acceleration(
        self, key: ServiceKey, cr: Json, desired: DesiredService, observed: Observed
    ) -> AccelerationFacts | None:
        """Return which hardware computes, by the log of a replica; until that is read, by the status."""
        if desired.gpu is None:
            return None
        found = self._acceleration.latest(desired, observed.pods, changed=lambda: self._requeue(key, 0.0))
        return found or reported(cr)

    def expired_pod(
        self, key: ServiceKey, desired: DesiredService, observed: Observed, proofs: Proofs | None, *, now: datetime
    ) -> tuple[EvictPod | RequeueAfter, ...]:
        """Choose a pod that is too old; see `PodLifetime.expired_pod`."""
        return self._lifetime.expired_pod(key, desired, observed.deployment, observed.pods, proofs, now=now)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        self.replicas.drop_service(key)
        self._rollback.drop_service(key)
        self._kept.drop_service(key)
        if key.dialect == "llmkube":
            self._metrics.drop_service(key.namespace, key.name)

    def idle(self) -> bool:
        """Return whether no probe waits or runs."""
        asked = (self._completion, self._idle, self._acceleration)
        return all(check is None or check.idle() for check in asked)

    def close(self) -> None:
        for check in (self._stalls, self._completion, self._idle, self._acceleration):
            if check is not None:
                check.close()
