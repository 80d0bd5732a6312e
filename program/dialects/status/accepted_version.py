"""The accepted version of a ModelRouter, ModelPool or LoRAAdapter: the spec in use while a newer one is not. Pure.

The loop writes `status.acceptedVersion`, because only it evaluates policies and modes. Gateways and restarted loops
read it (docs/adr/0091). None of these kinds has a setting in an annotation, so the spec is the whole version.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kubeapi.json_types import Json
from program.desired.facts import PendingChange
from program.desired.keys import ANNOTATION_MODE
from program.dialects.status.conditions import Reason, Type, condition_of, drop_conditions, set_condition
from program.dialects.status.phase import approval_text
from program.dialects.status.policy_condition import allows_version

FIELD = "acceptedVersion"
NOTHING_PENDING = "NothingPending"
_READ = (Type.CHANGE_PENDING, Type.POLICY_COMPLIANT)
"""The conditions that say whether the present version is in use."""


def accepted_version(cr: Json) -> Json | None:
    """Return generation and spec of the accepted version; None if there is none."""
    found = (cr.get("status") or {}).get(FIELD)
    return found if isinstance(found, dict) and isinstance(found.get("spec"), dict) else None


def with_accepted(cr: Json) -> Json | None:
    """Return a resource with the spec of its accepted version; None if there is none."""
    found = accepted_version(cr)
    return None if found is None else {**cr, "spec": found["spec"]}


def version_in_use(cr: Json, *, awaits: bool) -> Json | None:
    """Return a resource with the spec that a gateway serves; None if it must serve none.

    `awaits`: a version counts only after a loop has accepted it. It is also so once a loop has checked the resource
    against policies, or for a mode, and for a resource that names a mode itself.
    """
    mode = (cr["metadata"].get("annotations") or {}).get(ANNOTATION_MODE, "") or "Apply"
    held = condition_of(cr, Type.CHANGE_PENDING)
    if not awaits and mode == "Apply" and not held and not condition_of(cr, Type.POLICY_COMPLIANT):
        return cr
    found = accepted_version(cr)
    if found is not None:
        return cr if found.get("generation") == cr["metadata"].get("generation", 0) else with_accepted(cr)
    # A loop that does not know this field, or a CRD without it.
    return cr if allows_version(cr, awaits=awaits) and mode == "Apply" and not held else None


def version_fields(cr: Json) -> Json:
    """Return metadata and status with all that `version_in_use` reads, and the metadata that caches need."""
    metadata, status = cr["metadata"], cr.get("status") or {}
    kept = ("name", "namespace", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion", "uid")
    mode = (metadata.get("annotations") or {}).get(ANNOTATION_MODE)
    said = [each for each in status.get("conditions") or () if each.get("type") in _READ]
    return {
        "metadata": {
            **{key: metadata[key] for key in kept if key in metadata},
            **({"annotations": {ANNOTATION_MODE: mode}} if mode else {}),
        },
        "status": {"conditions": said, **({FIELD: status[FIELD]} if FIELD in status else {})},
    }


def unless_pending(cr: Json) -> Json | None:
    """Return a resource with its accepted spec while its change is pending; None if it was never accepted."""
    return with_accepted(cr) if condition_of(cr, Type.CHANGE_PENDING).get("status") == "True" else cr


def with_version(
    cr: Json,
    status: Json,
    accepted: Json | None,
    pending: PendingChange | None,
    *,
    waits: bool,
    problem: str = "",
    now: datetime,
) -> Json:
    """Return a status with the accepted version, and with the change that is held back.

    `waits`: the mode is not Apply, so that each new version waits. `problem` says why the mode is not valid.
    """
    made = {key: value for key, value in status.items() if key not in (FIELD, "pendingChange")}
    if accepted is not None:
        made[FIELD] = accepted
    conditions: Any = list(made.get("conditions") or ())
    if pending is None and not waits:
        return {**made, "conditions": drop_conditions(conditions, Type.CHANGE_PENDING)}
    said: tuple[Any, str, str] = ("False", NOTHING_PENDING, "No change waits for approval")
    if problem:
        said = "True", Reason.SPEC_INVALID, problem
    elif pending is not None:
        made["pendingChange"] = {
            "digest": pending.digest,
            "summary": pending.summary,
            "changes": list(pending.changes),
        }
        said = (
            "True",
            Reason.PAUSED if pending.paused else Reason.AWAITING_APPROVAL,
            approval_text(cr, pending),
        )
    condition, reason, message = said
    made["conditions"] = set_condition(
        conditions,
        type=Type.CHANGE_PENDING,
        status=condition,
        reason=reason,
        message=message,
        generation=cr["metadata"].get("generation", 0),
        now=now,
    )
    return made
