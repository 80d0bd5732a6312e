"""Finds the owner of a live object, and of each of its fields, from managedFields and owner references. Pure.

Called by `components.providers.kubernetes` and `components.providers.kubernetes_objects`. How server-side apply records
ownership: https://kubernetes.io/docs/reference/using-api/server-side-apply/ and docs/adr/0005.

Drift is read from ownership and not from values. The API server takes a field from Herdsman's record as soon as another
client gives it another value. It leaves a field in the record whose value it only normalised (`1000m` to `1`), set by
default or changed in admission. So one GET finds the fields that really drifted, and none that only look different.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from components import naming
from components.providers.kubernetes_diff import MISSING, Path, leaving, value_at, with_value
from components.providers.kubernetes_records import applied_fields, recorded_fields
from kubeapi.json_types import Json

_SERVER_FIELDS: tuple[Path, ...] = (
    ("apiVersion",),
    ("kind",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "uid"),
    ("metadata", "resourceVersion"),
    ("metadata", "generateName"),
    ("metadata", "generation"),
    ("metadata", "creationTimestamp"),
)
"""Fields that are never in managedFields: the identity, and fields that only the server writes."""


@dataclass(frozen=True)
class Owner:
    """The owner of an object."""

    ours: bool
    words: str
    """The managers of the object, for an error message."""


@dataclass(frozen=True)
class Drift:
    """A field of the inputs that Herdsman no longer owns: its path in the inputs and its live value, or MISSING."""

    path: Path
    live: Any


def owner_of(live: Json, wanted: Json, field_manager: str) -> Owner:
    """Return whether Herdsman owns a live object that `wanted` describes, and the owner in words.

    Herdsman owns it if its controller is the one that Herdsman would write, or if Herdsman applied it before and it has
    no other controller. A controller of the same kind and name but another uid is the same user object made again. An
    object of another static fleet is never Herdsman's. The Service of a process on a host has its service as an owner
    that is no controller.
    """
    if elsewhere := held_elsewhere(live, wanted):
        return Owner(False, elsewhere)
    held_by, holder = controller_of(live), controller_of(wanted)
    if held_by is not None:
        if holder is not None and held_by.get("uid") == holder.get("uid"):
            return Owner(True, _controller_words(held_by))
        if holder is None or _same_object(held_by, holder) is False:
            return Owner(False, _controller_words(held_by))
    if applied_fields(live, field_manager) is not None:
        return Owner(True, f"field manager `{field_manager}`")
    if held_by is None and holder is not None and _is_of_host(live, holder):
        return Owner(True, f"a host, for {holder.get('kind')} `{holder.get('name')}`")
    return Owner(False, managers_words(live))


def _is_of_host(live: Json, holder: Json) -> bool:
    """Return whether an object leads to a process on a host for the same custom resource."""
    metadata = live.get("metadata") or {}
    owners = (each.get("uid") for each in metadata.get("ownerReferences") or [] if isinstance(each, dict))
    return naming.LABEL_HOST in (metadata.get("labels") or {}) and holder.get("uid") in owners


def held_elsewhere(live: Json, wanted: Json) -> str:
    """Return the holder of an object that a static fleet and a loop, or two fleets, manage; empty otherwise.

    The loop and the fleets apply as one field manager, so managedFields cannot distinguish them. The fleet's mark and
    the controller distinguish them, also after a service was moved from one to the other.
    """
    mark, ours = fleet_of(live), fleet_of(wanted)
    if mark and mark != ours and not (mark == naming.FLEET_TO_COME and ours):
        return (
            "a static fleet that has not created it yet" if mark == naming.FLEET_TO_COME else f"static fleet `{mark}`"
        )
    controller = controller_of(live)
    if ours and controller is not None and controller_of(wanted) is None:
        return _controller_words(controller)
    if ours and not mark and not (live.get("metadata") or {}).get("namespace"):
        # An object without a namespace has no owner, so one of a loop has no controller. The missing mark identifies
        # it.
        return "a loop, or a client that removed the mark of a static fleet"
    return ""


def is_orphaned(live: Json, applied: Json) -> bool:
    """Return whether an object lost the controller with which it was applied: its owner was deleted and it was kept."""
    return controller_of(applied) is not None and controller_of(live) is None


def fleet_of(obj: Json) -> str:
    """Return the mark of the static fleet that manages an object; empty for none."""
    annotations = (obj.get("metadata") or {}).get("annotations")
    return str(annotations.get(naming.ANNOTATION_FLEET, "")) if isinstance(annotations, dict) else ""


def controller_of(obj: Json) -> Json | None:
    """Return the owner reference of an object's controller, or None."""
    for reference in (obj.get("metadata") or {}).get("ownerReferences") or []:
        if isinstance(reference, dict) and reference.get("controller"):
            return reference
    return None


def _same_object(one: Json, other: Json) -> bool:
    def identity(reference: Json) -> tuple[str, Any, Any]:
        group = str(reference.get("apiVersion", "")).rpartition("/")[0]
        return group, reference.get("kind"), reference.get("name")

    return identity(one) == identity(other)


def _controller_words(reference: Json) -> str:
    return f"controller {reference.get('kind')} `{reference.get('name')}`"


def managers_words(live: Json) -> str:
    """Return the field managers of an object in words, those of its spec before those of its status only."""
    entries = (live.get("metadata") or {}).get("managedFields") or []
    names = list(dict.fromkeys(str(e.get("manager") or "unnamed") for e in entries if not e.get("subresource")))
    names = names or list(dict.fromkeys(str(e.get("manager") or "unnamed") for e in entries))
    if not names:
        return "an unknown writer (the object names no field manager)"
    quoted = ", ".join(f"`{name}`" for name in names)
    return f"field manager {quoted}" if len(names) == 1 else f"field managers {quoted}"


def owns(live: Json, field_manager: str, path: tuple[str, ...]) -> bool:
    """Return whether a manager applied the field at a path of object keys, or the whole atomic object around it."""
    fields: Any = applied_fields(live, field_manager)
    if fields is None:
        return False
    for step in path:
        below = fields.get(f"f:{step}")
        if below is None:
            return bool(fields == {}) and step != path[0]
        fields = below
    return True


@dataclass(frozen=True)
class Writer:
    """The owner of a field according to managedFields."""

    manager: str
    operation: str
    """Apply or Update."""
    subresource: str = ""
    time: str = ""
    """RFC 3339: the time of this manager's last change of its fields in the object."""


def writer_of(live: Json, wanted: Json, path: Path, field_manager: str) -> Writer | None:
    """Return the other manager of a field of `wanted`, the most recent of several; None if none is recorded.

    A field that was removed has no owner, so the result for it is None.
    """
    found: list[Writer] = []
    for entry in (live.get("metadata") or {}).get("managedFields") or []:
        manager, operation = str(entry.get("manager") or "unnamed"), str(entry.get("operation", ""))
        if (manager, operation) == (field_manager, "Apply") and not entry.get("subresource"):
            continue
        if holds(entry.get("fieldsV1") or {}, wanted, path):
            subresource, time = str(entry.get("subresource") or ""), str(entry.get("time") or "")
            found.append(Writer(manager, operation, subresource, time))
    return max(found, key=lambda writer: writer.time, default=None)


def holds(fields: Any, wanted: Any, path: Path) -> bool:
    """Return whether a fieldsV1 tree contains the field, or the whole atomic value around it."""
    for number, step in enumerate(path):
        if fields == {}:
            return number > 0
        value = value_at(wanted, (step,))
        if isinstance(step, str):
            fields = fields.get(f"f:{step}")
        else:
            fields = _below_item(fields, value) if value is not MISSING else None
        if fields is None:
            return False
        wanted = value
    return True


def _below_item(fields: Mapping[str, Any], item: Any) -> Any:
    """Return the part of a fieldsV1 tree below one list item, found by its keys or its value; None if there is none."""
    keys, below = keyed_items(fields)
    matched = _match([item], keys).get(0)
    return below[matched] if matched is not None else set_members(fields).get(canonical(item))


def keyed_items(fields: Mapping[str, Any]) -> tuple[list[Json], list[Any]]:
    """Return the items of an associative list: their keys, and the part of the tree below each.

    The text of a key is parsed and never built. The API server writes it as Go does, which escapes `&`, `<`, `>` and
    some line separators, and does not escape other characters beyond ASCII.
    """
    found = [(json.loads(name[2:]), below) for name, below in fields.items() if name.startswith("k:")]
    return [key for key, _ in found], [below for _, below in found]


def set_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the tree below each member of a set, by the member's `canonical` text."""
    return {canonical(json.loads(name[2:])): below for name, below in fields.items() if name.startswith("v:")}


def canonical(value: Any) -> str:
    """Return a text that is equal for equal values. Python itself treats 1 and True as equal."""
    return json.dumps(value, sort_keys=True)


def unowned(wanted: Json, fields: Json) -> list[Path]:
    """Return the fields of `wanted` that a fieldsV1 tree does not contain and that may have drifted.

    Without the live object, they include fields that the server drops, and fields that another client set to the wanted
    value.
    """
    return [found.path for found in _walk(wanted, fields, MISSING, ())]


def drift(wanted: Json, live: Json, field_manager: str, former: str | None = None) -> list[Drift]:
    """Return the fields of `wanted` that Herdsman no longer owns in the live object.

    `former` is the parameter of `recorded_fields`.
    """
    return list(_walk(wanted, recorded_fields(live, field_manager, former), live, ()))


def left_to_others(obj: Json, live: Json, ignored: Iterable[Path], field_manager: str) -> Json:
    """Change an object so that its apply changes none of the ignored fields.

    A field that Herdsman does not own is left out, so that its owner's apply meets no conflict. A field that Herdsman
    owns is applied with its live value, because it would be removed otherwise. Items of lists with names are found by
    name, since other clients may have inserted items before them.
    """
    for path in ignored:
        theirs = path
        if any(isinstance(step, int) for step in path):
            found = _counterpart(obj, live, path)
            if found is None:
                continue  # the item is gone, and is made again as a whole
            theirs = found
        if "*" in path or path[:1] == ("status",) or path[:2] == ("metadata", "managedFields"):
            obj = leaving(obj, live, [path])
            continue
        value = value_at(live, theirs)
        names = tuple(step for step in path if isinstance(step, str))
        if len(names) == len(path) and not owns(live, field_manager, names):
            value = MISSING
        obj = with_value(obj, path, value)
    return obj


def _counterpart(obj: Any, live: Any, path: Path) -> Path | None:
    found: list[str | int] = []
    for step in path:
        at: str | int = step
        mine = value_at(obj, (step,))
        if isinstance(step, int) and isinstance(mine, dict) and "name" in mine and isinstance(live, list):
            named = [n for n, item in enumerate(live) if isinstance(item, dict) and item.get("name") == mine["name"]]
            if not named:
                return None
            at = named[0]
        found.append(at)
        obj, live = mine, value_at(live, (at,))
    return tuple(found)


def _walk(want: Any, owned: Mapping[str, Any] | None, live: Any, path: Path) -> Iterator[Drift]:
    if path in _SERVER_FIELDS:
        return
    if owned is None:
        yield from _compare(want, live, path)
    elif isinstance(want, dict):
        if path and owned == {}:
            return  # an atomic object that Herdsman owns as a whole
        for key, value in want.items():
            below = live.get(key, MISSING) if isinstance(live, dict) else MISSING
            yield from _walk(value, owned.get(f"f:{key}"), below, (*path, key))
    elif isinstance(want, list):
        if owned == {}:
            return  # an atomic list, or an empty one
        yield from _walk_list(want, owned, live, path)


def _walk_list(want: list[Any], owned: Mapping[str, Any], live: Any, path: Path) -> Iterator[Drift]:
    items = live if isinstance(live, list) else []
    keys, below = keyed_items(owned)
    members = set_members(owned)
    names = set(keys[0]) if keys else set()
    matched = _match(want, keys)
    for at, item in enumerate(want):
        if not isinstance(item, dict) or not keys:
            in_set = canonical(item) in members or any(_covers(other, item) for other in items)
            if not in_set:
                yield Drift((*path, at), MISSING)
            continue
        found = matched.get(at)
        if found is None:
            sought = {name: item[name] for name in names if name in item}
            yield from _compare(item, _item(items, sought), (*path, at))
        else:
            yield from _walk(item, below[found], _item(items, keys[found]), (*path, at))


def _match(want: list[Any], keys: list[Json]) -> dict[int, int]:
    """Map the positions of items of an associative list to the positions of their recorded keys.

    A key field that an item omits has its default.
    """
    left = list(range(len(keys)))
    matched: dict[int, int] = {}

    def given(at: int) -> int:
        item = want[at]
        return sum(name in item for name in keys[0]) if keys and isinstance(item, dict) else 0

    # Items with more key fields choose first, so that a `53` does not take the place of `53/UDP`.
    for at in sorted(range(len(want)), key=given, reverse=True):
        item = want[at]
        if not isinstance(item, dict) or not given(at):
            continue
        for number in left:
            if all(item.get(name, value) == value for name, value in keys[number].items()):
                matched[at] = number
                left.remove(number)
                break
    return matched


def _item(items: list[Any], key: Json) -> Any:
    for item in items:
        if isinstance(item, dict) and key and all(item.get(name) == value for name, value in key.items()):
            return item
    return MISSING


def _compare(want: Any, live: Any, path: Path) -> Iterator[Drift]:
    """Compare values without a record of ownership: a field with the wanted live value is no drift."""
    if path in _SERVER_FIELDS:
        return
    if isinstance(want, dict) and isinstance(live, dict):
        for key, value in want.items():
            yield from _compare(value, live.get(key, MISSING), (*path, key))
    elif not _covers(live, want):
        yield Drift(path, live)


def _covers(live: Any, want: Any) -> bool:
    """Return whether `live` contains `want`.

    Absent and empty values are equal, because the API server drops empty ones.
    """
    if live is MISSING or live is None:
        return want is None or want == "" or want == {} or want == []
    if isinstance(want, dict) and isinstance(live, dict):
        return all(_covers(live.get(key, MISSING), value) for key, value in want.items())
    if isinstance(want, list) and isinstance(live, list):
        return len(want) == len(live) and all(_covers(a, b) for a, b in zip(live, want, strict=True))
    return bool(live == want)
