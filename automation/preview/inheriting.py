"""What goes with the first apply of an object that another controller of the same service made. Pure.

The provider takes the place of such a controller in the record of ownership before it applies
(`components.providers.kubernetes_ownership.inherited`), so that what the other left behind goes. A dry run cannot do
the same, since the record cannot be changed without writing; so what would go is taken out of its answer here. Entries
of maps and of lists go; single fields do not, since those that the other gave and we do not are defaults, which come
back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from components.providers.kubernetes_records import inherited
from kubeapi.json_types import Json

_MAPS = frozenset({"labels", "annotations", "nodeSelector", "limits", "requests"})
"""Fields whose keys are free, so that no default brings one back."""


def without_left_behind(after: Json, live: Json, wanted: Json, field_manager: str) -> Json:
    """Take from a dry run's answer the fields whose only owner would be us and that are not `wanted`."""
    before = (live.get("metadata") or {}).get("managedFields") or []
    entries = inherited(live, field_manager)
    if entries is None:
        return after
    at = next(number for number, (one, other) in enumerate(zip(before, entries, strict=True)) if one != other)
    ours = before[at].get("fieldsV1") or {}
    others = [entry.get("fieldsV1") or {} for number, entry in enumerate(before) if number != at]
    kept: Json = _kept(after, wanted, ours, others, key="")
    return kept


def _kept(value: Any, wanted: Any, ours: Json, others: list[Json], *, key: str) -> Any:
    if isinstance(value, dict):
        return _members(value, wanted if isinstance(wanted, dict) else {}, ours, others, is_map=key in _MAPS)
    if isinstance(value, list) and any(key.startswith("k:") for key in ours):
        return _items(value, wanted if isinstance(wanted, list) else [], ours, others)
    return value


def _members(value: Json, wanted: Json, ours: Json, others: list[Json], *, is_map: bool) -> Json:
    kept = {}
    for key, child in value.items():
        field = f"f:{key}"
        below = [each[field] for each in others if field in each]
        if field in ours and key in wanted:
            kept[key] = _kept(child, wanted[key], ours[field], below, key=key)
        elif field not in ours or below or not is_map:
            kept[key] = child
        # Else nobody but us would own it, and we do not ask for it: it goes.
    return kept


def _items(value: list[Any], wanted: list[Any], ours: Json, others: list[Json]) -> list[Any]:
    kept = []
    for item in value:
        field = next((key for key in ours if key.startswith("k:") and _has(item, key)), None)
        if field is None:
            kept.append(item)
            continue
        below = [each[field] for each in others if field in each]
        found = next((each for each in wanted if _has(each, field)), None)
        if found is not None:
            kept.append(_kept(item, found, ours[field], below, key=""))
        elif below:
            kept.append(item)
    return kept


def _has(item: Any, field: str) -> bool:
    key: Iterable[tuple[str, Any]] = json.loads(field[2:]).items()
    return isinstance(item, dict) and all(item.get(name, value) == value for name, value in key)
