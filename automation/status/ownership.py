"""Takes a status over from the controller that wrote it before, and leaves it to another. Both controllers call this.

Server-side apply never removes fields that another manager owns. Where the other manager owns a part of a condition,
that part stays, and the schema then refuses the status. So a patch before the first write clears the status.
`leave_status` removes the conditions that no other controller would update.
"""

from __future__ import annotations

from collections.abc import Sequence

from components import naming
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.registry import DIALECTS, dialect_named


def written_by_another(status: Json | None, mark: str = "Ready") -> bool:
    """Return whether another controller wrote a status: it is not empty, and lacks Herdsman's condition `mark`."""
    conditions = (status or {}).get("conditions") or ()
    return bool(status) and not any(condition["type"] == mark for condition in conditions)


def held_by_upstream(cr: Json, dialect: str) -> bool:
    """Return whether the upstream controller of a dialect manages a service, or managed it before.

    Always False for a dialect whose services a loop takes at once (`DialectInfo.yields`).
    """
    info, finalizers = DIALECTS[dialect], cr["metadata"].get("finalizers") or ()
    return info.yields and (
        any(each in dialect_named(dialect).peer_finalizers for each in finalizers)
        or written_by_another(cr.get("status"), info.status_mark)
    )


ONLY_OURS = frozenset(
    {
        *("Ready", "Reconciling", "Stalled", "SpecHonoured", "MemoryFits", "AutoscalerReady", "RolledBack"),
        *("ObjectsApplied", "TemplateKept", "ChangePending", "PolicyCompliant", "Drifted", "SourceVerified"),
    }
)
"""Conditions that LLMKube does not know. In a status that LLMKube writes from now on, they would never change again,
and `written_by_another` would take that status for Herdsman's."""


ONLY_OUR_FIELDS = ("acceptedVersion", "pendingChange")
"""Fields that LLMKube does not know, of which the same is true."""


def leave_status(client: KubeClient, kind: Kind, cr: Json, *, shared: frozenset[str] = frozenset()) -> None:
    """Remove the conditions of a status that only Herdsman writes, before another controller takes it over.

    `shared` are conditions that the other controller writes as well; they stay.

    Raises Conflict when the object changed since `cr` was read, NotFound when it is gone.
    """
    conditions = (cr.get("status") or {}).get("conditions") or ()
    kept = [c for c in conditions if c["type"] not in ONLY_OURS - shared]
    fields = [name for name in ONLY_OUR_FIELDS if name in (cr.get("status") or {})]
    if len(kept) == len(conditions) and not fields:
        return
    _patch_status(client, kind, cr, {"conditions": kept, **dict.fromkeys(fields)})


def clear_status(client: KubeClient, kind: Kind, cr: Json, *, kept: Sequence[str] = ("MemoryPressure",)) -> None:
    """Remove an object's status except for conditions of the types `kept`, which an agent writes.

    Raises Conflict when the object changed since `cr` was read, NotFound when it is gone.
    """
    status = cr["status"]
    left = [c for c in status.get("conditions") or () if c["type"] in kept]
    _patch_status(client, kind, cr, {**dict.fromkeys(status), "conditions": left})


def _patch_status(client: KubeClient, kind: Kind, cr: Json, status: Json) -> None:
    """Patch the status, provided that the object is still the version that was read."""
    metadata = cr["metadata"]
    body = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": status,
    }
    client.patch(
        kind,
        metadata["namespace"],
        metadata["name"],
        body,
        subresource="status",
        field_manager=naming.FIELD_MANAGER,
    )
