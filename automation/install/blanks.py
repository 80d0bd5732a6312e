"""Manifests with blanks: trees from which `filled` makes objects, and `as_yaml` YAML or a Helm template. Pure.

`objects` builds the trees. A blank is a value that the options provide. A condition marks a part that only some options
need. Both have names, which each reader maps to values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Value:
    """A value that the options provide: text, or a number."""

    name: str


@dataclass(frozen=True)
class When:
    """An entry of a mapping, or an item of a list, that is present only under a condition."""

    condition: str
    then: Any


@dataclass(frozen=True)
class Each:
    """Items of a list, one for each entry of a mapping in the options, sorted by key."""

    name: str
    item: Callable[[str, Any], Any]
    """Makes an item from key and value, which may be text for a template."""


@dataclass(frozen=True)
class Remark:
    """An item of a list, with a comment above it."""

    text: str
    then: Any


@dataclass(frozen=True)
class Raw:
    """Text that is written unchanged: an expression of a template."""

    text: str


def filled(tree: Any, values: Mapping[str, Any], conditions: Mapping[str, bool], *, remarks: bool = False) -> Any:
    """Fill the blanks. Return plain data, or with `remarks` a tree that still has those.

    Raises KeyError for an unknown name.
    """
    if isinstance(tree, Value):
        return values[tree.name]
    if isinstance(tree, Remark):
        inner = filled(tree.then, values, conditions, remarks=remarks)
        return Remark(tree.text, inner) if remarks else inner
    if isinstance(tree, When):
        return filled(tree.then, values, conditions, remarks=remarks)
    if isinstance(tree, dict):
        return {
            key: filled(value, values, conditions, remarks=remarks)
            for key, value in tree.items()
            if not _is_out(value, conditions)
        }
    if isinstance(tree, list):
        items: list[Any] = []
        for item in tree:
            if isinstance(item, Each):
                items += (item.item(key, value) for key, value in sorted(values[item.name].items()))
            elif not _is_out(item, conditions):
                items.append(filled(item, values, conditions, remarks=remarks))
        return items
    return tree


def _is_out(tree: Any, conditions: Mapping[str, bool]) -> bool:
    return isinstance(tree, When) and not conditions[tree.condition]


@dataclass(frozen=True)
class Language:
    """How a template writes blanks."""

    values: Mapping[str, str]
    """The expression of each value."""
    conditions: Mapping[str, str]
    """The expression of each condition."""

    def value(self, name: str) -> str:
        return "{{ " + self.values[name] + " }}"


_PLAIN = Language({}, {})
_BARE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._/:-]*")
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_WIDTH = 118


def as_yaml(tree: Any, language: Language = _PLAIN) -> str:
    """Write a tree as YAML; one without blanks needs no language."""
    return "\n".join(_lines(tree, language)) + "\n"


def _lines(tree: Any, language: Language) -> list[str]:
    if isinstance(tree, dict):
        return [line for key, value in tree.items() for line in _entry(key, value, language)]
    return [line for item in tree for line in _item(item, language)]


def _entry(key: str, value: Any, language: Language) -> list[str]:
    if isinstance(value, When):
        return _under(value.condition, _entry(key, value.then, language), language)
    if (short := _short(value, language)) is not None:
        return [f"{_scalar(key)}: {short}"]
    return [f"{_scalar(key)}:", *_indented(_lines(value, language))]


def _item(item: Any, language: Language) -> list[str]:
    if isinstance(item, When):
        return _under(item.condition, _item(item.then, language), language)
    if isinstance(item, Remark):
        return [*comment(item.text), *_item(item.then, language)]
    if isinstance(item, Each):
        body = _item(item.item(Raw("{{ $key | upper }}"), Raw("{{ $value | quote }}")), language)  # type: ignore[arg-type]
        return ["{{- range $key, $value := " + language.values[item.name] + " }}", *body, "{{- end }}"]
    if (short := _short(item, language)) is not None:
        return [f"- {short}"]
    first, *rest = _lines(item, language)
    return [f"- {first}", *_indented(rest)]


def comment(text: str) -> list[str]:
    """Wrap a comment into lines."""
    lines, line = [], "#"
    for word in text.split():
        if len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = "#"
        line = f"{line} {word}"
    return [*lines, line]


def _under(condition: str, lines: list[str], language: Language) -> list[str]:
    return ["{{- if " + language.conditions[condition] + " }}", *lines, "{{- end }}"]


def _indented(lines: list[str]) -> list[str]:
    return [line if line.startswith("{{-") or not line else f"  {line}" for line in lines]


def _short(value: Any, language: Language) -> str | None:
    """Write a value that fits on one line (a scalar, a blank, a list of words, nothing); None for any other."""
    if isinstance(value, Value):
        return language.value(value.name)
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{}" if not value else None
    return None if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> str:
    """Write a scalar so that YAML reads the same value."""
    if isinstance(value, str) and _BARE.fullmatch(value) and yaml.safe_load(value) == value and value[-1] != ":":
        return value
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
