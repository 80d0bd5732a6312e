"""The fields of an object that a client has set by server-side apply. Pure.

An apply removes the fields that the same client applied before and leaves out now. `cluster` adds them again, so that a
`herdsman deploy` with fewer options changes only what it names.
"""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json


def with_owned_fields(document: Json, live: Json, manager: str) -> Json:
    """Return a document with the fields of `live` that `manager` applied and the document leaves out."""
    owned: Json = {}
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            owned = _merged(owned, _selected(live, entry.get("fieldsV1") or {}))
    merged: Json = _merged(owned, document)
    return merged


def _selected(value: Any, fields: Json) -> Any:
    """Return the part of a value that a tree of fieldsV1 names. Lists are taken whole."""
    names = [key[2:] for key in fields if key.startswith("f:")]
    if not names or not isinstance(value, dict):
        return value
    return {name: _selected(value[name], fields[f"f:{name}"]) for name in names if name in value}


def _merged(below: Any, above: Any) -> Any:
    """Return `above` with the keys that only `below` has."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _merged(below[key], value) if key in below else value
    return merged
