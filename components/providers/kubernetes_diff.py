"""Compares two versions of an object by path, in the notation of Pulumi's property paths. Pure.

Called by `components.providers.kubernetes` for the detailed diff, and for the paths of `ignoreChanges`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from components.providers.properties import UNKNOWN

Path = tuple[str | int, ...]
"""Keys and list positions from the root of an object."""


class Kind(Enum):
    """The kind of change at a path."""

    ADD = "add"
    DELETE = "delete"
    UPDATE = "update"


@dataclass(frozen=True)
class Change:
    """One path at which two versions differ."""

    path: Path
    kind: Kind
    replaces: bool = False
    """Whether the change needs a new object."""
    in_inputs: bool = True
    """False if the inputs are the same and the live object differs (drift)."""


class Missing(Enum):
    """The type of the marker for an absent value; None is a value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")
_STEP = re.compile(
    r"""\.?(?:\[(?P<index>\d+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|(?P<star>\*|\[\*\])|(?P<key>[^.\[\]]+))"""
)


def changes(old: Any, new: Any, path: Path = ()) -> list[Change]:
    """Return the deepest paths at which `new` differs from `old`, lists by position, in the order of `new`."""
    return list(_walk(old, new, path))


def _walk(old: Any, new: Any, path: Path) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in new.items():
            if key in old:
                # Most values are texts that did not change. They need neither a path nor a generator.
                if not (isinstance(value, str) and value == old[key]):
                    yield from _walk(old[key], value, (*path, key))
            else:
                yield Change((*path, key), Kind.ADD)
        for key in old:
            if key not in new:
                yield Change((*path, key), Kind.DELETE)
    elif isinstance(old, list) and isinstance(new, list):
        for at, value in enumerate(new):
            if at < len(old):
                yield from _walk(old[at], value, (*path, at))
            else:
                yield Change((*path, at), Kind.ADD)
        for at in range(len(new), len(old)):
            yield Change((*path, at), Kind.DELETE)
    elif new is UNKNOWN or not _same(old, new):
        yield Change(path, Kind.UPDATE)


def _same(old: Any, new: Any) -> bool:
    # In Python True == 1, but not in JSON.
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def path_text(path: Path) -> str:
    """Return a path as Pulumi writes it: `spec.ports[0].name`, `metadata.labels["app.kubernetes.io/name"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.match(step):
            text += f".{step}" if text else step
        else:
            quoted = step.replace("\\", "\\\\").replace('"', '\\"')
            text += f'["{quoted}"]'
    return text


def parse_path(text: str) -> Path:
    """Parse a Pulumi property path or an API field path. `*` matches any step; unreadable parts are skipped."""
    steps: list[str | int] = []
    for match in _STEP.finditer(text):
        if match["index"] is not None:
            steps.append(int(match["index"]))
        elif match["quoted"] is not None:
            steps.append(re.sub(r"\\(.)", r"\1", match["quoted"][1:-1]))
        else:
            steps.append("*" if match["star"] else match["key"])
    return tuple(steps)


def covers(pattern: Path, path: Path) -> bool:
    """Return whether `path` is `pattern` or below it; `*` in the pattern matches one step."""
    return len(pattern) <= len(path) and all(
        step in ("*", at) for step, at in zip(pattern, path[: len(pattern)], strict=True)
    )


def touch(one: Path, other: Path) -> bool:
    """Return whether one of two paths is a prefix of the other."""
    return covers(one, other) or covers(other, one)


def without(found: Iterable[Change], ignored: Iterable[str]) -> list[Change]:
    """Return the changes that are not at or below the ignored property paths."""
    patterns = [parse_path(text) for text in ignored]
    return [change for change in found if not any(covers(pattern, change.path) for pattern in patterns)]


def replacing(found: list[Change], fields: Iterable[str]) -> list[Change]:
    """Return the changes with those marked as replacing that match the API's immutable fields.

    If a field matches none of them, all changes under its first key are marked: the API names `spec.clusterIPs[0]` for
    a change of `spec.clusterIP`. If there is none under that key, all changes are marked.
    """
    marked: set[int] = set()
    for field in fields:
        path = parse_path(field)
        hits = {at for at, change in enumerate(found) if touch(path, change.path)}
        hits = hits or {at for at, change in enumerate(found) if path[:1] == change.path[:1]}
        marked |= hits or set(range(len(found)))
    return [
        Change(change.path, change.kind, change.replaces or at in marked, change.in_inputs)
        for at, change in enumerate(found)
    ]


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path, or MISSING."""
    for step in path:
        in_dict = isinstance(value, dict) and isinstance(step, str) and step in value
        in_list = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not in_dict and not in_list:
            return MISSING
        value = value[step]
    return value


def with_value(root: Any, path: Path, value: Any) -> Any:
    """Copy `root` with `value` at `path` (MISSING removes it).

    Missing objects on the path are made, list items are not.
    """
    if not path:
        return root if value is MISSING else value
    step, rest = path[0], path[1:]
    if isinstance(root, list) and isinstance(step, int):
        if step > len(root) or (step == len(root) and (rest or value is MISSING)):
            return root
        if not rest and value is MISSING:
            return [*root[:step], *root[step + 1 :]]
        child = with_value(root[step], rest, value) if step < len(root) else value
        return [*root[:step], child, *root[step + 1 :]]
    if isinstance(root, dict) and isinstance(step, str):
        if value is MISSING and (step not in root or not rest):
            return {key: child for key, child in root.items() if key != step}
        if step not in root and rest and isinstance(rest[0], int):
            return root
        return {**root, step: with_value(root.get(step, {} if rest else MISSING), rest, value)}
    return root


def expand(value: Any, pattern: Path, path: Path = ()) -> Iterator[Path]:
    """Yield the paths in `value` that match a pattern with `*`; a pattern without `*` yields itself."""
    if not pattern:
        yield path
        return
    step, rest = pattern[0], pattern[1:]
    if step != "*":
        below = value_at(value, (step,))
        yield from expand(below, rest, (*path, step))
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from expand(child, rest, (*path, key))
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from expand(child, rest, (*path, at))


def leaving(obj: dict[str, Any], live: dict[str, Any], ignored: Iterable[Path]) -> dict[str, Any]:
    """Copy an object with the live values of the ignored fields, so that an apply does not change them."""
    for pattern in ignored:
        paths = dict.fromkeys((*expand(obj, pattern), *expand(live, pattern)))
        for path in paths:
            if covers(("metadata", "managedFields"), path) or path[:1] == ("status",):
                continue
            obj = with_value(obj, path, value_at(live, path))
    return obj
