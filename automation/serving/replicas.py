"""Finds out which replicas of a service serve, and which of them are to be replaced.

Each pass calls `review`. It reads the results of `completion_check` and `stall_watch`, which have separate threads,
decides by `readiness`, and returns actions for the pods. The result of a replica is written on its pod, as a condition
that names the start of the engine. So a restarted loop checks no replica again, and a pod with a readiness gate gets
requests only after it has answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from automation.reconcile.actions import DeletePod, SetPodCondition
from automation.serving.completion_check import CompletionCheck, Proof
from automation.serving.engine_start import EngineStart, is_healthy, start_of
from automation.serving.readiness import (
    MOST_REPLACED,
    REPLACE_AFTER,
    Proofs,
    Replaced,
    all_serve,
    checked_pods,
    choose_replacement,
    condition_for,
    written_proof,
)
from automation.serving.stall_watch import StallWatch
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.runtimes import runtime_for


@dataclass(frozen=True)
class ReplicaReview:
    """The results for the replicas of a service, and the actions for their pods."""

    proofs: Proofs | None = None
    """None when health is enough."""
    actions: tuple[SetPodCondition | DeletePod, ...] = ()
    problem: Problem | None = None
    """Set when replacements of replicas did not help."""


class Replicas:
    """Remembers the replaced replicas. Thread-safe for different services.

    Without `check` a replica's health is enough, and readiness gates are opened at once. `requeue` asks for a pass of a
    service after some seconds. `on_stalled` gets namespace and name of a service whose replica makes no token.
    """

    def __init__(
        self,
        *,
        check: CompletionCheck | None,
        stalls: StallWatch | None,
        requeue: Callable[[ServiceKey, float], None],
        on_stalled: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._check = check
        self._stalls = stalls
        self._requeue = requeue
        self._on_stalled = on_stalled
        self._lock = threading.Lock()
        self._replaced: dict[ServiceKey, Replaced] = {}
        self._stalled: dict[ServiceKey, dict[EngineStart, str]] = {}
        self._standing: dict[ServiceKey, frozenset[EngineStart]] = {}

    def review(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        pods: tuple[Json, ...],
        *,
        now: datetime,
        may_replace: bool = True,
    ) -> ReplicaReview:
        """Review the healthy replicas: which serve, which conditions their pods get, which one to replace.

        With `may_replace` False no pod is replaced: the service is paused or waits for approval.

        `readiness.checked_pods` chooses the pods. Replicas of a KServe or llmaz service that was Ready before the first
        check count until their first answer, so that an upgrade takes no replica away.
        """
        self._drop_gone(key, pods)
        pods = checked_pods(desired, pods)
        wanted = self._check is not None and desired.completion_check and desired.host_placement is None
        self._note_standing(key, cr, desired, pods, wanted=wanted)
        proofs = {
            pod["metadata"]["name"]: self._proof(key, desired, pod, wanted=wanted) for pod in pods if is_healthy(pod)
        }
        found = ((pod, condition_for(pod, proofs.get(pod["metadata"]["name"]), wanted=wanted)) for pod in pods)
        conditions = tuple(SetPodCondition(pod, *condition) for pod, condition in found if condition is not None)
        if not wanted:
            return ReplicaReview(actions=conditions)
        self._follow(key, desired, pods, proofs)
        if not may_replace:
            return ReplicaReview(proofs, conditions)
        replaced, problem = self._to_replace(key, cr, pods, proofs, now=now)
        return ReplicaReview(proofs, (*conditions, *replaced), problem)

    def note_replaced(self, key: ServiceKey, pod: str, *, generation: int, now: datetime) -> None:
        """Count a replica that was deleted. An edit of the service, or replicas that all serve, start a new count."""
        with self._lock:
            before = self._replaced.get(key)
            count = before.count + 1 if before is not None else 1
            self._replaced[key] = Replaced(generation, count, pod, now)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
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
            return Proof("unknown", "it served before the first check, whose answer is pending")
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

    def _to_replace(
        self, key: ServiceKey, cr: Json, pods: tuple[Json, ...], proofs: Proofs, *, now: datetime
    ) -> tuple[tuple[DeletePod, ...], Problem | None]:
        """Return at most one replica that does not serve; its ReplicaSet makes another."""
        with self._lock:
            before = self._replaced.get(key)
            if before is not None and (before.generation != generation_of(cr) or all_serve(pods, proofs)):
                self._replaced.pop(key)
                before = None
        pod = choose_replacement(pods, proofs, before=before, now=now)
        if pod is None:
            return (), None
        name, proof = pod["metadata"]["name"], proofs[pod["metadata"]["name"]]
        assert proof is not None
        if before is None or before.count < MOST_REPLACED:
            return (DeletePod(name, pod["metadata"]["uid"], proof.message),), None
        message = (
            f"{before.count} replicas were replaced, and the next one does not answer a completion either: "
            f"{proof.message}; see the engine's log (`kubectl logs {name}`), then change the spec"
        )
        serving = any(other is not None and other.serves for other in proofs.values())
        return (), Problem(reason="CompletionFailed", message=message, terminal=not serving)


def generation_of(cr: Json) -> int:
    """Return the generation of a custom resource; 0 where it has none."""
    return int(cr["metadata"].get("generation") or 0)


def _is_ready(cr: Json) -> bool:
    conditions = (cr.get("status") or {}).get("conditions") or ()
    return any(each.get("type") in ("Ready", "Available") and each.get("status") == "True" for each in conditions)
