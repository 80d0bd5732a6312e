"""The part of a live object that a field manager applied, by its record in managedFields. Pure.

Called by `kubernetes_looks` and by previews, which do not import gRPC.
"""

from __future__ import annotations

from typing import Any

from components.providers.kubernetes_ownership import canonical, keyed_items, set_members
from components.providers.kubernetes_records import applied_fields
from kubeapi.json_types import Json


def as_applied(live: Json, field_manager: str) -> Json:
    """Copy a live object with its identity and the fields that the manager applied.

    If the manager applied none, return the whole object. The values are in the API server's form, which writes `1000m`
    as `1`.
    """
    fields = applied_fields(live, field_manager)
    if fields is None:
        return live
    metadata = live.get("metadata") or {}
    found: Json = _owned(live, fields)
    named = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {
        **{key: live[key] for key in ("apiVersion", "kind") if key in live},
        **found,
        "metadata": {**named, **(found.get("metadata") or {})},
    }


def _owned(live: Any, fields: Any) -> Any:
    if not fields:
        return live  # a value, or an atomic object or list
    if isinstance(live, dict):
        below = {name[2:]: each for name, each in fields.items() if name.startswith("f:")}
        return {key: _owned(value, below[key]) for key, value in live.items() if key in below}
    if isinstance(live, list):
        return [item for each in live for item in _owned_item(each, fields)]
    return live


def _owned_item(item: Any, fields: Json) -> list[Any]:
    keys, below = keyed_items(fields)
    if isinstance(item, dict):
        for key, each in zip(keys, below, strict=True):
            if all(item.get(name) == value for name, value in key.items()):
                return [_owned(item, each)]
    return [item] if canonical(item) in set_members(fields) else []
