"""Says who wrote the fields of a live object that must go, and writes the record that lets an apply take them. Pure.

Called by `components.providers.kubernetes_clearing` for the losers of `kubernetes_alternatives` and
`kubernetes_collisions`. Server-side apply takes away what its manager owns alone. docs/adr/0041.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from components.providers.kubernetes_diff import Path, value_at
from components.providers.kubernetes_ownership import holds, writer_of
from components.providers.kubernetes_pairs import key_of
from components.providers.kubernetes_records import applied_fields, inherited
from kubeapi.json_types import Json


@dataclass(frozen=True)
class Held:
    """A losing field that another manager wrote."""

    path: Path
    manager: str


def held(paths: Iterable[Path], live: Json, manager: str) -> tuple[Held, ...]:
    """List the losing fields that other managers wrote."""
    ours = _as_ours(live, manager)
    writers = [(path, writer_of(ours, live, path, manager)) for path in paths]
    return tuple(Held(path, writer.manager) for path, writer in writers if writer is not None)


def is_claimed(paths: Iterable[Path], live: Json, manager: str) -> bool:
    """Tell whether the next apply takes all these fields: they are Herdsman's alone."""
    fields = applied_fields(live, manager) or {}
    return all(holds(fields, live, path) and not writer_of(live, live, path, manager) for path in paths)


def claimed(paths: Iterable[Path], live: Json, manager: str) -> list[Json]:
    """Give the managedFields in which the losing fields are Herdsman's alone, so that its next apply takes them away.

    An object that Herdsman never applied gets a record of such an apply.
    """
    entries: list[Json] = [dict(entry) for entry in _as_ours(live, manager)["metadata"].get("managedFields") or []]
    mine: Json = dict(applied_fields(_as_ours(live, manager), manager) or {})
    for path in paths:
        steps = _steps(path, live)
        mine = _added(mine, steps, value_at(live, path))
        entries = [{**entry, "fieldsV1": _without(entry.get("fieldsV1") or {}, steps)} for entry in entries]
    kept = [entry for entry in entries if not _is_ours(entry, manager) and entry["fieldsV1"]]
    known = next((entry for entry in entries if _is_ours(entry, manager)), None)
    base = known or {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": live["apiVersion"],
        "fieldsType": "FieldsV1",
    }
    return [{**base, "fieldsV1": mine}, *kept]


def _as_ours(live: Json, manager: str) -> Json:
    """Copy a live object with the record of a controller whose place Herdsman takes as Herdsman's own."""
    entries = inherited(live, manager)
    return live if entries is None else {**live, "metadata": {**live["metadata"], "managedFields": entries}}


def _is_ours(entry: Json, manager: str) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == (manager, "Apply", "")


def _steps(path: Path, live: Json) -> list[str]:
    """Write a path as the keys of a fieldsV1 tree."""
    steps, value = [], live
    for step in path:
        value = value_at(value, (step,))
        steps.append(f"f:{step}" if isinstance(step, str) else f"k:{json.dumps(key_of(value))}")
    return steps


def _same_key(one: str, other: str) -> bool:
    if one[:2] != "k:" or other[:2] != "k:":
        return one == other
    return bool(json.loads(one[2:]) == json.loads(other[2:]))


def _added(fields: Json, steps: list[str], value: Any) -> Json:
    """Copy a fieldsV1 tree with everything that a value holds, at `steps`."""
    if not steps:
        below = value if isinstance(value, dict) else {}
        return {f"f:{key}": _added({}, [], each) for key, each in below.items()}
    key = next((each for each in fields if _same_key(each, steps[0])), steps[0])
    below = _added(fields.get(key, {}), steps[1:], value)
    # An item goes as a whole only where it is owned itself, and not just its fields.
    is_item = len(steps) == 1 and key.startswith("k:")
    return {**fields, key: {".": {}, **below} if is_item else below}


def _without(fields: Json, steps: list[str]) -> Json:
    """Copy a fieldsV1 tree without what it has at `steps`, and without the branches that this leaves empty."""
    key = next((each for each in fields if _same_key(each, steps[0])), None)
    if key is None:
        return fields
    below = _without(fields[key], steps[1:]) if len(steps) > 1 else {}
    if below or (len(steps) > 1 and not fields[key]):
        return {**fields, key: below}
    return {name: each for name, each in fields.items() if name != key}
