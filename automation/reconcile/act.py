"""Carries out the actions of a pass. Nothing else in this folder changes the cluster or submits to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from automation.approval.approval import Approval
from automation.cache.cluster_cache import ClusterCache
from automation.certificates.engine_keys import LOOK_AT_NEW_EVERY, NEW_FOR, EngineKeys
from automation.certificates.issuing import CertificateIssuer
from automation.certificates.key_age import KeyAges, since_of
from automation.drift.drift_watch import DriftWatch
from automation.engine.batches import Batcher
from automation.hosts.registry import REFRESH_S
from automation.reconcile.act_on_pods import PodActor
from automation.reconcile.actions import (
    Action,
    ApplyObjects,
    ClearFailure,
    ClearPending,
    DeleteObjects,
    EnsureCertificate,
    EnsureEngineKey,
    PatchObject,
    RecordEvent,
    RequeueAfter,
    ReserveHosts,
    ReserveQuota,
    UpdateSleep,
    WithdrawQuota,
)
from automation.reconcile.remover import Remover
from automation.serving.sleep import SleepController
from automation.status.event_recorder import EventRecorder
from automation.telemetry.tracing import span
from components import naming
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Acted:
    """Failures of the actions of a pass, for the status."""

    problem: Problem | None = None
    outdated: bool = False
    """Another service reserved or released a host or a quota during the pass. The pass must be repeated."""
    unsupported: tuple[Problem, ...] = ()
    """Fields of the service that have no effect, each with the reason."""


@dataclass(frozen=True)
class Actor:
    """One per loop; thread-safe for different services."""

    client: KubeClient
    cluster: ClusterCache
    batcher: Batcher
    approval: Approval
    drift: DriftWatch
    remover: Remover
    recorder: EventRecorder
    pods: PodActor
    requeue: Callable[[ServiceKey, float], None]
    issuer: CertificateIssuer
    engine_keys: EngineKeys
    key_ages: KeyAges
    sleep: SleepController

    def act(self, key: ServiceKey, cr: Json, actions: Iterable[Action], *, now: datetime) -> Acted:
        """Carry out actions in their order. Raises ApiError: the next pass carries out the rest."""
        acted = Acted()
        for action in actions:
            acted = self._act(key, cr, action, acted, now=now)
        return acted

    def _act(self, key: ServiceKey, cr: Json, action: Action, acted: Acted, *, now: datetime) -> Acted:
        match action:
            case ApplyObjects():
                self._apply(action, now=now)
            case DeleteObjects():
                self.remover.sweep(key, action.objects)
            case PatchObject():
                self._patch(action)
            case EnsureCertificate():
                if problem := self.issuer.ensure(key, cr, action.certificate, action.desired):
                    return replace(acted, unsupported=(*acted.unsupported, problem))
            case EnsureEngineKey():
                since = since_of({"creationTimestamp": cr["metadata"].get("creationTimestamp")})
                is_new = since is not None and now - since < NEW_FOR
                if is_new:
                    self.requeue(key, LOOK_AT_NEW_EVERY.total_seconds())
                problem = self.engine_keys.ensure(key, action.desired, is_new=is_new)
                if problem := problem or self.key_ages.ensure(key, cr, action.desired):
                    return replace(acted, unsupported=(*acted.unsupported, problem))
            case UpdateSleep():
                self.sleep.reconcile(key, cr, action.desired, action.observed)
            case ReserveHosts():
                proposed = action.proposal.decision
                reserved = self.cluster.registry.reserve(key, action.proposal, action.service)
                if (reserved.refusals, reserved.stuck) != (proposed.refusals, proposed.stuck):
                    # The status of this pass reports the refusal that was proposed.
                    self.requeue(key, REFRESH_S)
                return replace(acted, outdated=acted.outdated or reserved.hosts != proposed.hosts)
            case ReserveQuota():
                denial = self.cluster.quotas.reserve(key, action.claim, without_model=action.without_model)
                return replace(acted, outdated=acted.outdated or action.admitted != (denial is None))
            case WithdrawQuota():
                self.cluster.quotas.withdraw(key)
            case ClearPending():
                self.approval.modes.settled(key, action.mode)
            case ClearFailure():
                self.batcher.runs.clear_failure(key, action.fingerprint)
            case RecordEvent():
                self.recorder.record(cr, type=action.type, reason=action.reason, message=action.message)
            case RequeueAfter():
                self.requeue(key, action.seconds)
            case _:
                found, then = self.pods.act(key, cr, action, now=now)
                acted = replace(acted, problem=acted.problem or found)
                for each in then:
                    acted = self._act(key, cr, each, acted, now=now)
        return acted

    def _apply(self, action: ApplyObjects, *, now: datetime) -> None:
        log.debug("Submitted to the engine", why=action.considered.plan.why)
        self.drift.submitted(action.considered, now=now)
        with span("submit"):
            self.batcher.submit(action.considered.rendered, asked=action.asked, mode=action.mode, now=now)

    def _patch(self, action: PatchObject) -> None:
        """Patch metadata. Raises Conflict when the object has another uid, or was changed after the cache saw it."""
        metadata = action.obj["metadata"]
        seen = {name: metadata[name] for name in ("uid", "resourceVersion")}
        body = {"metadata": {**seen, **action.metadata}}
        with suppress(NotFound):
            self.client.patch(
                action.kind, metadata.get("namespace"), metadata["name"], body, field_manager=naming.FIELD_MANAGER
            )
