"""Decides from the checks which replicas count, the condition on their pods, and which one to replace. Pure.

`replicas` acts on it. A replica counts when it has answered a completion, or cannot be checked. Health alone does not
count, because an engine may be healthy while every request fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from automation.serving.completion_check import Proof
from automation.serving.engine_start import is_healthy
from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts
from program.desired.service import DesiredService

Proofs = Mapping[str, Proof | None]
"""The results of all healthy pods; None until the first answer, and while an engine loads its model."""

REPLACE_AFTER = 3
"""Failed completions in a row, with back-off between them."""
MOST_REPLACED = 5
"""After this many replacements in a row without a replica that serves, no more are replaced, and a condition asks for
help."""
REPLACEMENT_S = 600.0
"""The time for a replacement to start before another replica of the service may be replaced."""

_ANSWERED, _UNVERIFIED, _FAILED, _RESTARTED = "Answered", "Unverified", "CompletionFailed", "Restarted"


@dataclass(frozen=True)
class Replaced:
    """The replicas of one service that were replaced in a row."""

    generation: int
    """The generation of the custom resource; an edit starts a new count."""
    count: int
    pod: str
    """The last of them."""
    at: datetime


def written_proof(pod: Json) -> Proof | None:
    """Read the result that an earlier pass or loop wrote on the pod for this start of its engine."""
    engine = pod.get("engine") or {}
    status, reason, run = engine.get("completed") or (False, "", "")
    if not status or run != engine.get("run"):
        return None
    return Proof("proved") if reason == _ANSWERED else Proof("unknown")


def condition_for(pod: Json, proof: Proof | None, *, wanted: bool) -> tuple[bool, str, str] | None:
    """Return status, reason and message of the pod's condition; None when the pod has them already.

    For a pod without a readiness gate only an answer is written: it saves the next loop a check.
    """
    engine = pod.get("engine") or {}
    run, gate, written = engine.get("run", ""), bool(engine.get("gate")), engine.get("completed")
    if not run or pod["metadata"]["deleting"] or (not wanted and not gate):
        return None
    if is_healthy(pod) and proof is not None:
        reason = {"proved": _ANSWERED, "unknown": _UNVERIFIED, "failed": _FAILED}[proof.state]
        wish = (proof.serves, reason, run)
    elif written is not None and written[2] != run:
        wish = (False, _RESTARTED, run)
    else:
        return None
    stale = written is not None and written[0] and not wish[0]
    worth = gate or wish[1] == _ANSWERED or stale
    return wish if worth and wish != written else None


def choose_replacement(
    pods: tuple[Json, ...], proofs: Proofs, *, before: Replaced | None, now: datetime
) -> Json | None:
    """Return the replica to delete; None when there is none, or while another is being replaced."""
    if any(pod["metadata"]["deleting"] for pod in pods):
        return None
    failed = [pod for pod in pods if _has_failed(proofs.get(pod["metadata"]["name"]))]
    if not failed:
        return None
    if before is not None and (now - before.at).total_seconds() < REPLACEMENT_S:
        if any(pod["metadata"]["name"] == before.pod for pod in pods):
            return None  # the caches do not show yet that it is gone
        if any(not is_healthy(pod) or proofs.get(pod["metadata"]["name"]) is None for pod in pods):
            return None
    return min(failed, key=lambda pod: str(pod["metadata"]["name"]))


def _has_failed(proof: Proof | None) -> bool:
    return proof is not None and not proof.serves and proof.tries >= REPLACE_AFTER


def all_serve(pods: tuple[Json, ...], proofs: Proofs) -> bool:
    """Return whether every pod of a service has answered."""
    found = [proofs.get(pod["metadata"]["name"]) for pod in pods]
    return bool(found) and all(proof is not None and proof.state == "proved" for proof in found)


def checked_pods(desired: DesiredService | None, pods: tuple[Json, ...]) -> tuple[Json, ...]:
    """Return the pods that are checked by a completion: the replicas of the service, and the leaders of groups.

    Pods of schedulers and tokenizers are left out, and so are the workers of a group, which belong to a StatefulSet of
    their leader.
    """
    if desired is None or desired.workloads is None:
        return pods
    main = desired.workloads.main
    made_by = ("ReplicaSet" if main.group is None else "StatefulSet", main.name)
    return tuple(pod for pod in pods if (pod.get("engine") or {}).get("of") == made_by)


def count_serving(facts: ServiceFacts, pods: tuple[Json, ...], proofs: Proofs | None) -> ServiceFacts:
    """Return the facts with only serving replicas counted, and with the result of each.

    The Deployment's own count may be ahead of the cached pods, so it never adds a replica without a check. Without any
    pod nothing can be checked, and the Deployment's count holds.
    """
    if proofs is None or facts.hosted is not None or not pods:
        return facts
    ready = min(facts.ready_replicas, sum(proof is not None and proof.serves for proof in proofs.values()))
    told = []
    for pod in facts.pods:
        proof = proofs.get(pod.name)
        known = {"proof": proof.state, "proof_message": proof.message} if proof is not None else {}
        told.append(pod.model_copy(update=known))
    unproved = max(len(proofs), facts.ready_replicas) - ready
    count: dict[str, object] = {"ready_replicas": ready, "unproved_replicas": unproved}
    sets = tuple(each.model_copy(update=count) if each.part == "main" else each for each in facts.workloads)
    return facts.model_copy(update={**count, "workloads": sets, "pods": tuple(told)})
