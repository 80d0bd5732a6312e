"""Decides the phase of a service, and whether it is ready, reconciling or stalled. Pure.

The phases and the order of the checks are LLMKube's. LLMKube compares replicas with `spec.replicas`; this module
compares them with the current target, so that an autoscaler's choice does not count as an unfinished rollout.
"""

from __future__ import annotations

from typing import Literal

from kubeapi.json_types import Json
from program.desired.base import FrozenModel
from program.desired.facts import HostedFacts, MemoryFacts, PendingChange, Problem, ServiceFacts
from program.desired.keys import ANNOTATION_MODE
from program.desired.service import DesiredService
from program.dialects.llmkube.schema.status import Phase
from program.dialects.registry import LLMKUBE, dialect_of, referrer_of
from program.dialects.status.conditions import Reason
from program.dialects.status.pod_causes import Cause, fetches_model, gib, worst_cause
from program.dialects.status.waiting import unscheduled, wait_for_host

PENDING_REASONS = frozenset(
    {Reason.DEPENDENCY_MISSING, Reason.MODEL_NOT_READY, Reason.WAITING_FOR_HOST, Reason.QUOTA_EXCEEDED}
)
"""Reasons of a problem that another object will solve: the service is Pending, not Failed."""


_WAKING = frozenset(
    {
        Reason.APPLYING,
        Reason.MODEL_DOWNLOADING,
        Reason.REPLICAS_STARTING,
        Reason.REPLICAS_STOPPING,
        Reason.SERVING,
        Reason.STOPPED,
    }
)
"""Reasons that a service has temporarily while it wakes."""


class PhaseDecision(FrozenModel):
    """The phase of a service and its reason. Status, conditions and Events are derived from it."""

    phase: Phase
    outcome: Literal["ready", "reconciling", "stalled", "idle"]
    reason: Reason
    message: str
    scheduling_status: str = ""
    scheduling_message: str = ""
    waiting_for: str = ""
    cause: Cause | None = None
    """Why replicas do not serve; also set while others serve."""


def decide_phase(cr: Json, desired: DesiredService | None, facts: ServiceFacts) -> PhaseDecision:
    """Decide from the facts. The first check that applies decides."""
    problem = facts.problem
    if problem is not None and problem.terminal:
        # A change that a policy forbids is not made. Objects from before the change continue to serve.
        serving = facts.ready_replicas > 0 and _reason(problem) in (Reason.POLICY_VIOLATED, Reason.MODEL_NOT_READY)
        # A failed draft Model makes the service Pending, as a failed main Model does.
        idle: Phase = "Pending" if _reason(problem) is Reason.MODEL_NOT_READY else "Failed"
        return _of_problem(problem, _of_replicas(desired, facts).phase if serving else idle, "stalled")
    if not facts.model_found:
        name = (cr.get("spec") or {}).get("modelRef", "")
        message = f"spec.modelRef: Model `{name}` not found in this namespace; create it or name another"
        return PhaseDecision(phase="Failed", outcome="stalled", reason=Reason.MODEL_NOT_FOUND, message=message)
    if is_suspended(cr, desired) and problem is None and facts.ready_replicas == 0:
        return _suspended(facts)
    if problem is None and facts.quota is not None:
        problem = facts.quota.model_copy(update={"reason": Reason.QUOTA_EXCEEDED})
    if problem is not None and facts.ready_replicas == 0:
        pending = _reason(problem) in PENDING_REASONS
        return _of_problem(problem, "Pending" if pending else "Failed", "reconciling")
    if not facts.model_ready and facts.ready_replicas == 0:
        return _model_not_ready(cr, facts, "Pending")
    replicas = _suspended(facts) if is_suspended(cr, desired) else _of_replicas(desired, facts)
    if facts.sleep and problem is None and facts.model_ready:
        return _sleeping(facts, replicas)
    if problem is not None:
        return _of_problem(problem, replicas.phase, "reconciling")
    if not facts.model_ready:
        return _model_not_ready(cr, facts, replicas.phase)
    if facts.pending is not None:
        return _held(cr, facts.pending, replicas, nothing=facts.ready_replicas == 0 and not facts.pods)
    if replicas.outcome in ("ready", "idle"):
        return _not_yet_as_wanted(facts, replicas) or replicas
    if facts.applying and not facts.objects_exist:
        # The reason of `replicas` describes pods from before the change.
        message = f"{replicas.message}; the service's objects are being applied"
        return replicas.model_copy(update={"outcome": "reconciling", "reason": Reason.APPLYING, "message": message})
    return replicas


def is_suspended(cr: Json, desired: DesiredService | None) -> bool:
    """Return whether the user has suspended the service, from `desired` or else from the spec."""
    return desired.suspended if desired is not None else (cr.get("spec") or {}).get("suspend") is True


def approval_text(cr: Json, pending: PendingChange) -> str:
    """Return which change is held back, and how to apply it."""
    if pending.paused:
        return f"{pending.summary}; in mode Paused (annotation {ANNOTATION_MODE}) Herdsman changes nothing"
    metadata = cr["metadata"]
    # Names are unique only within a kind. A name without a kind means an InferenceService.
    dialect = referrer_of(cr) or dialect_of(cr)
    name = f"{dialect}/{metadata['name']}" if dialect not in ("", LLMKUBE) else metadata["name"]
    command = f"herdsman approve {name} -n {metadata['namespace']} --digest {pending.digest}"
    return f"{pending.summary}; approve it with `{command}`"


def memory_shortage(memory: MemoryFacts | None) -> tuple[str, str]:
    """Return why a replica cannot fit, as the reason and message of a condition; both empty if it can."""
    if memory is None:
        return "", ""
    need = f"a replica is estimated to need {gib(memory.total_bytes)}"
    on_device = memory.total_bytes - memory.host_bytes
    if memory.available_bytes is not None and memory.total_bytes > memory.available_bytes:
        message = f"{need}, and no node can give a pod more than {gib(memory.available_bytes)}"
        return "EstimateExceedsNodes", f"{message}; use a smaller model or context, or larger nodes"
    if memory.asked_bytes is not None and on_device > memory.asked_bytes:
        if memory.host_bytes:
            need += f", {gib(on_device)} of it on the GPU"
        message = f"{need}, and requests {gib(memory.asked_bytes)}"
        return "EstimateExceedsRequest", f"{message}; request more, or use a smaller model or context"
    return "", ""


def _reason(problem: Problem) -> Reason:
    """Map a problem's reason to the closed list.

    An unlisted reason becomes SpecInvalid or, without a field, ApplyFailed.
    """
    try:
        return Reason(problem.reason)
    except ValueError:
        return Reason.SPEC_INVALID if problem.field else Reason.APPLY_FAILED


def _of_problem(problem: Problem, phase: Phase, outcome: Literal["reconciling", "stalled"]) -> PhaseDecision:
    reason = _reason(problem)
    parts = [part for part in (problem.field, problem.reason if reason != problem.reason else "") if part]
    return PhaseDecision(phase=phase, outcome=outcome, reason=reason, message=": ".join([*parts, problem.message]))


def _model_not_ready(cr: Json, facts: ServiceFacts, phase: Phase) -> PhaseDecision:
    """Return Reconciling while the Model is not Ready, and Stalled after it failed."""
    name = (cr.get("spec") or {}).get("modelRef", "")
    if facts.model_failed:
        message = f"spec.modelRef: Model `{name}` failed: {facts.model_failed}"
        return PhaseDecision(phase=phase, outcome="stalled", reason=Reason.MODEL_NOT_READY, message=message)
    message = f"Waiting for Model `{name}` to be Ready"
    return PhaseDecision(phase=phase, outcome="reconciling", reason=Reason.MODEL_NOT_READY, message=message)


def _suspended(facts: ServiceFacts) -> PhaseDecision:
    running = max(facts.ready_replicas, len(facts.pods))
    if running:
        message = f"Suspended by spec.suspend; {running} replica{'s' if running > 1 else ''} not stopped yet"
        return PhaseDecision(phase="Suspended", outcome="reconciling", reason=Reason.REPLICAS_STOPPING, message=message)
    message = "Suspended by spec.suspend; no replica runs"
    return PhaseDecision(phase="Suspended", outcome="idle", reason=Reason.SUSPENDED, message=message)


def _sleeping(facts: ServiceFacts, replicas: PhaseDecision) -> PhaseDecision:
    """Return Ready for a service that sleeps or wakes: it accepts requests, as a Knative revision without pods does.

    The reason why a replica does not start is reported as usual.
    """
    if facts.sleep == "asleep" and facts.pool:
        message = f"No replica runs until the service has its turn in ModelPool `{facts.pool}`; requests wait for it"
        return PhaseDecision(phase="Ready", outcome="ready", reason=Reason.ASLEEP, message=message)
    if facts.sleep == "asleep":
        message = "The service is idle: no replica runs, and the next request starts them"
        return PhaseDecision(phase="Ready", outcome="ready", reason=Reason.ASLEEP, message=message)
    if replicas.reason in _WAKING:
        message = f"Requests wait for the replicas to start: {replicas.message}"
        return PhaseDecision(phase="Ready", outcome="ready", reason=Reason.WAKING, message=message)
    return replicas


def _held(cr: Json, pending: PendingChange, replicas: PhaseDecision, *, nothing: bool) -> PhaseDecision:
    """Return the decision while a change waits for approval or another mode. Existing replicas stay unchanged."""
    reason = Reason.PAUSED if pending.paused else Reason.AWAITING_APPROVAL
    message = f"{replicas.message}; a change is pending: {approval_text(cr, pending)}"
    changed = {"outcome": "reconciling", "reason": reason, "message": message}
    return replicas.model_copy(update={**changed, "phase": "Pending"} if nothing else changed)


def _not_yet_as_wanted(facts: ServiceFacts, replicas: PhaseDecision) -> PhaseDecision | None:
    """Return why a service with enough serving replicas, or with none wanted, does not match its spec; None if
    it does.
    """
    rollout = facts.rollout
    changed: dict[str, object] = {}
    if rollout.rolled_back is not None:
        message = rollout.rolled_back.message
        changed = {"outcome": "stalled", "reason": Reason.ROLLED_BACK, "message": message}
    elif rollout.failed is not None:
        changed = {
            "outcome": "reconciling",
            "reason": Reason.PROGRESS_DEADLINE_EXCEEDED,
            "message": f"{replicas.message}; the rollout fails: {rollout.failed.message}",
        }
    elif rollout.deferred is not None:
        changed = {
            "outcome": "reconciling",
            "reason": Reason.ROLLOUT_DEFERRED,
            "message": f"{replicas.message}; a change waits: {rollout.deferred.message}",
        }
    elif facts.hosted is not None and facts.hosted.earlier and not facts.applying:
        fails = facts.hosted.earlier_fails
        changed = {
            "outcome": "reconciling",
            "reason": Reason.HOST_PROCESS_FAILING if fails else Reason.MODEL_DOWNLOADING,
            "message": f"{replicas.message}; {facts.hosted.earlier}",
        }
    elif facts.applying or not facts.objects_exist:
        changed = {"outcome": "reconciling", "reason": Reason.APPLYING, "message": "Applying the service's objects"}
    return replicas.model_copy(update=changed) if changed else None


def _of_replicas(desired: DesiredService | None, facts: ServiceFacts) -> PhaseDecision:
    target, ready = facts.desired_replicas, facts.ready_replicas
    counted = f"{ready} of {target} replicas ready"
    if ready == target > 0:
        if facts.behind:
            # The numbers describe the pods before the change.
            message = f"{counted}; {facts.behind} was changed, and its controller has not observed the change yet"
            return PhaseDecision(
                phase="Progressing", outcome="reconciling", reason=Reason.REPLICAS_STARTING, message=message
            )
        if facts.replicas > target:
            return _with_surplus(facts, counted)
        stuck = f"; {facts.hosted.stuck}" if facts.hosted is not None and facts.hosted.stuck else ""
        return PhaseDecision(phase="Ready", outcome="ready", reason=Reason.SERVING, message=f"{counted}{stuck}")
    if ready > target:
        message = f"{ready} replicas ready, {target} wanted"
        return PhaseDecision(
            phase="Progressing", outcome="reconciling", reason=Reason.REPLICAS_STOPPING, message=message
        )
    if target == 0:
        scaled = desired is not None and desired.autoscaling is not None
        message = "The autoscaler has set zero replicas" if scaled else "The service is set to zero replicas"
        return PhaseDecision(phase="Stopped", outcome="idle", reason=Reason.STOPPED, message=message)
    waiting = _on_host(facts.hosted, desired, counted) if facts.hosted else _in_pods(facts, desired, counted)
    # If some replicas are ready, the service serves, whatever the others wait for.
    return waiting.model_copy(update={"phase": "Progressing"}) if ready > 0 else waiting


def _with_surplus(facts: ServiceFacts, counted: str) -> PhaseDecision:
    """Return the decision for enough ready and some surplus replicas: a rollout is running, or it is stuck."""
    surplus = facts.replicas - facts.desired_replicas
    cause = worst_cause(facts.pods, facts.memory)
    if cause is not None:
        reason, message = cause.reason, f"{counted}; the rollout is stuck: {cause.text}"
    elif facts.rollout.failed is not None:
        reason = Reason.PROGRESS_DEADLINE_EXCEEDED
        message = f"{counted}; the rollout fails: {facts.rollout.failed.message}"
    else:
        reason = Reason.REPLICAS_STOPPING
        message = f"{counted}; {surplus} of another revision still run{'s' if surplus == 1 else ''}"
    return PhaseDecision(phase="Ready", outcome="reconciling", reason=reason, message=message, cause=cause)


def _on_host(hosted: HostedFacts, desired: DesiredService | None, counted: str) -> PhaseDecision:
    wait = wait_for_host(hosted, desired)
    others = f"; another replica has no host: {hosted.refusal}" if hosted.host is not None and hosted.refusal else ""
    return PhaseDecision(
        phase=wait.phase,
        outcome="reconciling",
        reason=wait.reason,
        message=f"{counted}; {wait.message}{others}",
        scheduling_status=wait.status,
        scheduling_message=wait.message,
    )


def _in_pods(facts: ServiceFacts, desired: DesiredService | None, counted: str) -> PhaseDecision:
    """Return the decision for missing replicas, with the most important cause."""
    if facts.replica_failure:
        return _creating(Reason.PODS_REFUSED, f"{counted}; the API server refuses the pods: {facts.replica_failure}")
    cause = worst_cause(facts.pods, facts.memory)
    if cause is not None:
        creating = _creating(cause.reason, f"{counted}; {cause.text}")
        return creating.model_copy(update={"cause": cause, "outcome": "stalled" if cause.terminal else "reconciling"})
    place = unscheduled(facts, desired)
    if facts.never_fits:
        # It waits for a GPU like other services, so that `queue` of LLMKube's CLI lists it, but has no position in the
        # queue.
        gpu = place.waiting_for if place is not None else ""
        fits_nowhere = _creating(
            Reason.NO_NODE_FITS,
            f"{counted}; no node could hold a replica: {facts.never_fits}",
            status="NoNodeFits",
            why=facts.never_fits,
        )
        return fits_nowhere.model_copy(update={"phase": "WaitingForGPU", "waiting_for": gpu}) if gpu else fits_nowhere
    if place is not None:
        return PhaseDecision(
            phase="WaitingForGPU" if place.waiting_for else "Creating",
            outcome="reconciling",
            reason=place.reason,
            message=f"{counted}; {place.message}",
            scheduling_status=place.status,
            scheduling_message=place.scheduler_said,
            waiting_for=place.waiting_for,
        )
    if facts.rollout.failed is not None:
        return _creating(Reason.PROGRESS_DEADLINE_EXCEEDED, f"{counted}; {facts.rollout.failed.message}")
    left_behind = sorted((pod.name, pod.node, pod.node_lost) for pod in facts.pods if pod.leaving and pod.node_lost)
    if left_behind:
        name, node, why = left_behind[0]
        return _creating(
            Reason.NODE_LOST,
            f"{counted}; pod {name} is replaced, and cannot end because its node {node} is lost: {why}",
        )
    _, shortage = memory_shortage(facts.memory)
    if shortage:
        return _creating(Reason.MEMORY_INSUFFICIENT, f"{counted}; {shortage}")
    fetching = sorted(pod.name for pod in facts.pods if fetches_model(pod))
    if fetching:
        return _creating(Reason.MODEL_DOWNLOADING, f"{counted}; pod {fetching[0]} fetches the model")
    unproved = facts.unproved_replicas
    tested = f"; {unproved} healthy, but not yet checked by a completion" if unproved else ""
    return _creating(Reason.REPLICAS_STARTING, f"{counted}{tested}")


def _creating(reason: Reason, message: str, *, status: str = "", why: str = "") -> PhaseDecision:
    return PhaseDecision(
        phase="Creating",
        outcome="reconciling",
        reason=reason,
        message=message,
        scheduling_status=status,
        scheduling_message=why,
    )
