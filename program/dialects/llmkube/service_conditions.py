"""The conditions of an InferenceService, set anew on every pass. Pure; `service_status` asks.

Ready, Reconciling and Stalled follow kstatus. What has nothing to say is dropped, so that no condition outlives its
cause; where LLMKube says that a failure is over (ModelTransferSucceeded), ours is said until the object changes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from program.desired.base import JsonObject
from program.desired.facts import ServiceFacts
from program.desired.service import DesiredService
from program.dialects.conditions import (
    MODEL_TRANSFER_REASONS,
    Condition,
    Reason,
    Status,
    Type,
    drop_conditions,
    mark_idle,
    mark_ready,
    mark_reconciling,
    mark_stalled,
    set_condition,
)
from program.dialects.llmkube.judging import (
    PENDING_REASONS,
    Judgement,
    is_suspended,
    memory_shortage,
    waiting_for_consent,
)

OURS = frozenset(str(kind) for kind in Type)

_MARKS = {
    "ready": mark_ready,
    "reconciling": mark_reconciling,
    "stalled": mark_stalled,
    "idle": mark_idle,
}


class _Conditions:
    """The conditions of one status in the making; every change keeps what `set_condition` promises."""

    def __init__(self, previous: list[Condition], *, generation: int, now: datetime) -> None:
        self._conditions = [dict(c) for c in previous if c["type"] in OURS]
        self._generation = generation
        self._now = now

    def __contains__(self, kind: Type) -> bool:
        return any(c["type"] == kind for c in self._conditions)

    def is_current(self, kind: Type) -> bool:
        """Tell whether a condition is there and judged the generation that counts now."""
        return any(c["type"] == kind and c.get("observedGeneration") == self._generation for c in self._conditions)

    def set(self, kind: Type, status: Status, reason: str, message: str) -> None:
        self._conditions = set_condition(
            self._conditions,
            type=kind,
            status=status,
            reason=reason,
            message=message,
            generation=self._generation,
            now=self._now,
        )

    def drop(self, *kinds: Type) -> None:
        self._conditions = drop_conditions(self._conditions, *kinds)

    def mark(self, verdict: Judgement) -> None:
        self._conditions = _MARKS[verdict.outcome](
            self._conditions,
            reason=verdict.reason,
            message=verdict.message,
            generation=self._generation,
            now=self._now,
        )

    def listed(self) -> list[Condition]:
        """All of them, in the order of `Type`, so that the same facts always give the same document."""
        order = list(Type)
        return sorted(self._conditions, key=lambda c: order.index(Type(c["type"])))


def service_conditions(
    cr: JsonObject,
    previous: dict[str, Any],
    verdict: Judgement,
    desired: DesiredService | None,
    facts: ServiceFacts,
    *,
    now: datetime,
) -> list[Condition]:
    """Give all conditions of `cr` that are ours, with the transition times of those in the `previous` status."""
    generation = int(cr["metadata"].get("generation") or 0)
    conditions = _Conditions(previous.get("conditions") or [], generation=generation, now=now)
    conditions.mark(verdict)
    _available(conditions, verdict, facts)
    _progress(conditions, verdict, facts)
    if is_suspended(cr, desired):
        conditions.set(Type.SUSPENDED, "True", "Suspended", "spec.suspend is set: no replica is to run")
    else:
        conditions.set(Type.SUSPENDED, "False", "NotSuspended", "The service may run")
    if desired is not None:
        _honoured(conditions, facts)
        _vllm(conditions, cr, desired)
        _sglang(conditions, cr, desired)
    _replicas(conditions, verdict, facts)
    _rollout(conditions, facts)
    _outside(conditions, facts)
    _consent(conditions, cr, facts)
    if facts.drift:
        message = "; ".join(problem.message for problem in facts.drift)
        conditions.set(Type.DRIFTED, "True", facts.drift[0].reason, message)
    else:
        conditions.drop(Type.DRIFTED)
    return conditions.listed()


def _available(conditions: _Conditions, verdict: Judgement, facts: ServiceFacts) -> None:
    if facts.ready_replicas > 0:
        serving = f"{facts.ready_replicas} of {facts.desired_replicas} replicas serve requests"
        conditions.set(Type.AVAILABLE, "True", "InferenceReady", serving)
    elif verdict.reason in (Reason.ASLEEP, Reason.WAKING):
        conditions.set(Type.AVAILABLE, "True", verdict.reason, verdict.message)
    elif verdict.phase == "Stopped":
        conditions.set(Type.AVAILABLE, "False", "ManuallyScaledToZero", verdict.message)
    elif verdict.phase == "Suspended":
        conditions.set(Type.AVAILABLE, "False", "Suspended", verdict.message)
    elif verdict.phase == "Failed":
        conditions.drop(Type.AVAILABLE)
    elif Type.AVAILABLE in conditions:
        # LLMKube says nothing of availability before the first replica served.
        conditions.set(Type.AVAILABLE, "False", "NoReadyReplicas", "No replica serves requests")


def _progress(conditions: _Conditions, verdict: Judgement, facts: ServiceFacts) -> None:
    match verdict.phase:
        case "Creating" | "Progressing":
            conditions.set(Type.PROGRESSING, "True", "Creating", verdict.message)
        case "WaitingForGPU":
            conditions.set(Type.PROGRESSING, "True", "WaitingForGPU", verdict.message)
        case "Pending":
            conditions.set(Type.PROGRESSING, "True", "Pending", verdict.message)
        case _:
            conditions.drop(Type.PROGRESSING)
    if verdict.waiting_for:
        conditions.set(Type.GPU_AVAILABLE, "False", "InsufficientGPU", verdict.scheduling_message)
    else:
        conditions.drop(Type.GPU_AVAILABLE)
    problem = facts.problem is not None and verdict.reason not in PENDING_REASONS
    if verdict.phase == "Failed" or problem or facts.rollout.failed or facts.rollout.rolled_back:
        conditions.set(Type.DEGRADED, "True", "Failed", verdict.message)
    else:
        conditions.drop(Type.DEGRADED)


def _honoured(conditions: _Conditions, facts: ServiceFacts) -> None:
    if facts.unhonoured:
        message = "; ".join(f"{problem.field} {problem.message}" for problem in facts.unhonoured)
        conditions.set(Type.SPEC_HONOURED, "False", "FieldsNotHonoured", message)
    else:
        conditions.set(Type.SPEC_HONOURED, "True", "AllFieldsHonoured", "Every field that is set has its effect")


# --- advice on an engine's settings: said while there is something to say, and taken back once it was heeded ----------


def _vllm(conditions: _Conditions, cr: JsonObject, desired: DesiredService) -> None:
    if desired.engine.kind != "vllm":
        conditions.drop(Type.VLLM_SPEC_VALID)
        return
    config = (cr.get("spec") or {}).get("vllmConfig") or {}
    speculative = config.get("speculative") or {}
    if speculative.get("enabled") and not speculative.get("model"):
        message = "spec.vllmConfig.speculative is enabled but names no model, so it stays off"
        conditions.set(Type.VLLM_SPEC_VALID, "False", "SpeculativeMissingModel", message)
    elif desired.engine.cpu_offload_gb:
        message = (
            "spec.vllmConfig.cpuOffloadGB is set; some vLLM releases accept the flag without offloading anything: "
            "look for the offloaded parameters in the server's log"
        )
        conditions.set(Type.VLLM_SPEC_VALID, "False", "CPUOffloadUnverified", message)
    elif Type.VLLM_SPEC_VALID in conditions:
        conditions.set(Type.VLLM_SPEC_VALID, "True", "ConfigValid", "Nothing to object to")


def _sglang(conditions: _Conditions, cr: JsonObject, desired: DesiredService) -> None:
    if desired.engine.kind != "sglang":
        conditions.drop(Type.SGLANG_SPEC_VALID)
        return
    config = (cr.get("spec") or {}).get("sglangConfig") or {}
    speculative = config.get("speculative") or {}
    thresholds = [name for name in ("acceptThresholdSingle", "acceptThresholdAcc") if speculative.get(name) is not None]
    if speculative.get("enabled") and not speculative.get("algorithm"):
        message = "spec.sglangConfig.speculative is enabled but names no algorithm, so it stays off"
        conditions.set(Type.SGLANG_SPEC_VALID, "False", "SpeculativeMissingConfig", message)
    elif thresholds and not speculative.get("enabled"):
        message = f"spec.sglangConfig.speculative.{thresholds[0]} has no effect while speculative decoding is off"
        conditions.set(Type.SGLANG_SPEC_VALID, "False", "SpeculativeAcceptThresholdUnused", message)
    elif Type.SGLANG_SPEC_VALID in conditions:
        conditions.set(Type.SGLANG_SPEC_VALID, "True", "ConfigValid", "Nothing to object to")


# --- replicas, rollout, and what others do ----------------------------------------------------------------------------


def _replicas(conditions: _Conditions, verdict: Judgement, facts: ServiceFacts) -> None:
    cause = verdict.cause
    # The engine's container runs only after the model was fetched and the driver let it.
    past_start = facts.ready_replicas > 0 or any(
        pod.phase == "Running" and not pod.init and not pod.waiting_reason for pod in facts.pods
    )
    if cause is not None and cause.reason in MODEL_TRANSFER_REASONS:
        conditions.set(Type.MODEL_TRANSFER_HEALTHY, "False", cause.reason, cause.told)
    elif Type.MODEL_TRANSFER_HEALTHY in conditions:
        if past_start:
            message = "The model was fetched"
            conditions.set(Type.MODEL_TRANSFER_HEALTHY, "True", "ModelTransferSucceeded", message)
        elif not conditions.is_current(Type.MODEL_TRANSFER_HEALTHY):
            conditions.drop(Type.MODEL_TRANSFER_HEALTHY)
    if cause is not None and cause.reason is Reason.DRIVER_TOO_OLD:
        name = "ROCmDriverInsufficient" if "ROCm driver" in cause.message else "CUDADriverInsufficient"
        conditions.set(Type.DRIVER_COMPATIBLE, "False", name, cause.told)
    elif Type.DRIVER_COMPATIBLE in conditions:
        if facts.ready_replicas > 0:
            conditions.set(Type.DRIVER_COMPATIBLE, "True", "RuntimeStarted", "The engine started on the node's driver")
        elif not conditions.is_current(Type.DRIVER_COMPATIBLE):
            conditions.drop(Type.DRIVER_COMPATIBLE)
    _memory(conditions, facts)


def _memory(conditions: _Conditions, facts: ServiceFacts) -> None:
    memory = facts.memory
    reason, message = memory_shortage(memory)
    if reason:
        conditions.set(Type.MEMORY_FITS, "False", reason, message)
    elif memory is not None and (memory.asked_bytes is not None or memory.available_bytes is not None):
        conditions.set(
            Type.MEMORY_FITS, "True", "EstimateFits", "By the estimate a replica has the memory that it needs"
        )
    else:
        conditions.drop(Type.MEMORY_FITS)


def _rollout(conditions: _Conditions, facts: ServiceFacts) -> None:
    rollout = facts.rollout
    if rollout.deferred is not None:
        conditions.set(Type.ROLLOUT_DEFERRED, "True", rollout.deferred.reason, rollout.deferred.message)
    elif rollout.timed_out:
        message = "Replicas stayed busy for as long as spec.rolloutPolicy allows; the change was made regardless"
        conditions.set(Type.ROLLOUT_DEFERRED, "False", "IdleTimeoutExceeded", message)
    else:
        conditions.drop(Type.ROLLOUT_DEFERRED)
    if rollout.rolled_back is not None:
        conditions.set(Type.ROLLED_BACK, "True", rollout.rolled_back.reason, rollout.rolled_back.message)
    else:
        conditions.drop(Type.ROLLED_BACK)
    if rollout.kept is not None:
        conditions.set(Type.TEMPLATE_KEPT, "True", rollout.kept.reason, rollout.kept.message)
    else:
        conditions.drop(Type.TEMPLATE_KEPT)


def _consent(conditions: _Conditions, cr: JsonObject, facts: ServiceFacts) -> None:
    pending = facts.pending
    if pending is None:
        conditions.drop(Type.CHANGE_PENDING)
    else:
        reason = Reason.PAUSED if pending.paused else Reason.AWAITING_APPROVAL
        conditions.set(Type.CHANGE_PENDING, "True", reason, waiting_for_consent(cr, pending))
    violated = facts.problem if facts.problem is not None and facts.problem.reason == Reason.POLICY_VIOLATED else None
    if violated is not None:
        conditions.set(Type.POLICY_COMPLIANT, "False", Reason.POLICY_VIOLATED, violated.message)
    elif facts.advice:
        message = "; ".join(problem.message for problem in facts.advice)
        conditions.set(Type.POLICY_COMPLIANT, "False", "PolicyAdvice", message)
    else:
        conditions.drop(Type.POLICY_COMPLIANT)


def _outside(conditions: _Conditions, facts: ServiceFacts) -> None:
    gateway, autoscaler = facts.gateway, facts.autoscaler
    if gateway is None:
        conditions.drop(Type.GATEWAY_READY)
    elif gateway.accepted:
        conditions.set(Type.GATEWAY_READY, "True", "RouteAccepted", gateway.message or "The route was accepted")
    else:
        message = gateway.message or "Nobody has accepted the route yet"
        conditions.set(Type.GATEWAY_READY, "False", "RouteNotAccepted", message)
    if autoscaler is None:
        conditions.drop(Type.AUTOSCALER_READY)
    elif autoscaler.problem:
        message = f"{autoscaler.kind}: {autoscaler.problem}"
        conditions.set(Type.AUTOSCALER_READY, "False", "ScalingFailed", message)
    else:
        message = f"The {autoscaler.kind} decides the number of replicas"
        conditions.set(Type.AUTOSCALER_READY, "True", "ScalingActive", message)
