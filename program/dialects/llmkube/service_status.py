"""The status of an InferenceService, made anew from facts on every pass. Pure; the controller writes it if it changed.

Phases and the conditions Available, Progressing, Degraded, GPUAvailable, Suspended and VLLMSpecValid are LLMKube's.
Beside them stand Ready, Reconciling and Stalled (kstatus) and SpecHonoured. `judging` decides the phase.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from program.desired.base import JsonObject
from program.desired.facts import ServiceFacts
from program.desired.keys import service_dns_name
from program.desired.service import DesiredService
from program.dialects.llmkube.conditions import (
    Condition,
    Status,
    Type,
    drop_conditions,
    mark_idle,
    mark_ready,
    mark_reconciling,
    mark_stalled,
    set_condition,
    timestamp,
)
from program.dialects.llmkube.judging import PENDING_REASONS, Judgement, judge

PRIORITIES = {"critical": 1_000_000, "high": 100_000, "normal": 10_000, "low": 1_000, "batch": 100}
"""Values of the PriorityClasses `llmkube-<priority>`."""
DEFAULT_PORT = 8080

_MARKS = {
    "ready": mark_ready,
    "reconciling": mark_reconciling,
    "stalled": mark_stalled,
    "idle": mark_idle,
}
_OURS = frozenset(str(kind) for kind in Type)
_FIELDS = (
    "conditions",
    "desiredReplicas",
    "effectivePriority",
    "endpoint",
    "mode",
    "modelReady",
    "observedGeneration",
    "phase",
    "queuePosition",
    "readyReplicas",
    "replicas",
    "schedulingMessage",
    "schedulingStatus",
    "waitingFor",
)


def service_status(
    cr: JsonObject, desired: DesiredService | None, facts: ServiceFacts, *, now: datetime
) -> dict[str, Any]:
    """Return the complete status of `cr`; the very dict `cr["status"]` when it already says all of this.

    `desired` is None while the service cannot be parsed or its Model is missing or not Ready.
    """
    previous: dict[str, Any] = cr.get("status") or {}
    verdict = judge(cr, desired, facts)
    counted = verdict.phase not in ("Pending", "Failed") or facts.ready_replicas > 0
    status: dict[str, Any] = {
        "phase": verdict.phase,
        "mode": "chat",
        "modelReady": facts.model_ready,
        "desiredReplicas": facts.desired_replicas if counted else 0,
        "replicas": facts.replicas if counted else 0,
        "readyReplicas": facts.ready_replicas,
        "effectivePriority": _priority(cr, facts),
        "observedGeneration": _generation(cr),
        "conditions": _conditions(cr, previous, verdict, desired, facts, now=now),
    }
    endpoint = endpoint_url(desired) if desired is not None else previous.get("endpoint")
    if counted and endpoint:
        status["endpoint"] = endpoint
    if verdict.scheduling_status:
        status["schedulingStatus"] = verdict.scheduling_status
        status["schedulingMessage"] = verdict.scheduling_message
    if verdict.waiting_for:
        status["waitingFor"] = verdict.waiting_for
        if facts.queue is not None:
            status["queuePosition"] = facts.queue.position
    if _same(status, previous):
        return previous
    return {**status, "lastUpdated": timestamp(now)}


def endpoint_url(desired: DesiredService) -> str:
    """Give the URL that clients in the cluster use."""
    key, endpoint = desired.key, desired.endpoint
    host = f"{service_dns_name(key.name)}.{key.namespace}.svc.cluster.local"
    return f"http://{host}:{endpoint.port or DEFAULT_PORT}{endpoint.path}"


def _same(status: dict[str, Any], previous: dict[str, Any]) -> bool:
    """Compare all that we write, whatever the order of conditions and whatever others have added."""
    return "lastUpdated" in previous and all(
        _by_type(status.get(field), ours_only=False) == _by_type(previous.get(field), ours_only=True)
        if field == "conditions"
        else status.get(field) == previous.get(field)
        for field in _FIELDS
    )


def _by_type(conditions: list[Condition] | None, *, ours_only: bool) -> dict[str, Condition]:
    return {c["type"]: c for c in conditions or () if not ours_only or c["type"] in _OURS}


def _generation(cr: JsonObject) -> int:
    return int(cr["metadata"].get("generation") or 0)


def _priority(cr: JsonObject, facts: ServiceFacts) -> int:
    if facts.priority_value is not None:
        return facts.priority_value
    return PRIORITIES.get(str((cr.get("spec") or {}).get("priority", "normal")), PRIORITIES["normal"])


# --- conditions -------------------------------------------------------------------------------------------------------


class _Conditions:
    """The conditions of one status in the making; every change keeps what `set_condition` promises."""

    def __init__(self, previous: list[Condition], *, generation: int, now: datetime) -> None:
        self._conditions = [dict(c) for c in previous if c["type"] in _OURS]
        self._generation = generation
        self._now = now

    def __contains__(self, kind: Type) -> bool:
        return any(c["type"] == kind for c in self._conditions)

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


def _conditions(
    cr: JsonObject,
    previous: dict[str, Any],
    verdict: Judgement,
    desired: DesiredService | None,
    facts: ServiceFacts,
    *,
    now: datetime,
) -> list[Condition]:
    conditions = _Conditions(previous.get("conditions") or [], generation=_generation(cr), now=now)
    conditions.mark(verdict)
    _available(conditions, verdict, facts)
    _progress(conditions, verdict, facts)
    conditions.set(Type.SUSPENDED, "False", "NotSuspended", "The service may run")
    if desired is not None:
        _honoured(conditions, facts)
        _vllm(conditions, cr, desired)
    return conditions.listed()


def _available(conditions: _Conditions, verdict: Judgement, facts: ServiceFacts) -> None:
    if facts.ready_replicas > 0:
        serving = f"{facts.ready_replicas} of {facts.desired_replicas} replicas serve requests"
        conditions.set(Type.AVAILABLE, "True", "InferenceReady", serving)
    elif verdict.phase == "Stopped":
        conditions.set(Type.AVAILABLE, "False", "ManuallyScaledToZero", "Zero replicas are wanted")
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
    if verdict.phase == "WaitingForGPU":
        conditions.set(Type.GPU_AVAILABLE, "False", "InsufficientGPU", verdict.scheduling_message)
    else:
        conditions.drop(Type.GPU_AVAILABLE)
    if verdict.phase == "Failed" or (facts.problem is not None and verdict.reason not in PENDING_REASONS):
        conditions.set(Type.DEGRADED, "True", "Failed", verdict.message)
    else:
        conditions.drop(Type.DEGRADED)


def _honoured(conditions: _Conditions, facts: ServiceFacts) -> None:
    if facts.unhonoured:
        message = "; ".join(f"{problem.field} {problem.message}" for problem in facts.unhonoured)
        conditions.set(Type.SPEC_HONOURED, "False", "FieldsNotHonoured", message)
    else:
        conditions.set(Type.SPEC_HONOURED, "True", "AllFieldsHonoured", "Every field that is set has its effect")


def _vllm(conditions: _Conditions, cr: JsonObject, desired: DesiredService) -> None:
    """LLMKube's advice on vLLM's settings; said only while there is something to say, or after it was solved."""
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
