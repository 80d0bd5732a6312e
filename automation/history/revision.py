"""A past version of a service as a ControllerRevision of apps/v1, and how it is restored. Pure.

`recorder` writes revisions, `herdsman history` and `herdsman rollback` read them. Kubernetes has the kind for this
purpose: `data` is immutable, and `kubectl get controllerrevisions` lists the revisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from automation.cache.owners import labels_of
from automation.engine.port import APPLIED_WITHOUT
from components.naming import ANNOTATION_FLEET, owner_reference
from components.rendered import fingerprint_of
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired import keys
from program.desired.keys import Owner
from program.dialects.registry import INPUT_KINDS, LLMKUBE, key_of, referrer_of

ANNOTATION_CHANGED_BY = "herdsman.dev/changed-by"
ANNOTATION_CHANGED_AT = "herdsman.dev/changed-at"
ANNOTATION_CHANGES = "herdsman.dev/changes"
ANNOTATION_RESULT = "herdsman.dev/result"
ANNOTATION_DURATION = "herdsman.dev/duration"
ANNOTATION_RECORDED_AT = "herdsman.dev/recorded-at"
"""On a revision that was rewritten: when its version was recorded, RFC 3339."""
LABEL_FORMAT = "herdsman.dev/revision-format"
"""The form of `data`. The API server refuses every patch of a revision without this label: see `upgrade`."""
FORMAT = "2"
CHANGE_CAUSE = "kubernetes.io/change-cause"
"""The annotation of `kubectl rollout history` with the reason that a person gives for a change."""
APPLIED = "Applied"

_LONGEST_TEXT = 2048
_PREFIX = "herdsman.dev/"
_NOT_PART = frozenset(
    {
        keys.ANNOTATION_APPROVED,
        keys.ANNOTATION_CONTROLLER,
        ANNOTATION_FLEET,
        keys.ANNOTATION_KEPT_TEMPLATE,
        keys.ANNOTATION_MODE,
    }
)
"""Annotations on how controllers treat a service. A rollback does not change them."""


@dataclass(frozen=True)
class Outcome:
    """The result of the engine run that applied a version."""

    changes: str
    """The changes, in the words of the Event."""
    error: str
    """Why the run failed; empty when it succeeded."""
    duration: timedelta
    """The time since the version was submitted to the engine."""


@dataclass(frozen=True)
class Revision:
    """One version of a service. The numbers of a service's versions count up by one."""

    number: int
    data: Json
    """`spec` and `annotations` of the service, and `models`: the specs of the objects that it refers to, by
    `reference_of`."""
    changed_by: str
    """The field manager of the edit (`kubectl-edit`). Controllers do not learn user names."""
    changed_at: str
    """The time of the edit, RFC 3339."""
    cause: str
    """The annotation kubernetes.io/change-cause."""
    result: str
    """`Applied`, or the error of the run."""
    changes: str
    duration_s: float
    recorded_at: str

    @property
    def is_applied(self) -> bool:
        return self.result == APPLIED

    @property
    def made_pods(self) -> bool:
        """Whether its pods were created: it was applied, at least without accessories that the API server refused."""
        return made_pods(self.result)

    @property
    def digest(self) -> str:
        return fingerprint_of(self.data)


def made_pods(result: str) -> bool:
    """Return whether a version with this result was applied, at least without accessories that were refused."""
    return result == APPLIED or result.startswith(APPLIED_WITHOUT)


def data_of(cr: Json, models: Iterable[Json]) -> Json:
    """Return the data of a version: the spec and annotations of a service, and the specs of its `models`.

    `models` of other kinds than `INPUT_KINDS` are ignored.
    """
    known = {(kind.group, kind.kind) for kind in INPUT_KINDS}
    referred = [each for each in models if _group_kind(each) in known]
    return {
        "spec": cr.get("spec") or {},
        "annotations": kept_annotations(cr["metadata"].get("annotations") or {}),
        "models": {reference_of(each): each.get("spec") or {} for each in sorted(referred, key=reference_of)},
    }


def reference_of(obj: Json) -> str:
    """Return the name of a referred object in a revision.

    A Model is named by its name, any other object as `Kind/name` or `Kind/namespace/name`.
    """
    metadata, kind = obj["metadata"], obj["kind"]
    if kind == kinds.MODELS.kind:
        return str(metadata["name"])
    return "/".join(filter(None, (kind, metadata.get("namespace"), metadata["name"])))


def _group_kind(obj: Json) -> tuple[str, str]:
    return str(obj.get("apiVersion", "")).rpartition("/")[0], str(obj["kind"])


def changed_at(cr: Json) -> str:
    """Return the time of the last edit of a cached custom resource, RFC 3339; empty if it is not known."""
    return str((cr["metadata"].get("changedBy") or {}).get("time", ""))


def kept_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that are part of a version."""
    return {
        name: value for name, value in sorted(annotations.items()) if name.startswith(_PREFIX) and name not in _NOT_PART
    }


def manifest(cr: Json, number: int, data: Json, outcome: Outcome) -> Json:
    """Build the ControllerRevision of one version."""
    metadata = cr["metadata"]
    edit = metadata.get("changedBy") or {}
    cause = str((metadata.get("annotations") or {}).get(CHANGE_CAUSE, ""))
    notes = {
        ANNOTATION_CHANGED_BY: str(edit.get("manager", "")),
        ANNOTATION_CHANGED_AT: changed_at(cr),
        CHANGE_CAUSE: cause[:_LONGEST_TEXT],
    }
    return {
        "apiVersion": kinds.CONTROLLER_REVISIONS.api_version,
        "kind": kinds.CONTROLLER_REVISIONS.kind,
        "metadata": {
            "name": name_of(key_of(cr), number),
            "namespace": metadata["namespace"],
            "labels": {**labels_of(key_of(cr)), LABEL_FORMAT: FORMAT},
            "annotations": {**{k: v for k, v in notes.items() if v}, **outcome_annotations(outcome)},
            "ownerReferences": [_owned_by(cr)],
        },
        "data": data,
        "revision": number,
    }


def _owned_by(cr: Json) -> Json:
    reference: Json = owner_reference(Owner.of(cr))
    # To block a deletion, the loop would need the right to the finalizers of these kinds.
    return {**reference, "blockOwnerDeletion": False} if referrer_of(cr) else reference


def name_of(key: keys.ServiceKey, number: int) -> str:
    """Return the name of a revision. Of two writers with the same number, the API server refuses the second.

    Services of two dialects may have the same name, so the name contains the dialect, except LLMKube's.
    """
    name = f"{key.name}-v{number}"
    return name if key.dialect == LLMKUBE else f"{name}.{key.dialect}"


def outcome_annotations(outcome: Outcome) -> dict[str, str]:
    """Return the annotations with the result of a run. A later try that succeeds overwrites them."""
    return {
        ANNOTATION_RESULT: outcome.error[:_LONGEST_TEXT] or APPLIED,
        ANNOTATION_CHANGES: outcome.changes[:_LONGEST_TEXT],
        ANNOTATION_DURATION: f"{outcome.duration.total_seconds():.2f}s",
    }


def read(obj: Json) -> Revision | None:
    """Parse a ControllerRevision; None for one that Herdsman did not write, such as a StatefulSet's."""
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
    """Parse the revisions of the service with the uid `owner`, the newest first."""
    ours = (obj for obj in objects if any(o.get("uid") == owner for o in obj["metadata"].get("ownerReferences") or ()))
    found = (read(obj) for obj in ours)
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.number, reverse=True))


def edit_of(metadata: Json) -> dict[str, str] | None:
    """Return manager and time of the last write of spec or annotations, by the managedFields; None without one."""
    latest: Json = {}
    for entry in metadata.get("managedFields") or ():
        fields = entry.get("fieldsV1") or {}
        asks = "f:spec" in fields or "f:annotations" in (fields.get("f:metadata") or {})
        if not entry.get("subresource") and asks and _order(entry) >= _order(latest):
            latest = entry
    if not latest:
        return None
    return {"manager": str(latest.get("manager", "")), "time": str(latest.get("time", ""))}


def _order(entry: Json) -> tuple[str, bool]:
    # Times have full seconds. Approvals and rollbacks follow the edit that they answer, even within its second.
    return str(entry.get("time", "")), str(entry.get("manager", "")).startswith("herdsman-")


def _seconds(text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        return 0.0


def size_bytes(data: Json) -> int:
    """Return the size of a version's JSON."""
    return len(json.dumps(data).encode())


class NothingToRestore(Exception):
    """There is no version to restore. The message says why and what to do."""


def choose_revision(revisions: Sequence[Revision], cr: Json, models: Sequence[Json], to: int | None) -> Revision:
    """Find the version to restore: number `to`, or the newest one that was applied and differs from the current spec.

    `revisions` are the newest first. Raises NothingToRestore.
    """
    numbers = ", ".join(str(each.number) for each in revisions) or "none"
    if to is not None:
        found = next((each for each in revisions if each.number == to), None)
        if found is None:
            raise NothingToRestore(f"no revision {to}; the kept revisions are: {numbers}")
        return found
    now = fingerprint_of(data_of(cr, models))
    for each in revisions:
        if each.made_pods and each.digest != now:
            return each
    raise NothingToRestore(
        f"no applied revision differs from the current spec (the kept revisions are: {numbers}); `herdsman history` "
        f"lists them"
    )


def restore(cr: Json, revision: Revision) -> Json:
    """Return the custom resource with the spec and Herdsman's annotations of a version; all else stays."""
    metadata = dict(cr["metadata"])
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations") or {}
    left = {name: value for name, value in annotations.items() if name not in kept_annotations(annotations)}
    metadata["annotations"] = {**left, **revision.data["annotations"]}
    return {**{k: v for k, v in cr.items() if k != "status"}, "metadata": metadata, "spec": revision.data["spec"]}


def changed_models(revision: Revision, models: Sequence[Json]) -> dict[str, Json | None]:
    """Return the specs of the referred objects that differ between a version and now, by `reference_of`.

    Each has its spec of the version; None for an object that is gone.
    """
    now = {reference_of(model): model.get("spec") or {} for model in models}
    was = revision.data["models"]
    return {name: spec if name in now else None for name, spec in was.items() if now.get(name) != spec}
