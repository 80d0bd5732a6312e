"""The condition PolicyCompliant of a ModelRouter, ModelPool or LoRAAdapter. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.dialects.status.conditions import Reason, Type, condition_of, drop_conditions, set_condition

MET = "PoliciesMet"
ADVICE = "PolicyAdvice"


def with_policy_condition(
    status: Json, problem: Problem | None, advice: Iterable[Problem], *, checked: bool, generation: int, now: datetime
) -> Json:
    """Return a status with the result of the policies. `checked`: there are policies.

    The gateway serves a new version of a router only when this condition names its generation and is not violated.
    """
    conditions = list(status.get("conditions") or ())
    if not checked:
        return {**status, "conditions": drop_conditions(conditions, Type.POLICY_COMPLIANT)}
    said = [each.message for each in advice]
    result: tuple[Any, str, str] = ("True", MET, "No policy is violated")
    if problem is not None:
        result = "False", Reason.POLICY_VIOLATED, problem.message
    elif said:
        result = "False", ADVICE, "; ".join(said)
    condition, reason, message = result
    made = set_condition(
        conditions,
        type=Type.POLICY_COMPLIANT,
        status=condition,
        reason=reason,
        message=message,
        generation=generation,
        now=now,
    )
    return {**status, "conditions": made}


def is_denied(cr: Json) -> bool:
    """Return whether a mandatory policy denies the present version of a resource, by its status."""
    found = condition_of(cr, Type.POLICY_COMPLIANT)
    is_present = found.get("observedGeneration") == cr["metadata"].get("generation", 0)
    return is_present and found.get("reason") == Reason.POLICY_VIOLATED


def allows_version(cr: Json, *, awaits: bool) -> bool:
    """Return whether the policies allow the present version of a resource, by its status.

    `awaits`: a version that no loop has checked is not allowed. Once a loop has checked a resource, each new version
    waits for its check.
    """
    found = condition_of(cr, Type.POLICY_COMPLIANT)
    if not found:
        return not awaits
    if found.get("observedGeneration") != cr["metadata"].get("generation", 0):
        return False
    return bool(found.get("reason") != Reason.POLICY_VIOLATED)
