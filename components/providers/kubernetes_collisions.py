"""Finds list items of a live object that others made and that exclude an item of the wanted object. Pure.

Called by `components.providers.kubernetes_clearing`. Server-side apply knows an item of a list by its key fields: a
port by its number and protocol. A person who edits the number makes another item with the same name. Herdsman's apply
adds the wanted item, and the API server refuses two ports of one name. The edited item is drift, so it is removed.
docs/adr/0041.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from components.providers.kubernetes_diff import MISSING, Path, value_at, with_value
from components.providers.kubernetes_ownership import canonical
from components.providers.kubernetes_pairs import PROTOCOL, TCP, Pair, key_of, moved, pairs
from kubeapi.json_types import Json

_SERVICE = "Service.spec"
_CONTAINER_LISTS = ("containers", "initContainers")


@dataclass(frozen=True)
class Collision:
    """Items of a live list that must go, since wanted items exclude them."""

    losers: tuple[Path, ...]
    """In the live object."""
    list_at: Path
    """The list in the live object where the wanted items belong; it may not exist there."""
    items: tuple[Path, ...]
    """The wanted items, in the wanted object."""


def collisions(wanted: Json, live: Json) -> tuple[Collision, ...]:
    """List the collisions of a wanted object with the live one."""
    return tuple(found for pair in pairs(wanted, live) for found in (*_of_ports(pair), *_of_containers(pair)))


def _of_ports(pair: Pair) -> Iterator[Collision]:
    is_service = pair.context == _SERVICE
    if not is_service and pair.context not in {f"{name}[]" for name in _CONTAINER_LISTS}:
        return
    wanted, live = _items(pair.wanted, "ports"), _items(pair.live, "ports")
    by_key = {_text(port): port for port in live}
    # A field that the wanted port leaves out keeps its live value.
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
    """Give the items of an associative list; none where what a person wrote is no such list."""
    found = of.get(name)
    return found if isinstance(found, list) and all(key_of(each) for each in found) else []


def _text(item: Json) -> str:
    return canonical(key_of(item))


def _exclude(one: Json, other: Json, *, is_service: bool) -> bool:
    """Tell whether a list may not have both ports. A Service of several ports has a name for each."""
    names = (one.get("name", ""), other.get("name", ""))
    if names[0] == names[1] != "" or (is_service and "" in names):
        return True
    fields = ("nodePort",) if is_service else ("hostPort", "hostIP")
    of_node = [[port.get(PROTOCOL, TCP), *(port.get(field) for field in fields)] for port in (one, other)]
    return bool(one.get(fields[0])) and of_node[0] == of_node[1]


def _of_containers(pair: Pair) -> Iterator[Collision]:
    """Find containers that somebody moved to the other list of the pod. A name may occur in one list only."""
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
    # From the back, so that no item moves the others.
    for path in sorted({path for each in found for path in each.items}, key=_last, reverse=True):
        wanted = with_value(wanted, path, MISSING)
    return wanted


def put_in(after: Json, found: Iterable[Collision], wanted: Json, live: Json) -> Json:
    """Copy `after`, to which all but the colliding items of `wanted` were applied, with those items and no loser."""
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
