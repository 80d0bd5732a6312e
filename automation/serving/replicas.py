"""Finds out which replicas of a service serve, tells it to their pods, and replaces those that only say so.

Called by the controller in each pass; asks `completion_check` and `stall_watch`, which do their work elsewhere, decides
by `readiness`, and acts. What was found out stands on the pod, as a condition that names the start it is about: a loop
that starts anew asks no replica again, and a pod with a readiness gate gets requests only once it has answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

from automation.serving.completion_check import CompletionCheck, Proof
from automation.serving.engine_start import EngineStart, is_healthy, start_of
from automation.serving.readiness import (
    MOST_REPLACED,
    REPLACE_AFTER,
    Proofs,
    Replaced,
    all_serve,
    asked_pods,
    condition_for,
    to_replace,
    written_proof,
)
from automation.serving.stall_watch import StallWatch
from automation.status.event_recorder import EventRecorder
from components import naming
from components.drain import HUNG_S
from kubeapi import kinds
from kubeapi.client import STRATEGIC_PATCH, KubeClient
from kubeapi.errors import ApiError, Conflict, Forbidden, NotFound
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.conditions import timestamp
from program.runtimes import runtime_for

log = structlog.get_logger(__name__)

REFUSED_RETRY = timedelta(minutes=10)
"""A right that is missing is missing for all pods; it is tried again now and then."""

RETRY_S = 30.0


class Replicas:
    """Remembers what was replaced. Thread-safe for different services.

    Without `check` a replica's health is enough, and gates are opened at once. `requeue` asks for a pass of a service
    in so many seconds; `on_stalled` is told namespace and name of a service whose replica makes no token.
    """

    def __init__(
        self,
        client: KubeClient,
        recorder: EventRecorder,
        *,
        check: CompletionCheck | None,
        stalls: StallWatch | None,
        requeue: Callable[[ServiceKey, float], None],
        on_stalled: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._check = check
        self._stalls = stalls
        self._requeue = requeue
        self._on_stalled = on_stalled
        self._lock = threading.Lock()
        self._mute_until = datetime.min.replace(tzinfo=UTC)
        self._replaced: dict[ServiceKey, Replaced] = {}
        self._stalled: dict[ServiceKey, dict[EngineStart, str]] = {}
        self._standing: dict[ServiceKey, frozenset[EngineStart]] = {}

    def prove(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        pods: tuple[Json, ...],
        *,
        now: datetime,
        may_replace: bool = True,
    ) -> tuple[Proofs | None, Problem | None]:
        """Say what is known of each healthy replica, and act on it: write it on the pod, replace what fails.

        `may_replace` False: a service that is paused, or waits for approval, keeps the pods that it has.

        `readiness.asked_pods` chooses the pods. Replicas of a KServe or llmaz service that was Ready before the first
        check count until their first answer, so that an upgrade takes no replica away.

        Returns None for the proofs where health is enough, and a Problem when replacing has not helped.
        """
        self._drop_gone(key, pods)
        pods = asked_pods(desired, pods)
        wanted = self._check is not None and desired.completion_check and desired.host_placement is None
        self._note_standing(key, cr, desired, pods, wanted=wanted)
        proofs = {
            pod["metadata"]["name"]: self._proof(key, desired, pod, wanted=wanted) for pod in pods if is_healthy(pod)
        }
        for pod in pods:
            self._tell(pod, proofs.get(pod["metadata"]["name"]), wanted=wanted, now=now)
        if not wanted:
            return None, None
        self._follow(key, desired, pods, proofs)
        return proofs, self._replace(key, cr, pods, proofs, now=now) if may_replace else None

    def forget(self, key: ServiceKey) -> None:
        """Let go of a service that is gone."""
        with self._lock:
            self._replaced.pop(key, None)
            self._stalled.pop(key, None)
            self._standing.pop(key, None)
        if self._stalls is not None:
            self._stalls.unfollow(key)

    def _drop_gone(self, key: ServiceKey, pods: tuple[Json, ...]) -> None:
        with self._lock:
            stalled = self._stalled.pop(key, {})
            there = {start for pod in pods if (start := start_of(pod)) is not None} if stalled else set()
            if left := {start: why for start, why in stalled.items() if start in there}:
                self._stalled[key] = left

    def _note_standing(
        self, key: ServiceKey, cr: Json, desired: DesiredService, pods: tuple[Json, ...], *, wanted: bool
    ) -> None:
        """Remember the engines of a service that is Ready at its first pass with a check."""
        with self._lock:
            if not wanted or desired.workloads is None:
                self._standing.pop(key, None)
            elif key not in self._standing:
                starts = (start_of(pod) for pod in pods if is_healthy(pod)) if _is_ready(cr) else ()
                self._standing[key] = frozenset(start for start in starts if start is not None)

    # --- finding out ----------------------------------------------------------------------------------------------

    def _proof(self, key: ServiceKey, desired: DesiredService, pod: Json, *, wanted: bool) -> Proof | None:
        start, written = start_of(pod), written_proof(pod)
        if not wanted or self._check is None:
            return Proof("unknown", final=True)
        if start is None:
            return Proof("unknown", "its container names no port", final=True)
        with self._lock:
            stalled = self._stalled.get(key, {}).get(start)
        if stalled:
            return Proof("failed", stalled, tries=REPLACE_AFTER)
        if written is not None and written.state == "proved":
            return written
        runtime = runtime_for(desired.engine)
        request, progress = runtime.completion(desired), runtime.progress(desired)
        found = self._check.latest(start, request, progress=progress, changed=lambda: self._requeue(key, 0.0))
        due_s = self._check.due_in_s(start)
        if found is not None and not found.final and found.state != "proved" and due_s < float("inf"):
            self._requeue(key, due_s + 0.1)
        if found is not None and found.state == "loading":
            return None
        if found is None and written is None and start in self._standing.get(key, ()):
            return Proof("unknown", "it served before it was asked; its first answer is awaited")
        return found or written

    def _follow(self, key: ServiceKey, desired: DesiredService, pods: tuple[Json, ...], proofs: Proofs) -> None:
        if self._stalls is None:
            return
        proved = (pod for pod in pods if (p := proofs.get(pod["metadata"]["name"])) is not None and p.state == "proved")
        starts = frozenset(start for pod in proved if (start := start_of(pod)) is not None)

        def stalled(start: EngineStart, why: str) -> None:
            with self._lock:
                self._stalled.setdefault(key, {})[start] = why
            self._on_stalled(key.namespace, key.name)
            self._requeue(key, 0.0)

        runtime = runtime_for(desired.engine)
        self._stalls.follow(key, starts, runtime.progress(desired), runtime.completion(desired), stalled)

    # --- acting ---------------------------------------------------------------------------------------------------

    def _tell(self, pod: Json, proof: Proof | None, *, wanted: bool, now: datetime) -> None:
        """Write on the pod what was found out, if it is not there already."""
        wish = condition_for(pod, proof, wanted=wanted)
        if wish is None or now < self._mute_until:
            return
        status, reason, message = wish
        metadata = pod["metadata"]
        condition = {
            "type": naming.CONDITION_COMPLETED,
            "status": "True" if status else "False",
            "reason": reason,
            "message": message,
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
            return  # the pod is gone, and its successor has a pass of its own
        except ApiError as error:
            # Without a gate nothing hangs on it; with one, the kubelet's next word about the pod brings us back here.
            log.warning("Could not write on a pod what its engine answered", pod=metadata["name"], error=str(error))
            if isinstance(error, Forbidden):
                self._mute_until = now + REFUSED_RETRY

    def _replace(
        self, key: ServiceKey, cr: Json, pods: tuple[Json, ...], proofs: Proofs, *, now: datetime
    ) -> Problem | None:
        """Delete one replica that does not serve, so that its ReplicaSet makes another. At most one at a time."""
        generation = int(cr["metadata"].get("generation") or 0)
        with self._lock:
            before = self._replaced.get(key)
            if before is not None and (before.generation != generation or all_serve(pods, proofs)):
                self._replaced.pop(key)
                before = None
        pod = to_replace(pods, proofs, before=before, now=now)
        if pod is None:
            return None
        name, proof = pod["metadata"]["name"], proofs[pod["metadata"]["name"]]
        assert proof is not None
        if before is not None and before.count >= MOST_REPLACED:
            message = (
                f"{before.count} replicas were replaced and the next does not answer a completion either: "
                f"{proof.message}; see the engine's log (`kubectl logs {name}`), then change the spec"
            )
            serving = any(other is not None and other.serves for other in proofs.values())
            return Problem(reason="CompletionFailed", message=message, terminal=not serving)
        try:
            # Its requests would not be answered, so that it need not wait for them before it ends.
            uid = pod["metadata"]["uid"]
            self._client.delete(kinds.PODS, key.namespace, name, uid=uid, grace_period_s=HUNG_S)
        except (NotFound, Conflict):
            return None
        except ApiError as error:
            # Told and tried again, so that the status still says what is wrong with the replica.
            log.warning("Could not delete a replica that does not serve", pod=name, error=str(error))
            self._requeue(key, RETRY_S)
            message = (
                f"pod {name} does not answer a completion ({proof.message}) and could not be deleted: {error.message}"
            )
            return Problem(reason="CompletionFailed", message=message)
        count = before.count + 1 if before is not None else 1
        with self._lock:
            self._replaced[key] = Replaced(generation, count, name, now)
        log.warning("Replaced a replica that does not serve", pod=name, why=proof.message)
        message = f"Deleted pod {name}, so that another takes its place: {proof.message}"
        self._recorder.record(cr, type="Warning", reason="ReplicaReplaced", message=message)
        return None


def _is_ready(cr: Json) -> bool:
    conditions = (cr.get("status") or {}).get("conditions") or ()
    return any(each.get("type") in ("Ready", "Available") and each.get("status") == "True" for each in conditions)
