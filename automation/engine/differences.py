"""Describes the differences of two versions of an object: `containers[llama-server].args --ctx-size 4096 -> 8192`.

Pure; called by `run_log` with the inputs that the engine's log carries, for the Events of a service.

Values of environment variables are left out, and so are values of flags and fields whose name suggests a secret, and
URLs that may contain one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from components import naming

Json = Any

_QUIET_ANNOTATIONS = frozenset(
    {naming.ANNOTATION_APPLIED_HASH, naming.ANNOTATION_TEMPLATE_HASH, naming.ANNOTATION_UNCOUNTED}
)
_PREFIXES = ("spec.template.spec.", "spec.template.metadata.", "spec.template.", "spec.", "metadata.")
_SECRET = re.compile(r"key|token|secret|password|passwd|credential|authorization", re.IGNORECASE)
_CARRIES_SECRET = re.compile(r"://[^/\s]*@|://\S*\?|bearer\s", re.IGNORECASE)
_LONGEST_VALUE = 60
_ARGUMENT_LISTS = frozenset({"args", "command"})


def differences(old: Json, new: Json) -> tuple[str, ...]:
    """List the differences, one phrase each, in the order of the new version."""
    return tuple(_walk(old, new, "", ""))


def _walk(old: Json, new: Json, path: str, key: str) -> Iterator[str]:
    if old == new:
        return
    if key == "env" and isinstance(old, list) and isinstance(new, list):
        yield from _environment(old, new, path)
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from _members(old, new, path)
    elif key in _ARGUMENT_LISTS and _are_words(old) and _are_words(new):
        yield from _arguments(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        if (before := _by_name(old)) is not None and (after := _by_name(new)) is not None:
            yield from _named(before, after, path)
        else:
            yield f"{_short(path)} changed"
    else:
        yield f"{_short(path)} {_change(old, new, key)}"


def _members(old: dict[str, Json], new: dict[str, Json], path: str) -> Iterator[str]:
    for key in (*new, *(key for key in old if key not in new)):
        if key in _QUIET_ANNOTATIONS:
            continue
        below = f"{path}.{key}" if path else key
        if key not in old:
            yield f"{_short(below)} added{_told(new[key], key)}"
        elif key not in new:
            yield f"{_short(below)} removed"
        else:
            yield from _walk(old[key], new[key], below, key)


def _named(old: dict[str, Json], new: dict[str, Json], path: str) -> Iterator[str]:
    for name in (*new, *(name for name in old if name not in new)):
        below = f"{path}[{name}]"
        if name not in old:
            yield f"{_short(below)} added"
        elif name not in new:
            yield f"{_short(below)} removed"
        else:
            yield from _walk(old[name], new[name], below, "")


def _environment(old: list[Json], new: list[Json], path: str) -> Iterator[str]:
    """Compare names only, because any value may be a secret."""
    before, after = _by_name(old) or {}, _by_name(new) or {}
    for name in (*after, *(name for name in before if name not in after)):
        word = "added" if name not in before else "removed" if name not in after else "changed"
        if before.get(name) != after.get(name):
            yield f"{_short(path)} {name} {word}"


def _arguments(old: list[str], new: list[str], path: str) -> Iterator[str]:
    """Compare flag by flag: a flag that only moved is not a difference."""
    before, after = _flags(old), _flags(new)
    changed = False
    for flag in (*after, *(flag for flag in before if flag not in after)):
        was, now = before.get(flag), after.get(flag)
        if was == now:
            continue
        changed = True
        name = flag or "(positional)"
        if was is None:
            yield f"{_short(path)} added {name}{_joined(now, flag)}"
        elif now is None:
            yield f"{_short(path)} removed {name}"
        else:
            yield f"{_short(path)} {name} {_change(' '.join(was), ' '.join(now), flag)}"
    if not changed:
        yield f"{_short(path)} in another order"


def _flags(words: list[str]) -> dict[str, list[str]]:
    """Group arguments by flag; a flag that is given several times has all its values."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            flag, equals, value = word.partition("=")
            found.setdefault(flag, []).extend([value] if equals else [])
            if equals:
                flag = ""
        else:
            found.setdefault(flag, []).append(word)
    return found


def _change(old: Json, new: Json, key: str) -> str:
    before, after = shown(old, key), shown(new, key)
    return f"{before} -> {after}" if before and after and before != after else "changed"


def _told(value: Json, key: str) -> str:
    text = shown(value, key)
    return f" ({text})" if text else ""


def _joined(values: list[str] | None, flag: str) -> str:
    text = shown(" ".join(values or ()), flag)
    return f" {text}" if text else ""


def shown(value: Json, key: str) -> str:
    """Format a value that is short and certainly not a secret; else return an empty string."""
    if _SECRET.search(key) or isinstance(value, (dict, list)):
        return ""
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    else:
        # The engine's numbers are floats, also for integers.
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if len(text) > _LONGEST_VALUE or "\n" in text or _CARRIES_SECRET.search(text):
        return ""
    return text


def _short(path: str) -> str:
    return next((path[len(prefix) :] for prefix in _PREFIXES if path.startswith(prefix)), path)


def _are_words(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _by_name(items: list[Json]) -> dict[str, Json] | None:
    """Index a list of objects that have unique names; None for any other list."""
    named = {item["name"]: item for item in items if isinstance(item, dict) and isinstance(item.get("name"), str)}
    return named if len(named) == len(items) else None
