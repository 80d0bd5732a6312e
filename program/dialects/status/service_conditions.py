"""The conditions of a service of any dialect, in addition to those of its upstream controller. Pure.

The dialects of KServe and llmaz call `decide_service_phase`, set their own conditions in a `ConditionSet`, and call
`set_common`. LLMKube's dialect sets more detail and calls the functions that it shares. A condition without a cause is
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from kubeapi.json_types import Json
from program.desired.facts import RefusedObject, ServiceFacts
from program.desired.service import DesiredService
from program.dialects.status.conditions import (
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
from program.dialects.status.phase import PhaseDecision, approval_text, decide_phase

COMMON = (
    Type.READY,
    Type.RECONCILING,
    Type.STALLED,
    Type.SPEC_HONOURED,
    Type.GPU_AVAILABLE,
    Type.MEMORY_FITS,
    Type.AUTOSCALER_READY,
    Type.OBJECTS_APPLIED,
    Type.CHANGE_PENDING,
    Type.POLICY_COMPLIANT,
    Type.DRIFTED,
    Type.ROLLOUT_DEFERRED,
    Type.ROLLED_BACK,
    Type.TEMPLATE_KEPT,
)
"""The types that `set_common` sets and drops, in the order in which they follow those of the upstream controller."""

AUTOSCALER_KINDS = ("HorizontalPodAutoscaler", "ScaledObject")

_MARKS = {
    "ready": mark_ready,
    "reconciling": mark_reconciling,
    "stalled": mark_stalled,
    "idle": mark_idle,
}


class ConditionSet:
    """The conditions of a status under construction, changed by `set_condition`."""

    def __init__(self, cr: Json, peers: Sequence[str], *, now: datetime) -> None:
        """Start with the conditions of `cr`. `peers` are the dialect's own types, in their order in the status."""
        self._order = [*peers, *(str(kind) for kind in COMMON if kind not in peers)]
        previous = (cr.get("status") or {}).get("conditions") or []
        self._conditions: list[Condition] = [dict(c) for c in previous if c.get("type") in self._order]
        self._generation = int(cr["metadata"].get("generation") or 0)
        self._now = now

    def __contains__(self, kind: str) -> bool:
        return self.get(kind) is not None

    def get(self, kind: str) -> Condition | None:
        """Return the current condition of a type; None if there is none."""
        return next((c for c in self._conditions if c["type"] == kind), None)

    def is_current(self, kind: str) -> bool:
        """Return whether a condition exists and was set for the current generation."""
        found = self.get(kind)
        return found is not None and found.get("observedGeneration") == self._generation

    def set(self, kind: str, status: Status, reason: str, message: str) -> None:
        """Set a condition. Its transition time changes only with its status."""
        self._conditions = set_condition(
            self._conditions,
            type=kind,
            status=status,
            reason=reason,
            message=message,
            generation=self._generation,
            now=self._now,
        )

    def drop(self, *kinds: str) -> None:
        """Drop the conditions of these types."""
        self._conditions = drop_conditions(self._conditions, *kinds)

    def mark(self, verdict: PhaseDecision) -> None:
        """Set Ready, Reconciling and Stalled from a phase decision."""
        self._conditions = _MARKS[verdict.outcome](
            self._conditions,
            reason=verdict.reason,
            message=verdict.message,
            generation=self._generation,
            now=self._now,
        )

    def listed(self) -> list[Condition]:
        """Return the conditions in a fixed order, so that the same facts result in the same document."""
        return sorted(self._conditions, key=lambda c: self._order.index(c["type"]))


def decide_service_phase(cr: Json, desired: DesiredService | None, facts: ServiceFacts) -> PhaseDecision:
    """Decide whether a service of a dialect without Model objects is ready, reconciling or stalled, and why.

    Its pods fetch the weights, so a missing model is a problem of the service or of its pods.
    """
    verdict = decide_phase(cr, desired, facts.model_copy(update={"model_found": True, "model_ready": True}))
    if verdict.reason is Reason.SUSPENDED:
        return verdict.model_copy(update={"message": "Stopped by its annotation; no replica runs"})
    return verdict


def set_common(
    conditions: ConditionSet,
    cr: Json,
    verdict: PhaseDecision,
    desired: DesiredService | None,
    facts: ServiceFacts,
    *,
    ready: bool = True,
) -> None:
    """Set every condition of `COMMON`. If `ready` is False, the dialect sets Ready, Reconciling and Stalled itself."""
    if ready:
        conditions.mark(verdict)
    _set_spec_honoured(conditions, desired, facts)
    _room(conditions, verdict, facts)
    set_autoscaler(conditions, facts)
    set_refused(conditions, facts)
    set_approval(conditions, cr, facts)
    set_rollout(conditions, facts)
    set_drift(conditions, facts)


def same_status(status: Json, previous: Json, fields: Sequence[str], peers: Sequence[str]) -> bool:
    """Return whether `previous` has the same `fields` as `status`, apart from order and additions by other clients.

    `peers` are the dialect's own condition types.
    """
    known = {*peers, *(str(kind) for kind in COMMON)}
    return all(
        _by_type(status.get(field)) == _by_type([c for c in previous.get(field) or () if c.get("type") in known])
        if field == "conditions"
        else status.get(field) == previous.get(field)
        for field in fields
    )


def _by_type(conditions: Sequence[Condition] | None) -> dict[str, Any]:
    return {c["type"]: c for c in conditions or ()}


def _set_spec_honoured(conditions: ConditionSet, desired: DesiredService | None, facts: ServiceFacts) -> None:
    if facts.unsupported:
        message = "; ".join(f"{problem.field} {problem.message}".strip() for problem in facts.unsupported)
        reasons = {problem.reason for problem in facts.unsupported}
        reason = reasons.pop() if len(reasons) == 1 else "FieldsNotHonoured"
        conditions.set(Type.SPEC_HONOURED, "False", reason or "FieldsNotHonoured", message)
    elif desired is not None:
        conditions.set(Type.SPEC_HONOURED, "True", "AllFieldsHonoured", "All fields that are set have an effect")


def _room(conditions: ConditionSet, verdict: PhaseDecision, facts: ServiceFacts) -> None:
    if verdict.waiting_for:
        conditions.set(Type.GPU_AVAILABLE, "False", "InsufficientGPU", verdict.scheduling_message)
    else:
        conditions.drop(Type.GPU_AVAILABLE)
    if facts.memory is None:
        conditions.drop(Type.MEMORY_FITS)
    elif verdict.reason is Reason.MEMORY_INSUFFICIENT:
        conditions.set(Type.MEMORY_FITS, "False", "EstimateExceedsNodes", verdict.message)
    else:
        message = "A replica has at least its estimated memory"
        conditions.set(Type.MEMORY_FITS, "True", "EstimateFits", message)


def set_autoscaler(conditions: ConditionSet, facts: ServiceFacts) -> None:
    """Set the condition for whether the autoscaler can scale."""
    autoscaler = facts.autoscaler
    if (refused := find_refused(facts, *AUTOSCALER_KINDS)) is not None:
        conditions.set(Type.AUTOSCALER_READY, "False", refused.reason, refusal_text(refused))
    elif autoscaler is None:
        conditions.drop(Type.AUTOSCALER_READY)
    elif autoscaler.problem:
        message = f"{autoscaler.kind}: {autoscaler.problem}"
        conditions.set(Type.AUTOSCALER_READY, "False", "ScalingFailed", message)
    else:
        message = f"The {autoscaler.kind} sets the number of replicas"
        conditions.set(Type.AUTOSCALER_READY, "True", "ScalingActive", message)


def set_refused(conditions: ConditionSet, facts: ServiceFacts) -> None:
    """Set the condition for objects that the API server refuses and the service serves without."""
    if facts.refused:
        message = "; ".join(refusal_text(each) for each in facts.refused)
        conditions.set(Type.OBJECTS_APPLIED, "False", facts.refused[0].reason, f"{message}; Herdsman tries again")
    else:
        conditions.drop(Type.OBJECTS_APPLIED)


def find_refused(facts: ServiceFacts, *wanted: str, name: str = "") -> RefusedObject | None:
    """Return a refused object of one of these kinds, and of this name if one is given."""
    return next((each for each in facts.refused if each.kind in wanted and name in ("", each.name)), None)


def refusal_text(refused: RefusedObject) -> str:
    """Return the message for a refused object."""
    return f"{refused.kind} {refused.name} could not be applied: {refused.message}"


def set_approval(conditions: ConditionSet, cr: Json, facts: ServiceFacts) -> None:
    """Set the conditions for a change that mode Preview or Paused holds back, and for violated policies."""
    pending = facts.pending
    if pending is None:
        conditions.drop(Type.CHANGE_PENDING)
    else:
        reason = Reason.PAUSED if pending.paused else Reason.AWAITING_APPROVAL
        conditions.set(Type.CHANGE_PENDING, "True", reason, approval_text(cr, pending))
    if facts.problem is not None and facts.problem.reason == Reason.POLICY_VIOLATED:
        conditions.set(Type.POLICY_COMPLIANT, "False", Reason.POLICY_VIOLATED, facts.problem.message)
    elif facts.advice:
        message = "; ".join(problem.message for problem in facts.advice)
        conditions.set(Type.POLICY_COMPLIANT, "False", "PolicyAdvice", message)
    else:
        conditions.drop(Type.POLICY_COMPLIANT)


def set_rollout(conditions: ConditionSet, facts: ServiceFacts) -> None:
    """Set the conditions for a change of the pods that is deferred, rolled back, or not applied to running pods."""
    rollout = facts.rollout
    if rollout.deferred is not None:
        conditions.set(Type.ROLLOUT_DEFERRED, "True", rollout.deferred.reason, rollout.deferred.message)
    elif rollout.timed_out:
        message = "Replicas stayed busy for the time that spec.rolloutPolicy allows, so Herdsman made the change anyway"
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


def set_drift(conditions: ConditionSet, facts: ServiceFacts) -> None:
    """Set the condition for fields that another manager changed, if the drift policy only reports them."""
    if facts.drift:
        message = "; ".join(problem.message for problem in facts.drift)
        conditions.set(Type.DRIFTED, "True", facts.drift[0].reason, message)
    else:
        conditions.drop(Type.DRIFTED)
