"""Finds the parts of a live object that exclude a part of the wanted one: alternatives, and colliding items. Pure.

Called by `components.providers.kubernetes_clearing`. docs/adr/0041.

Of some fields an object may have only one: a probe has one handler, a volume one source. An apply with another
alternative removes the one that Herdsman applied. It does not remove a field that the API server filled in as a whole,
or that another manager wrote. The API server then refuses the object, because it would have both.

Server-side apply identifies an item of a list by its key fields: a port by its number and protocol. A person who edits
the number makes another item with the same name. Herdsman's apply adds the wanted item, and the API server refuses two
ports of one name. The edited item is drift, so it is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from components.providers.kubernetes_diff import MISSING, Path, value_at, with_value
from components.providers.kubernetes_ownership import canonical, holds
from components.providers.kubernetes_records import applied_fields
from kubeapi.json_types import Json

UNPAIRED: tuple[Path, ...] = (("metadata",), ("status",))
"""Fields that are not compared."""
_PORT_KEYS = ("port", "containerPort")
PROTOCOL, TCP = "protocol", "TCP"


@dataclass(frozen=True)
class Pair:
    """An object within the wanted one, and the object at the same place of the live one."""

    wanted: Json
    live: Json
    at: Path
    """The path in the live object."""
    wanted_at: Path
    context: str
    """The field around it: `livenessProbe`, `containers[]` for an item of that list, `Service.spec` for a spec."""


def pairs(wanted: Json, live: Json) -> Iterator[Pair]:
    """Yield the corresponding objects in `wanted` and in the live object. Items of lists correspond by name."""
    return _walk(wanted, live, (), (), str(wanted.get("kind", "")))


def key_of(item: Any) -> Json:
    """Return the fields by which server-side apply identifies an item of a list that Herdsman makes; empty for none."""
    if not isinstance(item, dict):
        return {}
    for key in _PORT_KEYS:
        if key in item:
            return {key: item[key], PROTOCOL: item.get(PROTOCOL, TCP)}
    return {"name": item["name"]} if "name" in item else {}


def moved(path: Path, live: Json, after: Json) -> Path:
    """Return the path of the same place in another version of the object, whose lists may have another order."""
    found: list[str | int] = []
    before: Any = live
    there: Any = after
    for step in path:
        before = value_at(before, (step,))
        to: str | int = step
        if isinstance(step, int):
            to = next((at for at, each in enumerate(there) if key_of(each) == key_of(before)), step)
        found.append(to)
        there = value_at(there, (to,))
    return tuple(found)


def _walk(wanted: Any, live: Any, at: Path, wanted_at: Path, context: str) -> Iterator[Pair]:
    if isinstance(wanted, dict) and isinstance(live, dict):
        yield Pair(wanted, live, at, wanted_at, context)
        for key, below in wanted.items():
            if (key,) in UNPAIRED or key not in live:
                continue
            inner = f"{context}.spec" if not at and key == "spec" else key
            yield from _walk(below, live[key], (*at, key), (*wanted_at, key), inner)
    elif isinstance(wanted, list) and isinstance(live, list):
        for mine, theirs in _paired(wanted, live):
            yield from _walk(wanted[mine], live[theirs], (*at, theirs), (*wanted_at, mine), f"{context}[]")


def _paired(wanted: list[Any], live: list[Any]) -> Iterator[tuple[int, int]]:
    """Yield the positions of items of one name in both lists. An apply replaces lists without names as a whole."""
    names = {each["name"]: at for at, each in enumerate(live) if isinstance(each, dict) and "name" in each}
    for at, each in enumerate(wanted):
        if isinstance(each, dict) and each.get("name") in names:
            yield at, names[each["name"]]


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
"""Fields of which only one is allowed, by the field around them; `[]` means the items of a list."""
_OF_KIND: dict[str, frozenset[str]] = {"PodDisruptionBudget": frozenset({"minAvailable", "maxUnavailable"})}
"""The same, by kind, for fields directly in the spec."""
_BY_TYPE: dict[str, tuple[str, str]] = {
    "strategy": ("RollingUpdate", "rollingUpdate"),
    "updateStrategy": ("RollingUpdate", "rollingUpdate"),
    "seccompProfile": ("Localhost", "localhostProfile"),
    "appArmorProfile": ("Localhost", "localhostProfile"),
}
"""Fields that are allowed only with one value of the `type` beside them."""
_VOLUME = "volumes[]"
_ACCOUNT, _OLD_ACCOUNT = "serviceAccountName", "serviceAccount"


@dataclass(frozen=True)
class Switch:
    """A place of a live object at which the wanted one has another alternative."""

    at: Path
    """The object around the alternatives, in the live object."""
    wanted_at: Path
    keys: frozenset[str]
    """All alternatives at this place."""
    losers: tuple[Path, ...]
    """The losing fields, in the live object."""


def switches(wanted: Json, live: Json) -> tuple[Switch, ...]:
    """Return the places where `wanted` has another alternative than the live object."""
    return tuple(found for pair in pairs(wanted, live) if (found := _switched(pair)) is not None)


def drops_account(before: Json, wanted: Json) -> bool:
    """Return whether pods in `wanted` have no service account of their own, but had one in the inputs before."""
    return any(True for _ in _accounts(wanted, before, (), ()))


def left_accounts(wanted: Json, live: Json, manager: str) -> tuple[Switch, ...]:
    """Return the pods whose service account would stay although Herdsman, which applied it, drops it.

    The API server copies the account to a second, older field, and reads that one if the first is gone.
    """
    found = _accounts(wanted, live, (), ())
    fields = applied_fields(live, manager) or {}
    return tuple(
        each for each in found if (*each.at, _OLD_ACCOUNT) in each.losers and holds(fields, live, (*each.at, _ACCOUNT))
    )


def _switched(pair: Pair) -> Switch | None:
    wanted, live, at, wanted_at, context = pair.wanted, pair.live, pair.at, pair.wanted_at, pair.context
    if context in _BY_TYPE:
        goes_with, field = _BY_TYPE[context]
        if wanted.get("type", goes_with) == goes_with or field not in live or field in wanted:
            return None
        return Switch(at, wanted_at, frozenset({"type", field}), ((*at, field),))
    if context == _VOLUME:
        keys = frozenset({*wanted, *live} - {"name"})
    else:
        keys = _EXCLUSIVE.get(context, frozenset()) or _OF_KIND.get(context.removesuffix(".spec"), frozenset())
    losers = tuple((*at, key) for key in live if key in keys and key not in wanted)
    return Switch(at, wanted_at, keys, losers) if losers and any(key in keys for key in wanted) else None


def _accounts(wanted: Any, before: Any, at: Path, wanted_at: Path) -> Iterator[Switch]:
    if isinstance(wanted, dict) and isinstance(before, dict):
        given = [key for key in (_ACCOUNT, _OLD_ACCOUNT) if before.get(key)]
        if given and "containers" in wanted and _ACCOUNT not in wanted and _OLD_ACCOUNT not in wanted:
            yield Switch(at, wanted_at, frozenset({_ACCOUNT, _OLD_ACCOUNT}), tuple((*at, key) for key in given))
        for key, below in wanted.items():
            if (key,) not in UNPAIRED and key in before:
                yield from _accounts(below, before[key], (*at, key), (*wanted_at, key))


def as_before(wanted: Json, found: Iterable[Switch], live: Json) -> Json:
    """Copy `wanted` with the alternatives of the live object."""
    for each in found:
        wanted = _chosen(wanted, each.wanted_at, value_at(live, each.at), each.keys)
    return wanted


def switched(after: Json, found: Iterable[Switch], wanted: Json, live: Json) -> Json:
    """Copy `after`, which has the alternatives of `live`, with those of `wanted`."""
    for each in found:
        after = _chosen(after, moved(each.at, live, after), value_at(wanted, each.wanted_at), each.keys)
    return after


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


_SERVICE = "Service.spec"
_CONTAINER_LISTS = ("containers", "initContainers")


@dataclass(frozen=True)
class Collision:
    """Items of a live list that must be removed, because wanted items exclude them."""

    losers: tuple[Path, ...]
    """Paths in the live object."""
    list_at: Path
    """The list in the live object to which the wanted items belong. It may not exist there."""
    items: tuple[Path, ...]
    """The paths of the wanted items in the wanted object."""


def collisions(wanted: Json, live: Json) -> tuple[Collision, ...]:
    """Return the collisions of a wanted object with the live one."""
    return tuple(found for pair in pairs(wanted, live) for found in (*_of_ports(pair), *_of_containers(pair)))


def _of_ports(pair: Pair) -> Iterator[Collision]:
    is_service = pair.context == _SERVICE
    if not is_service and pair.context not in {f"{name}[]" for name in _CONTAINER_LISTS}:
        return
    wanted, live = _items(pair.wanted, "ports"), _items(pair.live, "ports")
    by_key = {_text(port): port for port in live}
    # A field that the wanted port omits keeps its live value.
    merged = {_text(port): {**by_key.get(_text(port), {}), **port} for port in wanted}
    losers = tuple(
        (*pair.at, "ports", at)
        for at, port in enumerate(live)
        if _text(port) not in merged and any(_exclude(port, each, is_service=is_service) for each in merged.values())
    )
    if losers:
        items = tuple((*pair.wanted_at, "ports", at) for at in range(len(wanted)))
        yield Collision(losers, (*pair.at, "ports"), items)


def _items(of: Json, name: str) -> list[Json]:
    """Return the items of an associative list; none if the value that a person wrote is no such list."""
    found = of.get(name)
    return found if isinstance(found, list) and all(key_of(each) for each in found) else []


def _text(item: Json) -> str:
    return canonical(key_of(item))


def _exclude(one: Json, other: Json, *, is_service: bool) -> bool:
    """Return whether a list may not contain both ports. In a Service with several ports each needs a name."""
    names = (one.get("name", ""), other.get("name", ""))
    if names[0] == names[1] != "" or (is_service and "" in names):
        return True
    fields = ("nodePort",) if is_service else ("hostPort", "hostIP")
    of_node = [[port.get(PROTOCOL, TCP), *(port.get(field) for field in fields)] for port in (one, other)]
    return bool(one.get(fields[0])) and of_node[0] == of_node[1]


def _of_containers(pair: Pair) -> Iterator[Collision]:
    """Find containers that a person moved to the pod's other list. A name may occur in one list only."""
    if "containers" not in pair.wanted:
        return
    for mine, other in (_CONTAINER_LISTS, _CONTAINER_LISTS[::-1]):
        stay = {_text(each) for each in _items(pair.wanted, other)}
        places = {_text(each): at for at, each in enumerate(_items(pair.live, other)) if _text(each) not in stay}
        for at, each in enumerate(_items(pair.wanted, mine)):
            if (place := places.get(_text(each))) is not None:
                loser, item = (*pair.at, other, place), (*pair.wanted_at, mine, at)
                yield Collision((loser,), (*pair.at, mine), (item,))


def left_out(wanted: Json, found: Iterable[Collision]) -> Json:
    """Copy `wanted` without the items that collide."""
    # From the back, so that the other positions stay valid.
    for path in sorted({path for each in found for path in each.items}, key=_last, reverse=True):
        wanted = with_value(wanted, path, MISSING)
    return wanted


def put_in(after: Json, found: Iterable[Collision], wanted: Json, live: Json) -> Json:
    """Copy `after` with the colliding items of `wanted` and without the losers.

    `after` is the object to which everything except these items was applied.
    """
    found = tuple(found)
    for path in (path for each in found for path in each.losers):
        at, gone = moved(path[:-1], live, after), _text(value_at(live, path))
        after = with_value(after, at, [each for each in value_at(after, at) if _text(each) != gone])
    for each in found:
        at = moved(each.list_at, live, after)
        items: list[Json] = [*(after_items if isinstance(after_items := value_at(after, at), list) else [])]
        for path in each.items:
            item = value_at(wanted, path)
            place = next((n for n, known in enumerate(items) if _text(known) == _text(item)), None)
            if place is None:
                items.insert(_before(items, value_at(wanted, path[:-1])[_last(path) + 1 :]), item)
            else:
                items[place] = {**items[place], **item}
        after = with_value(after, at, items)
    return after


def _before(items: list[Json], later: list[Json]) -> int:
    """Return the index at which the API server inserts a new item: before the wanted items after it, else last."""
    keys = {_text(each) for each in later}
    return next((at for at, each in enumerate(items) if _text(each) in keys), len(items))


def _last(path: Path) -> int:
    step = path[-1]
    assert isinstance(step, int)
    return step
