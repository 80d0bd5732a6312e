"""Fields of pod templates that hashes do not count: an installation's settings, and later additions to presets.

A renderer gives two specs of an object: the one for new pods, and the one that hashes count. An annotation of the
object lists the paths at which they differ. While the template's hash is the same, the provider keeps the values with
which the object was made at these paths, so that pods restart only for changes of their own service. docs/adr/0042.
Pure. `components.render` calls `uncounted_annotation`, `components.providers.kubernetes_templates` calls
`keep_uncounted`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from components import naming
from components.providers.kubernetes_diff import MISSING

Step = str | dict[str, str]
Path = tuple[Step, ...]
"""Steps from the root of an object: a key, or an item of a list by its name as `{"name": "main"}`."""

_NAMES = ("name", "mountPath")
"""Keys that identify the items of a pod's lists: `name` of containers, variables and volumes; `mountPath` of mounts."""


def uncounted_annotation(spec: object, counted: object) -> dict[str, str]:
    """Return the annotation of an object whose hashes count `counted` instead of `spec`; empty if both are equal."""
    paths = [] if spec is counted else list(_differing(spec, counted, ("spec",)))
    return {naming.ANNOTATION_UNCOUNTED: _text(paths)} if paths else {}


def paths_of(obj: Any) -> list[Path]:
    """Return the paths in an object's annotation; empty if it has none, or one that cannot be parsed."""
    text = obj
    for key in ("metadata", "annotations", naming.ANNOTATION_UNCOUNTED):
        text = text.get(key) if isinstance(text, dict) else None
    try:
        read = json.loads(text) if isinstance(text, str) else []
    except ValueError:
        return []
    return [tuple(path) for path in read if isinstance(path, list)] if isinstance(read, list) else []


def keep_uncounted(wanted: Any, before: Any, *, is_kept: Callable[[Path], bool] = lambda _path: True) -> Any:
    """Copy `wanted` with the values of `before` at the uncounted paths, which the annotations of both objects list.

    Both objects have the same hash, so that they are equal at all other paths. A path of `before` for which `is_kept`
    returns false keeps the value of `wanted`.
    """
    known = {_key(path): path for path in (*paths_of(wanted), *paths_of(before))}
    if not known:
        return wanted
    paths = sorted(known.values(), key=len)
    for path in paths:
        value = value_at(before, path)
        if value is MISSING or is_kept(path):
            wanted = _with(wanted, path, value)
    # The kept values differ from the counted ones at the paths of the old annotation.
    note: Path = ("metadata", "annotations", naming.ANNOTATION_UNCOUNTED)
    return _with(wanted, note, value_at(before, note))


def value_at(obj: Any, path: Path) -> Any:
    """Return the value at a path, or MISSING."""
    for step in path:
        if isinstance(step, str):
            obj = obj.get(step, MISSING) if isinstance(obj, dict) else MISSING
        else:
            at = position(obj, step)
            obj = obj[at] if at is not None else MISSING
    return obj


def position(items: Any, name: dict[str, str]) -> int | None:
    """Return the index of the list's item with this name; None if there is none."""
    if not isinstance(items, list):
        return None
    return next((at for at, item in enumerate(items) if isinstance(item, dict) and name.items() <= item.items()), None)


def shown_path(path: Path) -> str:
    """Return a path as text for messages: `spec.template.spec.containers[main].env`."""
    text = ""
    for step in path:
        text += f".{step}" if isinstance(step, str) else f"[{next(iter(step.values()))}]"
    return text.removeprefix(".")


def _differing(one: object, other: object, path: Path) -> Iterator[Path]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if key not in one or key not in other:
                yield (*path, key)
            else:
                yield from _differing(one[key], other[key], (*path, key))
    elif (names := _named(one)) is not None and (others := _named(other)) is not None:
        for key, name in sorted({*names, *others}):
            step = {key: name}
            if (key, name) not in names or (key, name) not in others:
                yield (*path, step)
            else:
                yield from _differing(names[key, name], others[key, name], (*path, step))
    elif one != other:
        yield path


def _named(items: object) -> dict[tuple[str, str], object] | None:
    """Return the items of a list by name; None if an item has no name, or two items have the same one."""
    if not isinstance(items, list) or not items:
        return None
    for key in _NAMES:
        found: dict[tuple[str, str], object] = {
            (key, item[key]): item for item in items if isinstance(item, dict) and isinstance(item.get(key), str)
        }
        if len(found) == len(items):
            return found
    return None


def _with(obj: Any, path: Path, value: Any) -> Any:
    """Copy an object with `value` at a path (MISSING removes it); unchanged if the parent of the path is missing."""
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        if not isinstance(obj, dict):
            return obj
        copied = {key: each for key, each in obj.items() if key != step or rest or value is not MISSING}
        if rest:
            return {**copied, step: _with(copied[step], rest, value)} if step in copied else obj
        return copied if value is MISSING else {**copied, step: value}
    if not isinstance(obj, list):
        return obj
    at = position(obj, step)
    if at is None:
        return obj if rest or value is MISSING else [*obj, value]
    if not rest and value is MISSING:
        return [*obj[:at], *obj[at + 1 :]]
    return [*obj[:at], _with(obj[at], rest, value) if rest else value, *obj[at + 1 :]]


def _key(path: Path) -> str:
    return json.dumps(path, sort_keys=True, separators=(",", ":"))


def _text(paths: Iterable[Path]) -> str:
    return "[" + ",".join(sorted(_key(path) for path in paths)) + "]"
