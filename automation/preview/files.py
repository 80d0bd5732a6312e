"""Tries out custom resources from files as `kubectl apply` would bring them, without bringing them.

Called by `requests`. The API server's answer is what counts: its validation and its defaults, with what others wrote
into the object kept. What a file leaves out goes if the file said it before, as with kubectl: by the annotation in
which a client-side apply keeps its last version, or by the API server's record of a server-side apply.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from components import naming
from components.providers.kubernetes_errors import causes
from components.providers.kubernetes_objects import LAST_APPLIED_ANNOTATION
from kubeapi.client import APPLY_PATCH, MERGE_PATCH, KubeClient
from kubeapi.errors import ApiError, Conflict, NotFound, TooManyRequests, Unauthorized, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.rest import JSON

FIELD_MANAGER = "kubectl"
NO_UID = "00000000-0000-0000-0000-000000000000"
"""Stands for the uid of a custom resource that does not exist yet: a dry run makes up another each time."""
_METADATA = ("labels", "annotations", "finalizers")


@dataclass(frozen=True)
class Asked:
    """A custom resource as it would stand in the cluster after its file was applied."""

    cr: Json
    live: Json | None
    changed: bool
    """It would be new, or another than it is."""


class FileRefused(Exception):
    """The API server would not take a document; the message names the fields."""


def asked(client: KubeClient, kind: Kind, wanted: Json, live: Json | None) -> Asked:
    """Dry-run the apply of a document over what stands there.

    Raises FileRefused, and ApiError where the API server cannot be asked.
    """
    namespace, name = wanted["metadata"].get("namespace"), wanted["metadata"]["name"]
    if live is not None and live["metadata"].get("deletionTimestamp"):
        raise FileRefused("is being deleted; apply it again when it is gone")
    wanted = _applicable(wanted)
    try:
        if live is None:
            after = _send(client, "POST", kind.path(namespace), wanted, JSON)
            after["metadata"]["uid"] = NO_UID
            return Asked({**after, "apiVersion": kind.api_version, "kind": kind.kind}, None, changed=True)
        path = kind.path(namespace, name)
        if manager := _server_side_applier(live):
            after = _send(client, "PATCH", path, wanted, APPLY_PATCH, manager=manager)
        elif patch := three_way(_last_applied(live), wanted, live):
            after = _send(client, "PATCH", path, patch, MERGE_PATCH)
        else:
            after = live
    except (Unreachable, Unauthorized, TooManyRequests):
        raise
    except ApiError as error:
        raise FileRefused(_words(error)) from error
    return Asked({**after, "apiVersion": kind.api_version, "kind": kind.kind}, live, changed=_differ(live, after))


def as_written(wanted: Json) -> Asked:
    """Take a document as it is, where the cluster does not know its kind yet and nobody can be asked."""
    cr = _applicable(wanted)
    return Asked({**cr, "metadata": {**cr["metadata"], "uid": NO_UID}}, None, changed=True)


def _send(
    client: KubeClient, method: str, path: str, body: Json, content_type: str, *, manager: str = FIELD_MANAGER
) -> Json:
    """Send a dry run that is as strict about fields that do not exist as kubectl is."""
    query = {"dryRun": "All", "fieldManager": manager, "fieldValidation": "Strict"}
    if content_type == APPLY_PATCH:
        query["force"] = "true"
    return client.request(method, path, query=query, body=body, content_type=content_type)


def three_way(before: Json, wanted: Json, live: Json) -> Json:
    """Build the merge patch that kubectl would send: set what is wanted, remove what was wanted before and is not now.

    What neither version speaks of is somebody else's and stays.
    """
    patch: Json = {key: None for key in before if key not in wanted and key in live}
    for key, value in wanted.items():
        there = live.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            was = before.get(key)
            if below := three_way(was if isinstance(was, dict) else {}, value, there):
                patch[key] = below
        elif there != value and not (value is None and key not in live):
            patch[key] = value
    return patch


def _applicable(wanted: Json) -> Json:
    """Keep of a document what a user may write: no status, and no identity that the server assigns."""
    metadata = {key: value for key, value in wanted["metadata"].items() if key in ("name", "namespace", *_METADATA)}
    return {**{key: value for key, value in wanted.items() if key != "status"}, "metadata": metadata}


def _last_applied(live: Json) -> Json:
    text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED_ANNOTATION)
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return _applicable(found) if isinstance(found, dict) and isinstance(found.get("metadata"), dict) else {}


def _server_side_applier(live: Json) -> str:
    """Name who applies the object by server-side apply, as `kubectl apply --server-side` and GitOps tools do."""
    for entry in live["metadata"].get("managedFields") or ():
        ours = str(entry.get("manager", "")).startswith(naming.FIELD_MANAGER)
        if entry.get("operation") == "Apply" and not entry.get("subresource") and not ours:
            return str(entry["manager"])
    return ""


def _differ(live: Json, after: Json) -> bool:
    if live.get("spec") != after.get("spec"):
        return True
    return any((live["metadata"].get(key) or {}) != (after["metadata"].get(key) or {}) for key in _METADATA[:2])


def _words(error: ApiError) -> str:
    found = causes(error)
    if found:
        return "; ".join(f"{field}: {why}" if field else why for field, why in found)
    if isinstance(error, NotFound) and error.message.startswith("namespaces "):
        return f"{error.message}: create the namespace first"
    if isinstance(error, Conflict):
        return "was changed by somebody at this moment; ask again"
    return error.message.strip()
