"""Take a status over from the controller that wrote it before: LLMKube's, on the day that its users migrate.

Server-side apply never removes what another manager owns, and leaves half a condition behind where it owned the other
half, which the schema then refuses: the status could not be written any more. So the first write of ours is preceded by
a patch that clears what is ours to say; a field that is gone is nobody's. Both controllers call this.
On the way back `leave_status` takes out what is said by nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence

from components import naming
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import Kind


def written_by_another(status: Json | None, mark: str = "Ready") -> bool:
    """Tell whether a status has content of a controller other than ours, whose statuses all have condition `mark`."""
    conditions = (status or {}).get("conditions") or ()
    return bool(status) and not any(condition["type"] == mark for condition in conditions)


ONLY_OURS = frozenset(
    {
        *("Ready", "Reconciling", "Stalled", "SpecHonoured", "MemoryFits", "AutoscalerReady", "RolledBack"),
        *("ObjectsApplied", "TemplateKept", "ChangePending", "PolicyCompliant", "Drifted", "SourceVerified"),
    }
)
"""Conditions that LLMKube does not know. Left in a status that it writes from now on they would never change again, and
`written_by_another` would not know that status for its."""


def leave_status(client: KubeClient, kind: Kind, cr: Json, *, shared: frozenset[str] = frozenset()) -> None:
    """Take out of a status what nobody but us says, before another controller goes on with the rest.

    `shared` are conditions of ours that this peer has too, and that stay.

    Raises Conflict when the object changed since `cr` was read, NotFound when it is gone.
    """
    conditions = (cr.get("status") or {}).get("conditions") or ()
    kept = [c for c in conditions if c["type"] not in ONLY_OURS - shared]
    if len(kept) == len(conditions):
        return
    _patch_status(client, kind, cr, {"conditions": kept})


def clear_status(client: KubeClient, kind: Kind, cr: Json, *, kept: Sequence[str] = ("MemoryPressure",)) -> None:
    """Remove all of an object's status but the conditions of the types `kept`, which an agent writes.

    Raises Conflict when the object changed since `cr` was read, NotFound when it is gone.
    """
    status = cr["status"]
    left = [c for c in status.get("conditions") or () if c["type"] in kept]
    _patch_status(client, kind, cr, {**dict.fromkeys(status), "conditions": left})


def _patch_status(client: KubeClient, kind: Kind, cr: Json, status: Json) -> None:
    """Patch the status of the object as it was read, and of no other."""
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
