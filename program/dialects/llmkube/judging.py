"""Decide an InferenceService's phase and whether it is ready, getting there or stuck. Pure; `service_status` asks.

The phases and the order of the questions are LLMKube's. Where it counts against `spec.replicas` this counts against the
live target, so that an autoscaler's choice is no half-ready service, and any vendor's GPU may be the one that is short.
"""

from __future__ import annotations

import re
from typing import Literal

from program.desired.base import Desired, JsonObject
from program.desired.facts import HostedFacts, PodFacts, Problem, ServiceFacts
from program.desired.service import DesiredService
from program.dialects.llmkube.conditions import Reason
from program.dialects.llmkube.service_schema import Phase

STALE_HEARTBEAT_S = 180.0
"""A host that was silent for this long no longer counts as alive."""

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9][A-Za-z0-9./_-]*[A-Za-z0-9])")
PENDING_REASONS = frozenset({Reason.DEPENDENCY_MISSING, Reason.MODEL_NOT_READY, Reason.WAITING_FOR_HOST})
"""Reasons of a problem that something outside will solve: the service is Pending, not Failed."""
_FAILED_ON_HOST = frozenset({"Failed", "BackingOff", "Unhealthy"})


class Judgement(Desired):
    """What a pass concludes; `status`, conditions and events all say the same because they read this."""

    phase: Phase
    outcome: Literal["ready", "reconciling", "stalled", "idle"]
    reason: Reason
    message: str
    scheduling_status: str = ""
    scheduling_message: str = ""
    waiting_for: str = ""


def judge(cr: JsonObject, desired: DesiredService | None, facts: ServiceFacts) -> Judgement:
    """Conclude from the facts; the first answer that applies counts."""
    problem = facts.problem
    if problem is not None and problem.terminal:
        return _of_problem(problem, "Failed", "stalled")
    if not facts.model_found:
        name = (cr.get("spec") or {}).get("modelRef", "")
        message = f"spec.modelRef: Model `{name}` not found in this namespace; create it or name another"
        return Judgement(phase="Failed", outcome="stalled", reason=Reason.MODEL_NOT_FOUND, message=message)
    if problem is not None and facts.ready_replicas == 0:
        pending = _reason(problem) in PENDING_REASONS
        return _of_problem(problem, "Pending" if pending else "Failed", "reconciling")
    if not facts.model_ready and facts.ready_replicas == 0:
        return _model_not_ready(cr, "Pending")
    replicas = _of_replicas(desired, facts)
    if problem is not None:
        return _of_problem(problem, replicas.phase, "reconciling")
    if not facts.model_ready:
        return _model_not_ready(cr, replicas.phase)
    if replicas.outcome in ("ready", "idle") and (facts.applying or not facts.objects_exist):
        return replicas.model_copy(
            update={"outcome": "reconciling", "reason": Reason.APPLYING, "message": "Applying the service's objects"}
        )
    return replicas


def _reason(problem: Problem) -> Reason:
    """Map a problem's reason into the closed list: what is not on it is an invalid spec or a failed engine run."""
    try:
        return Reason(problem.reason)
    except ValueError:
        return Reason.SPEC_INVALID if problem.field else Reason.APPLY_FAILED


def _of_problem(problem: Problem, phase: Phase, outcome: Literal["reconciling", "stalled"]) -> Judgement:
    reason = _reason(problem)
    parts = [part for part in (problem.field, problem.reason if reason != problem.reason else "") if part]
    return Judgement(phase=phase, outcome=outcome, reason=reason, message=": ".join([*parts, problem.message]))


def _model_not_ready(cr: JsonObject, phase: Phase) -> Judgement:
    message = f"Waiting for Model `{(cr.get('spec') or {}).get('modelRef', '')}` to be Ready"
    return Judgement(phase=phase, outcome="reconciling", reason=Reason.MODEL_NOT_READY, message=message)


def _of_replicas(desired: DesiredService | None, facts: ServiceFacts) -> Judgement:
    target, ready = facts.desired_replicas, facts.ready_replicas
    counted = f"{ready} of {target} replicas ready"
    if ready == target > 0:
        if facts.replicas > target:
            message = f"{counted}; {facts.replicas - target} of an older revision still run"
            return Judgement(phase="Ready", outcome="reconciling", reason=Reason.REPLICAS_STOPPING, message=message)
        return Judgement(phase="Ready", outcome="ready", reason=Reason.SERVING, message=counted)
    if ready > target:
        message = f"{ready} replicas ready, {target} wanted"
        return Judgement(phase="Progressing", outcome="reconciling", reason=Reason.REPLICAS_STOPPING, message=message)
    if target == 0:
        return Judgement(phase="Stopped", outcome="idle", reason=Reason.STOPPED, message="Zero replicas are wanted")
    waiting = _on_host(facts.hosted, desired, counted) if facts.hosted else _in_pods(facts, desired, counted)
    # With some replicas ready the service serves, whatever the others wait for.
    return waiting.model_copy(update={"phase": "Progressing"}) if ready > 0 else waiting


def _on_host(hosted: HostedFacts, desired: DesiredService | None, counted: str) -> Judgement:
    # LLMKube's word, which its users' tooling looks for; it means any host that is to run the process.
    status, reason = "WaitingForMetalAgent", Reason.WAITING_FOR_HOST
    if hosted.host is None:
        wish = "metal" if desired is not None and desired.model.accelerator == "metal" else "this service"
        message = f"No live host for {wish}; start `herdsman agent run` on one"
    elif hosted.heartbeat_age_s is not None and hosted.heartbeat_age_s > STALE_HEARTBEAT_S:
        status, reason = "AgentHeartbeatStale", Reason.HOST_LOST
        message = f"Host `{hosted.host}` was last heard of more than {STALE_HEARTBEAT_S / 60:.0f} minutes ago"
    elif hosted.phase in _FAILED_ON_HOST:
        reason = Reason.HOST_PROCESS_FAILING
        message = f"Host `{hosted.host}`: {hosted.reason or hosted.phase}: {hosted.message}"
    elif hosted.phase:
        detail = f": {hosted.message}" if hosted.message else ""
        message = f"Host `{hosted.host}`: {hosted.phase}{detail}"
    else:
        message = f"Waiting for the agent on host `{hosted.host}` to fetch the model and start the process"
    return Judgement(
        phase="Creating",
        outcome="reconciling",
        reason=reason,
        message=f"{counted}; {message}",
        scheduling_status=status,
        scheduling_message=message,
    )


def _in_pods(facts: ServiceFacts, desired: DesiredService | None, counted: str) -> Judgement:
    pods = sorted(facts.pods, key=lambda pod: pod.name)
    failing = next((pod for pod in pods if pod.waiting_reason), None)
    if failing is not None:
        message = f"{counted}; pod {failing.name}: container {failing.container}: {failing.waiting_reason}"
        if failing.waiting_message:
            message += f": {failing.waiting_message}"
        return Judgement(phase="Creating", outcome="reconciling", reason=Reason.POD_FAILING, message=message)
    unscheduled = next((pod for pod in pods if pod.unschedulable), None)
    if unscheduled is not None:
        return _unscheduled(unscheduled, desired, counted, queue_position=facts.queue.position if facts.queue else 0)
    return Judgement(phase="Creating", outcome="reconciling", reason=Reason.REPLICAS_STARTING, message=counted)


def _unscheduled(pod: PodFacts, desired: DesiredService | None, counted: str, *, queue_position: int) -> Judgement:
    message = pod.unschedulable
    gpu = _missing_gpu(pod, desired)
    if gpu is not None:
        resource, count = gpu
        queued = f", number {queue_position} in the queue" if queue_position else ""
        return Judgement(
            phase="WaitingForGPU",
            outcome="reconciling",
            reason=Reason.WAITING_FOR_GPU,
            message=f"{counted}; waiting for {resource}: {count}{queued}",
            scheduling_status="InsufficientGPU",
            scheduling_message=message,
            waiting_for=f"{resource}: {count}",
        )
    if "volume node affinity conflict" in message:
        status = "UnbindableModelCache"
    elif "Insufficient " in message:
        status = "InsufficientResources"
    else:
        status = "Unschedulable"
    return Judgement(
        phase="Creating",
        outcome="reconciling",
        reason=Reason.UNSCHEDULABLE,
        message=f"{counted}; pod {pod.name} is not scheduled: {message}",
        scheduling_status=status,
        scheduling_message=message,
    )


def _missing_gpu(pod: PodFacts, desired: DesiredService | None) -> tuple[str, str] | None:
    """Find the GPU resource that the scheduler misses and how many of it the pod really asks for."""
    gpu = desired.gpu if desired is not None else None
    own = gpu.resource_name if gpu is not None else ""
    for resource in _INSUFFICIENT.findall(pod.unschedulable):
        # Extended resources have a domain; cpu, memory, ephemeral-storage and pods have none.
        if "/" in resource and (resource == own or resource in pod.requests):
            return resource, pod.requests.get(resource) or str(gpu.count if gpu is not None else 1)
    return None
