"""The conditions of an InferenceService, computed on every pass. Pure.

Ready, Reconciling and Stalled follow kstatus. A condition without a cause is dropped. When a failure is over, LLMKube's
reasons for success (ModelTransferSucceeded) stay until the object changes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts
from program.desired.service import DesiredService
from program.dialects.status.conditions import MODEL_TRANSFER_REASONS, Condition, Reason, Type
from program.dialects.status.phase import PENDING_REASONS, PhaseDecision, is_suspended, memory_shortage
from program.dialects.status.service_conditions import (
    ConditionSet,
    find_refused,
    refusal_text,
    set_approval,
    set_autoscaler,
    set_drift,
    set_refused,
    set_rollout,
)

OURS = frozenset(str(kind) for kind in Type)


def service_conditions(
    cr: Json,
    previous: dict[str, Any],
    verdict: PhaseDecision,
    desired: DesiredService | None,
    facts: ServiceFacts,
    *,
    now: datetime,
) -> list[Condition]:
    """Return all of Herdsman's conditions for `cr`.

    Unchanged conditions keep their transition times from `previous`.
    """
    conditions = ConditionSet({**cr, "status": previous}, tuple(Type), now=now)
    conditions.mark(verdict)
    _available(conditions, verdict, facts)
    _progress(conditions, verdict, facts)
    if is_suspended(cr, desired):
        conditions.set(Type.SUSPENDED, "True", "Suspended", "spec.suspend is set, so Herdsman runs no replica")
    else:
        conditions.set(Type.SUSPENDED, "False", "NotSuspended", "The service is not suspended")
    if desired is not None:
        _set_spec_honoured(conditions, facts)
        _vllm(conditions, cr, desired)
        _sglang(conditions, cr, desired)
    _replicas(conditions, verdict, facts)
    set_rollout(conditions, facts)
    _gateway(conditions, facts)
    set_autoscaler(conditions, facts)
    set_refused(conditions, facts)
    set_approval(conditions, cr, facts)
    set_drift(conditions, facts)
    return conditions.listed()


def _available(conditions: ConditionSet, verdict: PhaseDecision, facts: ServiceFacts) -> None:
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
        # LLMKube writes no availability before the first replica has served.
        conditions.set(Type.AVAILABLE, "False", "NoReadyReplicas", "No replica serves requests")


def _progress(conditions: ConditionSet, verdict: PhaseDecision, facts: ServiceFacts) -> None:
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


def _set_spec_honoured(conditions: ConditionSet, facts: ServiceFacts) -> None:
    if facts.unsupported:
        message = "; ".join(f"{problem.field} {problem.message}" for problem in facts.unsupported)
        conditions.set(Type.SPEC_HONOURED, "False", "FieldsNotHonoured", message)
    else:
        conditions.set(Type.SPEC_HONOURED, "True", "AllFieldsHonoured", "All fields that are set have an effect")


# --- advice on an engine's settings: set while there is some, and True once the user followed it ----------------------


def _vllm(conditions: ConditionSet, cr: Json, desired: DesiredService) -> None:
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
        conditions.set(Type.VLLM_SPEC_VALID, "True", "ConfigValid", "The settings have no known problem")


def _sglang(conditions: ConditionSet, cr: Json, desired: DesiredService) -> None:
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
        conditions.set(Type.SGLANG_SPEC_VALID, "True", "ConfigValid", "The settings have no known problem")


# --- replicas, rollout, and the state of other objects ----------------------------------------------------------------


def _replicas(conditions: ConditionSet, verdict: PhaseDecision, facts: ServiceFacts) -> None:
    cause = verdict.cause
    # The engine's container runs only after the model was fetched and the driver was accepted.
    past_start = facts.ready_replicas > 0 or any(
        pod.phase == "Running" and not pod.init and not pod.waiting_reason for pod in facts.pods
    )
    if cause is not None and cause.reason in MODEL_TRANSFER_REASONS:
        conditions.set(Type.MODEL_TRANSFER_HEALTHY, "False", cause.reason, cause.text)
    elif Type.MODEL_TRANSFER_HEALTHY in conditions:
        if past_start:
            message = "The model was fetched"
            conditions.set(Type.MODEL_TRANSFER_HEALTHY, "True", "ModelTransferSucceeded", message)
        elif not conditions.is_current(Type.MODEL_TRANSFER_HEALTHY):
            conditions.drop(Type.MODEL_TRANSFER_HEALTHY)
    if cause is not None and cause.reason is Reason.DRIVER_TOO_OLD:
        name = "ROCmDriverInsufficient" if "ROCm driver" in cause.message else "CUDADriverInsufficient"
        conditions.set(Type.DRIVER_COMPATIBLE, "False", name, cause.text)
    elif Type.DRIVER_COMPATIBLE in conditions:
        if facts.ready_replicas > 0:
            conditions.set(Type.DRIVER_COMPATIBLE, "True", "RuntimeStarted", "The engine started on the node's driver")
        elif not conditions.is_current(Type.DRIVER_COMPATIBLE):
            conditions.drop(Type.DRIVER_COMPATIBLE)
    _memory(conditions, facts)


def _memory(conditions: ConditionSet, facts: ServiceFacts) -> None:
    memory = facts.memory
    reason, message = memory_shortage(memory)
    if reason:
        conditions.set(Type.MEMORY_FITS, "False", reason, message)
    elif memory is not None and (memory.asked_bytes is not None or memory.available_bytes is not None):
        conditions.set(Type.MEMORY_FITS, "True", "EstimateFits", "A replica has at least its estimated memory")
    else:
        conditions.drop(Type.MEMORY_FITS)


def _gateway(conditions: ConditionSet, facts: ServiceFacts) -> None:
    gateway = facts.gateway
    if (refused := find_refused(facts, "HTTPRoute", "Ingress")) is not None:
        conditions.set(Type.GATEWAY_READY, "False", refused.reason, refusal_text(refused))
    elif gateway is None:
        conditions.drop(Type.GATEWAY_READY)
    elif gateway.accepted:
        conditions.set(Type.GATEWAY_READY, "True", "RouteAccepted", gateway.message or "The route was accepted")
    else:
        message = gateway.message or "No gateway or ingress controller has accepted the route yet"
        conditions.set(Type.GATEWAY_READY, "False", "RouteNotAccepted", message)
