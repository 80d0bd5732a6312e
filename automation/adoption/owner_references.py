"""Reads and changes the owner references of objects. Called by adoption and by moves between loop and fleet."""

from __future__ import annotations

from collections.abc import Mapping

from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

_TRIES = 10


def controller_uid(obj: Json) -> str:
    """Return the uid of the controller of an object, whole or as caches keep it; empty for none."""
    metadata = obj["metadata"]
    references = metadata.get("ownerReferences") or ()
    whole = next((each["uid"] for each in references if each.get("controller")), "")
    return str(metadata.get("owner") or whole)


def is_owned(obj: Json, uid: str) -> bool:
    """Return whether an object has an owner reference to this uid."""
    return any(reference.get("uid") == uid for reference in obj["metadata"].get("ownerReferences") or ())


def replace_owner(
    client: KubeClient,
    kind: Kind,
    obj: Json,
    *,
    remove: str,
    add: Json | None = None,
    annotations: Mapping[str, str] | None = None,
    field_manager: str,
) -> None:
    """Remove the owner with the uid `remove` from an object, add another, and set annotations, in one write.

    Does nothing when the object is gone or was made anew, nor where there is nothing to change. Raises Conflict when
    other clients write the object each time in between, and any other ApiError.
    """
    metadata = obj["metadata"]
    for _ in range(_TRIES):
        try:
            live = client.get(kind, metadata.get("namespace"), metadata["name"])
        except NotFound:
            return
        if live["metadata"]["uid"] != metadata["uid"] or not (annotations or is_owned(live, remove)):
            return
        references = live["metadata"].get("ownerReferences") or ()
        owners = [*(each for each in references if each.get("uid") != remove), *([add] if add else [])]
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/metadata/ownerReferences", "value": owners},
        ]
        if annotations:
            value = {**(live["metadata"].get("annotations") or {}), **annotations}
            body.append({"op": "add", "path": "/metadata/annotations", "value": value})
        try:
            client.patch(
                kind,
                metadata.get("namespace"),
                metadata["name"],
                body,
                content_type=JSON_PATCH,
                field_manager=field_manager,
            )
        except Conflict:
            continue
        return
    raise Conflict(
        409, "Conflict", f"{obj['kind']} `{metadata['name']}` changed at each attempt to write its owner references"
    )
