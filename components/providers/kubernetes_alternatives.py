"""Finds fields of a live object that a switch between alternatives leaves behind. Pure.

Called by `components.providers.kubernetes_clearing`. Of some fields an object may have one only: a probe has one
handler, a volume one source. An apply that names another one takes away what Herdsman applied. What stays is a field
that the API server filled in as a whole, or that another manager wrote; the API server then refuses the object, because
it would have both. docs/adr/0041.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from components.providers.kubernetes_diff import MISSING, Path, value_at
from components.providers.kubernetes_ownership import holds, writer_of
from components.providers.kubernetes_records import applied_fields, inherited

Json = dict[str, Any]

_HANDLERS = frozenset({"exec", "httpGet", "tcpSocket", "grpc"})
_EXCLUSIVE: dict[str, frozenset[str]] = {
    "livenessProbe": _HANDLERS,
    "readinessProbe": _HANDLERS,
    "startupProbe": _HANDLERS,
    "preStop": _HANDLERS | {"sleep"},
    "postStart": _HANDLERS | {"sleep"},
    "env[]": frozenset({"value", "valueFrom"}),
    "valueFrom": frozenset({"fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"}),
    "defaultBackend": frozenset({"service", "resource"}),
}
"""Fields of which one excludes the others, by the field around them; `[]` stands for the items of a list."""
_OF_KIND: dict[str, frozenset[str]] = {"PodDisruptionBudget": frozenset({"minAvailable", "maxUnavailable"})}
"""The same directly in the spec of a kind."""
_BY_TYPE: dict[str, tuple[str, str]] = {
    "strategy": ("RollingUpdate", "rollingUpdate"),
    "updateStrategy": ("RollingUpdate", "rollingUpdate"),
    "seccompProfile": ("Localhost", "localhostProfile"),
    "appArmorProfile": ("Localhost", "localhostProfile"),
}
"""Fields that go with one value of `type` beside them."""
_VOLUME = "volumes[]"
_ACCOUNT, _OLD_ACCOUNT = "serviceAccountName", "serviceAccount"
_NAMES: tuple[Path, ...] = (("metadata",), ("status",))


@dataclass(frozen=True)
class Switch:
    """A place of a live object where the wanted one has another alternative."""

    at: Path
    """The object around the alternatives, in the live object."""
    wanted_at: Path
    keys: frozenset[str]
    """All fields there that belong to the choice."""
    losers: tuple[str, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the losing fields are in the live object."""
        return tuple((*self.at, key) for key in self.losers)


def switches(wanted: Json, live: Json) -> tuple[Switch, ...]:
    """List the places where `wanted` has another alternative than the live object."""
    return tuple(_walk(wanted, live, (), (), str(wanted.get("kind", ""))))


def drops_account(before: Json, wanted: Json) -> bool:
    """Tell whether pods that had a service account of their own in the inputs before have none in `wanted`."""
    return any(True for _ in _accounts(wanted, before, (), ()))


def left_accounts(wanted: Json, live: Json, manager: str) -> tuple[Switch, ...]:
    """List the pods whose service account would stay although Herdsman, which applied it, drops it.

    The API server keeps the account under a second, older name as well, and reads it where the first one is gone.
    """
    found = _accounts(wanted, live, (), ())
    fields = applied_fields(live, manager) or {}
    return tuple(each for each in found if _OLD_ACCOUNT in each.losers and holds(fields, live, (*each.at, _ACCOUNT)))


def _walk(wanted: Any, live: Any, at: Path, wanted_at: Path, context: str) -> Iterator[Switch]:
    if isinstance(wanted, dict) and isinstance(live, dict):
        if (found := _switched(wanted, live, at, wanted_at, context)) is not None:
            yield found
        for key, below in wanted.items():
            if (key,) in _NAMES or key not in live:
                continue
            inner = f"{context}.spec" if not at and key == "spec" else key
            yield from _walk(below, live[key], (*at, key), (*wanted_at, key), inner)
    elif isinstance(wanted, list) and isinstance(live, list):
        for mine, theirs in _paired(wanted, live):
            yield from _walk(wanted[mine], live[theirs], (*at, theirs), (*wanted_at, mine), f"{context}[]")


def _paired(wanted: list[Any], live: list[Any]) -> Iterator[tuple[int, int]]:
    """Pair the items of lists by name, each by its position. Other lists are replaced as a whole."""
    names = {each["name"]: at for at, each in enumerate(live) if isinstance(each, dict) and "name" in each}
    for at, each in enumerate(wanted):
        if isinstance(each, dict) and each.get("name") in names:
            yield at, names[each["name"]]


def _switched(wanted: Json, live: Json, at: Path, wanted_at: Path, context: str) -> Switch | None:
    if context in _BY_TYPE:
        goes_with, field = _BY_TYPE[context]
        if wanted.get("type", goes_with) == goes_with or field not in live or field in wanted:
            return None
        return Switch(at, wanted_at, frozenset({"type", field}), (field,))
    if context == _VOLUME:
        keys = frozenset({*wanted, *live} - {"name"})
    else:
        keys = _EXCLUSIVE.get(context, frozenset()) or _OF_KIND.get(context.removesuffix(".spec"), frozenset())
    losers = tuple(key for key in live if key in keys and key not in wanted)
    return Switch(at, wanted_at, keys, losers) if losers and any(key in keys for key in wanted) else None


def _accounts(wanted: Any, before: Any, at: Path, wanted_at: Path) -> Iterator[Switch]:
    if isinstance(wanted, dict) and isinstance(before, dict):
        given = [key for key in (_ACCOUNT, _OLD_ACCOUNT) if before.get(key)]
        if given and "containers" in wanted and _ACCOUNT not in wanted and _OLD_ACCOUNT not in wanted:
            yield Switch(at, wanted_at, frozenset({_ACCOUNT, _OLD_ACCOUNT}), tuple(given))
        for key, below in wanted.items():
            if (key,) not in _NAMES and key in before:
                yield from _accounts(below, before[key], (*at, key), (*wanted_at, key))


@dataclass(frozen=True)
class Held:
    """A losing field that another manager wrote."""

    path: Path
    manager: str


def as_ours(live: Json, manager: str) -> Json:
    """Copy a live object with the record of a controller whose place Herdsman takes as Herdsman's own."""
    entries = inherited(live, manager)
    return live if entries is None else {**live, "metadata": {**live["metadata"], "managedFields": entries}}


def held(found: Iterable[Switch], live: Json, manager: str) -> tuple[Held, ...]:
    """List the losing fields that other managers wrote."""
    ours = as_ours(live, manager)
    writers = [(path, writer_of(ours, live, path, manager)) for each in found for path in each.paths]
    return tuple(Held(path, writer.manager) for path, writer in writers if writer is not None)


def unclaimed(found: Iterable[Switch], live: Json, manager: str) -> tuple[Switch, ...]:
    """List the switches whose losing fields the next apply would leave: not all of them are Herdsman's alone."""
    fields = applied_fields(live, manager) or {}
    return tuple(
        each
        for each in found
        if any(not holds(fields, live, path) or writer_of(live, live, path, manager) for path in each.paths)
    )


def claimed(found: Iterable[Switch], live: Json, manager: str) -> list[Json]:
    """Give the managedFields in which the losing fields are Herdsman's alone, so that its next apply takes them away.

    An object that Herdsman never applied gets a record of such an apply.
    """
    entries: list[Json] = [dict(entry) for entry in as_ours(live, manager)["metadata"].get("managedFields") or []]
    mine: Json = dict(applied_fields(as_ours(live, manager), manager) or {})
    for path in [path for each in found for path in each.paths]:
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


def _is_ours(entry: Json, manager: str) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == (manager, "Apply", "")


def _steps(path: Path, live: Json) -> list[str]:
    """Write a path as the keys of a fieldsV1 tree."""
    steps, value = [], live
    for step in path:
        value = value_at(value, (step,))
        steps.append(f"f:{step}" if isinstance(step, str) else f"k:{json.dumps({'name': value['name']})}")
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
    return {**fields, key: _added(fields.get(key, {}), steps[1:], value)}


def _without(fields: Json, steps: list[str]) -> Json:
    """Copy a fieldsV1 tree without what it has at `steps`, and without the branches that this leaves empty."""
    key = next((each for each in fields if _same_key(each, steps[0])), None)
    if key is None:
        return fields
    below = _without(fields[key], steps[1:]) if len(steps) > 1 else {}
    if below or (len(steps) > 1 and not fields[key]):
        return {**fields, key: below}
    return {name: each for name, each in fields.items() if name != key}


def as_before(wanted: Json, found: Iterable[Switch], live: Json) -> Json:
    """Copy `wanted` with the alternatives that the live object has."""
    for each in found:
        wanted = _chosen(wanted, each.wanted_at, value_at(live, each.at), each.keys)
    return wanted


def switched(after: Json, found: Iterable[Switch], wanted: Json, live: Json) -> Json:
    """Copy `after`, which has the alternatives of `live`, with those of `wanted`."""
    for each in found:
        after = _chosen(after, _moved(each.at, live, after), value_at(wanted, each.wanted_at), each.keys)
    return after


def _moved(path: Path, live: Json, after: Json) -> Path:
    """Find the place in another version of the object, in which lists may have another order."""
    found: list[str | int] = []
    before: Any = live
    there: Any = after
    for step in path:
        before = value_at(before, (step,))
        to: str | int = step
        if isinstance(step, int):
            to = next((at for at, each in enumerate(there) if each.get("name") == before["name"]), step)
        found.append(to)
        there = value_at(there, (to,))
    return tuple(found)


def _chosen(root: Any, at: Path, source: Any, keys: frozenset[str]) -> Any:
    if at:
        if value_at(root, at[:1]) is MISSING:
            return root
        below = _chosen(root[at[0]], at[1:], source, keys)
        if isinstance(root, list):
            return [below if number == at[0] else each for number, each in enumerate(root)]
        return {**root, at[0]: below}
    if not isinstance(root, dict) or not isinstance(source, dict):
        return root
    kept = {key: each for key, each in root.items() if key not in keys}
    return {**kept, **{key: each for key, each in source.items() if key in keys}}
