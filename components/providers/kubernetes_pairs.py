"""Walks through a wanted object and the live one side by side. Pure.

Called by `components.providers.kubernetes_alternatives` and `kubernetes_collisions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from components.providers.kubernetes_diff import Path, value_at
from kubeapi.json_types import Json

UNPAIRED: tuple[Path, ...] = (("metadata",), ("status",))
"""Fields that are not looked at."""
_PORT_KEYS = ("port", "containerPort")
PROTOCOL, TCP = "protocol", "TCP"


@dataclass(frozen=True)
class Pair:
    """An object within the wanted one, and the object at the same place of the live one."""

    wanted: Json
    live: Json
    at: Path
    """In the live object."""
    wanted_at: Path
    context: str
    """The field around it: `livenessProbe`, `containers[]` for an item of that list, `Service.spec` for a spec."""


def pairs(wanted: Json, live: Json) -> Iterator[Pair]:
    """Walk through `wanted` and the live object side by side. Items of lists are paired by their names."""
    return _walk(wanted, live, (), (), str(wanted.get("kind", "")))


def key_of(item: Any) -> Json:
    """Give the fields by which server-side apply knows an item of a list that Herdsman makes; empty for none."""
    if not isinstance(item, dict):
        return {}
    for key in _PORT_KEYS:
        if key in item:
            return {key: item[key], PROTOCOL: item.get(PROTOCOL, TCP)}
    return {"name": item["name"]} if "name" in item else {}


def moved(path: Path, live: Json, after: Json) -> Path:
    """Find the place in another version of the object, in which lists may have another order."""
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
    """Pair the items of lists by name, each by its position. Other lists are replaced as a whole."""
    names = {each["name"]: at for at, each in enumerate(live) if isinstance(each, dict) and "name" in each}
    for at, each in enumerate(wanted):
        if isinstance(each, dict) and each.get("name") in names:
            yield at, names[each["name"]]
