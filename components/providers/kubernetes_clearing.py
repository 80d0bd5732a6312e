"""Applies an object over a live one, and removes live fields that the wanted object excludes.

Called by `components.providers.kubernetes_calls` and by previews. Calls `kubeapi.client` and the pure module
`kubernetes_conflicts`, which finds alternatives and colliding items of lists.

Server-side apply removes only fields that its manager applied before, and a null in its body removes nothing. So
Herdsman first becomes an owner of the losing field or item, which changes no other field, and then applies the object
without it. A dry run cannot do that in one request. It tries the object with the live alternative and without
the colliding items, and then the switch alone. docs/adr/0041.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from components.providers import kubernetes_objects as objects
from components.providers.kubernetes_conflicts import (
    Collision,
    Switch,
    as_before,
    collisions,
    key_of,
    left_accounts,
    left_out,
    put_in,
    switched,
    switches,
)
from components.providers.kubernetes_diff import Path, path_text, value_at
from components.providers.kubernetes_errors import Code, Refused, about_uid
from components.providers.kubernetes_foreign import may_adopt
from components.providers.kubernetes_objects import Identity
from components.providers.kubernetes_ownership import holds, writer_of
from components.providers.kubernetes_records import applied_fields, inherited
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import ApiError, Conflict, Invalid, ServerError
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

_MAX_ROUNDS = 5
_KEPT = ("apiVersion", "kind", "metadata", "status")
_TWICE_ON_NODES = "duplicate nodePort"
"""Part of the API server's message for a Service with one node port for two ports. The status is 500 instead of 422."""
_METADATA = ("labels", "annotations", "ownerReferences", "finalizers")


def apply_over(
    client: KubeClient,
    kind: Kind,
    obj: Json,
    send: Callable[[Json], Json],
    *,
    manager: str,
    dry_run: bool,
    live: Json | None = None,
) -> Json:
    """Apply `obj` with `send` over the live object, in one request unless live fields exclude wanted ones.

    `send` applies an object by force, and in a dry run if `dry_run` is true. Returns the object as it is or would be.
    Raises Refused if another manager wrote a field that would have to go, and any ApiError.
    """
    if live is not None and (accounts := left_accounts(obj, live, manager)):
        if dry_run:
            return _tried(client, kind, obj, send, accounts, live, manager)
        _claim_accounts(client, kind, obj, live, manager)
    try:
        return send(obj)
    except (Invalid, ServerError) as error:
        if about_uid(error) or (isinstance(error, ServerError) and _TWICE_ON_NODES not in error.message):
            raise
        refused: ApiError = error
    identity = Identity.of(obj)
    for _ in range(_MAX_ROUNDS):
        live = client.get(kind, identity.namespace, identity.name)
        found, collided = switches(obj, live), collisions(obj, live)
        if live["metadata"].get("uid") != obj["metadata"].get("uid", live["metadata"].get("uid")):
            raise refused
        if not may_adopt(live, obj) and (theirs := held(_paths(found), live, manager)):
            raise Refused(Code.FAILED_PRECONDITION, _words(obj, identity, theirs))
        found = tuple(each for each in found if not is_claimed(each.losers, live, manager))
        if not found and not collided:
            raise refused
        if dry_run:
            return _tried(client, kind, obj, send, found, live, manager, collided)
        try:
            _claim(client, kind, _paths((*found, *collided)), live, manager)
        except Conflict:
            continue  # another client changed the object after it was read
        return send(obj)
    raise refused


def _claim_accounts(client: KubeClient, kind: Kind, obj: Json, live: Json, manager: str) -> None:
    for rounds in range(_MAX_ROUNDS):
        if not (accounts := left_accounts(obj, live, manager)):
            return
        try:
            _claim(client, kind, _paths(accounts), live, manager)
        except Conflict:
            # Another client, such as a controller that writes the status, changed the object after it was read.
            if rounds == _MAX_ROUNDS - 1:
                raise
            live = client.get(kind, live["metadata"].get("namespace"), live["metadata"]["name"])
        else:
            return


def _paths(found: Iterable[Switch | Collision]) -> list[Path]:
    return [path for each in found for path in each.losers]


def _claim(client: KubeClient, kind: Kind, paths: Iterable[Path], live: Json, manager: str) -> None:
    metadata = live["metadata"]
    body = [
        {"op": "replace", "path": "/metadata/managedFields", "value": claimed(paths, live, manager)},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]
    client.patch(kind, metadata.get("namespace"), metadata["name"], body, content_type=JSON_PATCH)


def _tried(
    client: KubeClient,
    kind: Kind,
    obj: Json,
    send: Callable[[Json], Json],
    found: Iterable[Switch],
    live: Json,
    manager: str,
    collided: Iterable[Collision] = (),
) -> Json:
    found, collided = tuple(found), tuple(collided)
    after = send(left_out(as_before(obj, found, live), collided))
    wanted = put_in(switched(after, found, obj, live), collided, obj, live)
    body = [_set(wanted, key, f"/{key}") for key in sorted({*live, *wanted} - {*_KEPT})]
    of_live, of_wanted = live["metadata"], wanted["metadata"]
    body += [_set(of_wanted, key, f"/metadata/{key}") for key in _METADATA if key in {*of_live, *of_wanted}]
    metadata = live["metadata"]
    tried = client.patch(
        kind,
        metadata.get("namespace"),
        metadata["name"],
        body,
        content_type=JSON_PATCH,
        field_manager=manager,
        dry_run=True,
    )
    return objects.with_metadata(tried, managedFields=after["metadata"].get("managedFields", []))


def _set(wanted: Json, key: str, path: str) -> Json:
    return {"op": "add", "path": path, "value": wanted[key]} if key in wanted else {"op": "remove", "path": path}


def _words(obj: Json, identity: Identity, theirs: Iterable[Held]) -> str:
    what = f"{obj['kind']} `{identity.id}`"
    lines = [f"could not update {what}: fields of another manager conflict with the wanted fields"]
    lines += [f"  - {path_text(each.path)}: conflict with field manager `{each.manager}`" for each in theirs]
    lines.append(
        "The object was not changed. Remove the fields named above from it, or from the configuration that this "
        "manager applies."
    )
    return "\n".join(lines)


@dataclass(frozen=True)
class Held:
    """A losing field that another manager wrote."""

    path: Path
    manager: str


def held(paths: Iterable[Path], live: Json, manager: str) -> tuple[Held, ...]:
    """Return the losing fields that other managers wrote."""
    ours = _as_ours(live, manager)
    writers = [(path, writer_of(ours, live, path, manager)) for path in paths]
    return tuple(Held(path, writer.manager) for path, writer in writers if writer is not None)


def is_claimed(paths: Iterable[Path], live: Json, manager: str) -> bool:
    """Return whether Herdsman is the only owner of all these fields, so that its next apply removes them."""
    fields = applied_fields(live, manager) or {}
    return all(holds(fields, live, path) and not writer_of(live, live, path, manager) for path in paths)


def claimed(paths: Iterable[Path], live: Json, manager: str) -> list[Json]:
    """Return managedFields with Herdsman as only owner of the losing fields, so that its next apply removes them.

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
    """Copy a live object with the record of an inherited controller as a record of Herdsman."""
    entries = inherited(live, manager)
    return live if entries is None else {**live, "metadata": {**live["metadata"], "managedFields": entries}}


def _is_ours(entry: Json, manager: str) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == (manager, "Apply", "")


def _steps(path: Path, live: Json) -> list[str]:
    """Return a path as the keys of a fieldsV1 tree."""
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
    """Copy a fieldsV1 tree with all fields of `value` added at `steps`."""
    if not steps:
        below = value if isinstance(value, dict) else {}
        return {f"f:{key}": _added({}, [], each) for key, each in below.items()}
    key = next((each for each in fields if _same_key(each, steps[0])), steps[0])
    below = _added(fields.get(key, {}), steps[1:], value)
    # An item is removed as a whole only if the item itself is owned, and not only its fields.
    is_item = len(steps) == 1 and key.startswith("k:")
    return {**fields, key: {".": {}, **below} if is_item else below}


def _without(fields: Json, steps: list[str]) -> Json:
    """Copy a fieldsV1 tree without the part at `steps`, and without branches that become empty."""
    key = next((each for each in fields if _same_key(each, steps[0])), None)
    if key is None:
        return fields
    below = _without(fields[key], steps[1:]) if len(steps) > 1 else {}
    if below or (len(steps) > 1 and not fields[key]):
        return {**fields, key: below}
    return {name: each for name, each in fields.items() if name != key}
