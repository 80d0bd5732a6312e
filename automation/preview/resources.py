"""Previews ModelRouters, ModelPools and LoRAAdapters: their own change, and what it means.

Called by `requests` for files, and by `herdsman rollback`. These resources get no objects, so that the custom resource
itself is all that changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from automation.approval.modes import mode_of
from automation.engine.differences import differences
from automation.preview.changes import ResourcePreview
from automation.preview.custom_resources import AppliedDocument
from automation.preview.effects import Effects, effects_of
from automation.preview.lookup import PreviewLookup
from components.providers.kubernetes_objects import LAST_APPLIED_ANNOTATION
from kubeapi.json_types import Json
from program.desired.errors import DesiredError, SpecInvalid
from program.desired.facts import Problem
from program.dialects.registry import referrer_of

_DIGITS = 16


def preview_resource(look: PreviewLookup, applied: AppliedDocument) -> ResourcePreview:
    """Preview a resource as it would be after its file was applied. Raises ApiError."""
    cr, live = applied.cr, applied.live
    metadata = cr["metadata"]
    before, after = _visible(live), _visible(cr)
    fields: tuple[str, ...] = ()
    if live is not None and applied.changed:
        fields = differences(before, after) or ("in another order",)
    found, problem = Effects(), None
    try:
        found = effects_of(cr, live, look)
    except DesiredError as error:
        problem = _problem(error)
    return ResourcePreview(
        kind=str(cr["kind"]),
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        op="same" if not applied.changed else "create" if live is None else "update",
        fields=fields,
        digest=_digest(before, after) if applied.changed else "",
        effects=found.effects,
        warnings=found.warnings,
        problem=problem,
    )


def with_mode(preview: ResourcePreview, cr: Json, of_namespace: Mapping[str, str]) -> ResourcePreview:
    """Return the preview of a file with a note if the mode holds the change back.

    `of_namespace` are the annotations of the namespace, which sets the mode where the resource does not.
    """
    try:
        mode = mode_of(cr, of_namespace)
    except SpecInvalid as error:
        return replace(preview, problem=preview.problem or _problem(error))
    if mode == "Apply" or not preview.changed:
        return preview
    named = f"{referrer_of(cr)}/{preview.name} -n {preview.namespace}"
    until = f"`herdsman approve {named}`" if mode == "Preview" else "the mode is changed"
    return replace(preview, notes=(f"mode {mode}: the version in use stays in use until {until}",))


def _problem(error: DesiredError) -> Problem:
    return Problem(reason=error.reason, message=error.why, field=error.field, terminal=True)


def _visible(cr: Json | None) -> Json:
    """Return the part of a resource that people write; empty for none."""
    if cr is None:
        return {}
    metadata = cr["metadata"]
    annotations = metadata.get("annotations") or {}
    kept = {name: value for name, value in annotations.items() if name != LAST_APPLIED_ANNOTATION}
    return {"metadata": {"labels": metadata.get("labels") or {}, "annotations": kept}, "spec": cr.get("spec") or {}}


def _digest(before: Json, after: Json) -> str:
    return hashlib.sha256(json.dumps([before, after], sort_keys=True).encode()).hexdigest()[:_DIGITS]
