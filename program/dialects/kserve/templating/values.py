"""Values of template expressions: plain JSON under the field names of KServe's Go types, no Python attributes. Pure.

A `Struct` knows its fields, so that an unset field differs from one that does not exist.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Shape = Mapping[str, Any] | str
"""For a struct: its fields' JSON names with their shapes. Otherwise one of the words below."""
ANY = "any"
"""Any JSON; objects in it are structs without a list of fields."""
MAP = "map"
"""An object whose keys users choose."""
TEXT = "text"
"""A text; empty if it is not set."""
LEAF = "leaf"
LIST = "[]"
"""Field of a shape for the members of a list."""


class TemplateError(Exception):
    """An expression without a value. The message names the expression and how to correct it."""


@dataclass(frozen=True, slots=True)
class Struct:
    """An object whose fields are found by their Go name in upper or lower case."""

    value: Mapping[str, Any]
    shape: Shape


def wrap(value: Any, shape: Shape) -> Any:
    """Return JSON as values of templates."""
    if value is None:
        return "" if shape == TEXT else None
    if isinstance(value, dict) and shape not in (MAP, LEAF):
        return Struct(value, shape)
    if isinstance(value, list):
        inner = shape.get(LIST, ANY) if isinstance(shape, Mapping) else shape
        return [wrap(member, inner) for member in value]
    return value


def unwrap(value: Any) -> Any:
    """Return the plain JSON of a value."""
    if isinstance(value, Struct):
        return dict(value.value)
    if isinstance(value, list):
        return [unwrap(member) for member in value]
    return value


def field_of(value: Any, name: str, path: str) -> Any:
    """Return `.name` of a value that errors call `path`. Raises TemplateError."""
    if isinstance(value, Struct):
        return _field(value, name, path)
    if isinstance(value, Mapping):
        if name not in value:
            raise TemplateError(f"`{path}` has no entry `{name}`")
        return wrap(value[name], MAP)
    if value is None:
        raise TemplateError(f"`{path}` is not set, so it has no `.{name}`; test it with `if` or `with` first")
    raise TemplateError(f"`{path}` is {_kind(value)}, which has no fields")


def _field(struct: Struct, name: str, path: str) -> Any:
    wanted = name.lower()
    if isinstance(struct.shape, Mapping):
        for key, shape in struct.shape.items():
            if key.lower() == wanted and key != LIST:
                return wrap(struct.value if shape == "self" else struct.value.get(key), _inner(shape, struct))
        raise TemplateError(f"there is no field `{path}.{name}`" if path else f"there is no field `.{name}`")
    for key, value in struct.value.items():
        if key.lower() == wanted:
            return wrap(value, ANY)
    return None


def _inner(shape: Shape, struct: Struct) -> Shape:
    return struct.shape if shape == "self" else shape


def truth(value: Any) -> bool:
    """Return the truth of a value for `if`: False if it is unset, zero or empty.

    A struct that is set is always true.
    """
    if isinstance(value, Struct):
        return True
    return bool(value)


def text_of(value: Any) -> str:
    """Return the output text of a value. Raises TemplateError for a value without one."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return json.dumps(value)
    if value is None:
        raise TemplateError("has no value; test it with `if` first, or set one with `default`")
    raise TemplateError(f"is {_kind(value)}, which cannot be written as text; use `toJson`")


def _kind(value: Any) -> str:
    if isinstance(value, Struct | Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a text"
    return "a number" if not isinstance(value, bool) else "true or false"
