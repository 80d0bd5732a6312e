"""Carries out the actions of a pass on the pods of a service. `act` calls it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog

from automation.reconcile.actions import (
    DeletePod,
    EvictPod,
    PatchPod,
    PodAction,
    RecordEvent,
    RequeueAfter,
    SetPodCondition,
)
from automation.serving.replicas import Replicas, generation_of
from components import naming
from components.drained_pods import HUNG_S
from kubeapi import kinds
from kubeapi.client import STRATEGIC_PATCH, KubeClient
from kubeapi.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from kubeapi.json_types import Json
from kubeapi.pods import evict
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.dialects.status.conditions import timestamp

log = structlog.get_logger(__name__)

REFUSED_RETRY = timedelta(minutes=10)
"""Time until the next try after the API server forbade a write: the missing permission concerns all pods."""
DELETE_RETRY_S = 30.0
EVICTION_RETRY_S = 30.0

FollowUp = RecordEvent | RequeueAfter


class PodActor:
    """One per loop; thread-safe for different services."""

    def __init__(self, client: KubeClient, replicas: Replicas) -> None:
        self._client = client
        self._replicas = replicas
        self._muted_until = datetime.min.replace(tzinfo=UTC)

    def act(
        self, key: ServiceKey, cr: Json, action: PodAction, *, now: datetime
    ) -> tuple[Problem | None, tuple[FollowUp, ...]]:
        """Carry out one action.

        Returns the problem for the status, and the actions that must follow. A pod that is gone, or that has another
        uid, is no error: its successor enqueues the service again. Raises ApiError when an annotation cannot be
        removed.
        """
        match action:
            case SetPodCondition():
                self._set_condition(action, now=now)
            case PatchPod():
                self._patch(action)
            case DeletePod():
                return self._delete(key, cr, action, now=now)
            case EvictPod():
                return None, self._evict(key, action)
        return None, ()

    def _set_condition(self, action: SetPodCondition, *, now: datetime) -> None:
        if now < self._muted_until:
            return
        metadata = action.pod["metadata"]
        condition = {
            "type": naming.CONDITION_COMPLETED,
            "status": "True" if action.status else "False",
            "reason": action.reason,
            "message": action.message,
            "lastTransitionTime": timestamp(now),
        }
        body = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}}
        try:
            self._client.patch(
                kinds.PODS,
                metadata["namespace"],
                metadata["name"],
                body,
                content_type=STRATEGIC_PATCH,
                subresource="status",
                field_manager=naming.FIELD_MANAGER,
            )
        except (NotFound, Conflict):
            return
        except ApiError as error:
            # Without a readiness gate nothing depends on the condition. With one, the kubelet's next update of the pod
            # causes another try.
            log.warning("Could not write an engine's answer to its pod", pod=metadata["name"], error=str(error))
            if isinstance(error, Forbidden):
                self._muted_until = now + REFUSED_RETRY

    def _patch(self, action: PatchPod) -> None:
        metadata = action.pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"], "annotations": dict(action.annotations)}}
        try:
            self._client.patch(kinds.PODS, metadata["namespace"], metadata["name"], body)
        except NotFound:
            return

    def _delete(
        self, key: ServiceKey, cr: Json, action: DeletePod, *, now: datetime
    ) -> tuple[Problem | None, tuple[FollowUp, ...]]:
        try:
            # The pod answers no requests, so it need not finish them before it ends.
            self._client.delete(kinds.PODS, key.namespace, action.name, uid=action.uid, grace_period_s=HUNG_S)
        except (NotFound, Conflict):
            return None, ()
        except ApiError as error:
            log.warning("Could not delete a replica that does not serve", pod=action.name, error=str(error))
            message = (
                f"pod {action.name} does not answer a completion ({action.why}), but cannot be deleted: {error.message}"
            )
            return Problem(reason="CompletionFailed", message=message), (RequeueAfter(DELETE_RETRY_S),)
        self._replicas.note_replaced(key, action.name, generation=generation_of(cr), now=now)
        log.warning("Replaced a replica that does not serve", pod=action.name, why=action.why)
        message = f"Deleted pod {action.name}, so that it is replaced: {action.why}"
        return None, (RecordEvent("Warning", "ReplicaReplaced", message),)

    def _evict(self, key: ServiceKey, action: EvictPod) -> tuple[FollowUp, ...]:
        try:
            evict(self._client, key.namespace, action.name, uid=action.uid)
        except (NotFound, Conflict):
            return ()
        except (TooManyRequests, Forbidden) as error:
            message = f"Could not evict pod {action.name}, which is older than {action.lifetime_s} s: {error.message}"
            return RecordEvent("Warning", "PodRecycleForbidden", message), RequeueAfter(EVICTION_RETRY_S)
        except ApiError as error:
            log.warning("Could not evict an expired pod", pod=action.name, error=str(error))
            return (RequeueAfter(EVICTION_RETRY_S),)
        log.info("Evicted an expired pod", pod=action.name)
        message = (
            f"Evicted pod {action.name}, which is older than spec.maxPodLifetimeSeconds ({action.lifetime_s} s) allows"
        )
        return (RecordEvent("Normal", "PodRecycled", message),)
