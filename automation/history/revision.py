"""One past version of a service, as a ControllerRevision of apps/v1 keeps it. Pure.

`recorder` writes them, `herdsman history` and `herdsman rollback` read them. The kind is Kubernetes' own for this: its
`data` cannot be changed once written, and `kubectl get controllerrevisions` shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from automation.cache.owners import labels_of
from automation.engine.port import APPLIED_WITHOUT
from components.naming import owner_reference
from components.rendered import fingerprint_of
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired import keys
from program.desired.keys import Owner
from program.dialects.registry import INPUT_KINDS, LLMKUBE, key_of

ANNOTATION_CHANGED_BY = "herdsman.dev/changed-by"
ANNOTATION_CHANGED_AT = "herdsman.dev/changed-at"
ANNOTATION_CHANGES = "herdsman.dev/changes"
ANNOTATION_RESULT = "herdsman.dev/result"
ANNOTATION_DURATION = "herdsman.dev/duration"
ANNOTATION_RECORDED_AT = "herdsman.dev/recorded-at"
"""When a version was recorded, on a revision that was written anew since; RFC 3339."""
LABEL_FORMAT = "herdsman.dev/revision-format"
"""Which form `data` has. Revisions without it have bytes that nobody can patch: see `renewing`."""
FORMAT = "2"
CHANGE_CAUSE = "kubernetes.io/change-cause"
"""What `kubectl annotate` and `kubectl rollout history` call the reason that a person gives for a change."""
APPLIED = "Applied"

_LONGEST_TEXT = 2048
_PREFIX = "herdsman.dev/"
_NOT_PART = frozenset(
    {
        keys.ANNOTATION_APPROVED,
        keys.ANNOTATION_CONTROLLER,
        keys.ANNOTATION_KEPT_TEMPLATE,
        keys.ANNOTATION_MODE,
    }
)
"""Annotations that say how a service is looked after, and not what it is: a rollback leaves them as they are."""


@dataclass(frozen=True)
class Outcome:
    """What came of the engine run that applied a version."""

    changes: str
    """What was done, as the Event tells it."""
    error: str
    """Why it failed; empty when it went well."""
    duration: timedelta
    """From the moment it was handed to the engine."""


@dataclass(frozen=True)
class Revision:
    """One version of a service. `number` grows by one with each."""

    number: int
    data: Json
    """`spec` and `annotations` of the service, and `models`: the specs of what it refers to by `reference_of`."""
    changed_by: str
    """The field manager of the edit (`kubectl-edit`), for the API server tells controllers no user names."""
    changed_at: str
    """When it was edited, RFC 3339."""
    cause: str
    """What the editor wrote into the annotation kubernetes.io/change-cause."""
    result: str
    """`Applied`, or why it could not be."""
    changes: str
    duration_s: float
    recorded_at: str

    @property
    def is_applied(self) -> bool:
        return self.result == APPLIED

    @property
    def made_pods(self) -> bool:
        """Whether its pods were made: it was applied, if need be without accessories that the API refused."""
        return self.is_applied or self.result.startswith(APPLIED_WITHOUT)

    @property
    def digest(self) -> str:
        return fingerprint_of(self.data)


def data_of(cr: Json, models: Iterable[Json]) -> Json:
    """Take from a service and what it refers to what they ask for, and nothing that changes by itself.

    Of `models` those of other kinds than `INPUT_KINDS` do not count.
    """
    known = {(kind.group, kind.kind) for kind in INPUT_KINDS}
    referred = [each for each in models if _group_kind(each) in known]
    return {
        "spec": cr.get("spec") or {},
        "annotations": kept_annotations(cr["metadata"].get("annotations") or {}),
        "models": {reference_of(each): each.get("spec") or {} for each in sorted(referred, key=reference_of)},
    }


def reference_of(obj: Json) -> str:
    """Name an object that a service refers to: a Model by its name, any other as `Kind/name`, or with its namespace
    between where it has one.
    """
    metadata, kind = obj["metadata"], obj["kind"]
    if kind == kinds.MODELS.kind:
        return str(metadata["name"])
    return "/".join(filter(None, (kind, metadata.get("namespace"), metadata["name"])))


def _group_kind(obj: Json) -> tuple[str, str]:
    return str(obj.get("apiVersion", "")).rpartition("/")[0], str(obj["kind"])


def kept_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Choose the annotations that are part of what a service is."""
    return {
        name: value for name, value in sorted(annotations.items()) if name.startswith(_PREFIX) and name not in _NOT_PART
    }


def manifest(cr: Json, number: int, data: Json, outcome: Outcome) -> Json:
    """Build the ControllerRevision of one version."""
    metadata = cr["metadata"]
    edit = metadata.get("changedBy") or {}
    cause = str((metadata.get("annotations") or {}).get(CHANGE_CAUSE, ""))
    told = {
        ANNOTATION_CHANGED_BY: str(edit.get("manager", "")),
        ANNOTATION_CHANGED_AT: str(edit.get("time", "")),
        CHANGE_CAUSE: cause[:_LONGEST_TEXT],
    }
    return {
        "apiVersion": kinds.CONTROLLER_REVISIONS.api_version,
        "kind": kinds.CONTROLLER_REVISIONS.kind,
        "metadata": {
            "name": name_of(key_of(cr), number),
            "namespace": metadata["namespace"],
            "labels": {**labels_of(key_of(cr)), LABEL_FORMAT: FORMAT},
            "annotations": {**{k: v for k, v in told.items() if v}, **outcome_annotations(outcome)},
            "ownerReferences": [owner_reference(Owner.of(cr))],
        },
        "data": data,
        "revision": number,
    }


def name_of(key: keys.ServiceKey, number: int) -> str:
    """Name a revision. Two writers that give the same number meet at the API server, which takes one of them.

    Services of two dialects may have one name, so all but LLMKube's say their dialect.
    """
    name = f"{key.name}-v{number}"
    return name if key.dialect == LLMKUBE else f"{name}.{key.dialect}"


def outcome_annotations(outcome: Outcome) -> dict[str, str]:
    """Say in annotations what came of a run; they may be written again, when a later try goes better."""
    return {
        ANNOTATION_RESULT: outcome.error[:_LONGEST_TEXT] or APPLIED,
        ANNOTATION_CHANGES: outcome.changes[:_LONGEST_TEXT],
        ANNOTATION_DURATION: f"{outcome.duration.total_seconds():.2f}s",
    }


def read(obj: Json) -> Revision | None:
    """Read a ControllerRevision; None for one that is not ours (a StatefulSet's, say)."""
    metadata, data = obj["metadata"], obj.get("data")
    annotations = metadata.get("annotations") or {}
    if ANNOTATION_RESULT not in annotations or not isinstance(data, dict) or "spec" not in data:
        return None
    return Revision(
        number=int(obj.get("revision") or 0),
        data={key: data.get(key) or {} for key in ("spec", "annotations", "models")},
        changed_by=annotations.get(ANNOTATION_CHANGED_BY, ""),
        changed_at=annotations.get(ANNOTATION_CHANGED_AT, ""),
        cause=annotations.get(CHANGE_CAUSE, ""),
        result=annotations[ANNOTATION_RESULT],
        changes=annotations.get(ANNOTATION_CHANGES, ""),
        duration_s=_seconds(annotations.get(ANNOTATION_DURATION, "")),
        recorded_at=annotations.get(ANNOTATION_RECORDED_AT) or str(metadata.get("creationTimestamp", "")),
    )


def read_all(objects: Iterable[Json], *, owner: str) -> tuple[Revision, ...]:
    """Read the revisions of the service with the uid `owner`, the newest first."""
    ours = (obj for obj in objects if any(o.get("uid") == owner for o in obj["metadata"].get("ownerReferences") or ()))
    found = (read(obj) for obj in ours)
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.number, reverse=True))


def edit_of(metadata: Json) -> dict[str, str] | None:
    """Tell from the managedFields who wrote spec or annotations last, and when. None where nobody is recorded."""
    latest: Json = {}
    for entry in metadata.get("managedFields") or ():
        fields = entry.get("fieldsV1") or {}
        asks = "f:spec" in fields or "f:annotations" in (fields.get("f:metadata") or {})
        if not entry.get("subresource") and asks and str(entry.get("time", "")) >= str(latest.get("time", "")):
            latest = entry
    if not latest:
        return None
    return {"manager": str(latest.get("manager", "")), "time": str(latest.get("time", ""))}


def _seconds(text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        return 0.0


def size_bytes(data: Json) -> int:
    """How much a version takes on the wire."""
    return len(json.dumps(data).encode())
