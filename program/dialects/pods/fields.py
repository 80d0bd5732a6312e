"""Checks that pod specs contain only fields of Kubernetes, with objects and lists in the right places. Pure.

The API server refuses the same fields, but only when the pods are applied, and its message names the Deployment.
`tools.pod_fields` writes `pod_fields.json`.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from importlib import resources
from typing import Any

from program.desired.errors import SpecInvalid

POD_SPEC = "V1PodSpec"
CONTAINER = "V1Container"
_OF_MANY = re.compile(r"(list|dict)\[(?:str, )?(.+)\]")
_MOST_SHOWN = 64


def check_fields(value: Any, kind: str, *, field: str) -> None:
    """Raise SpecInvalid with the path of the first field below `field` that a `kind` of Kubernetes does not have.

    `kind` is a type of `pod_fields.json`, or `list[<type>]`. A null counts as absent.
    """
    if value is None:
        return
    many = _OF_MANY.fullmatch(kind)
    if many is not None:
        _check_many(value, many[1], many[2], field)
    elif kind in _types():
        _check_object(value, kind, field)
    elif kind != "object" and isinstance(value, dict | list):
        raise SpecInvalid(field=field, why="is not a plain value")


def _check_many(value: Any, of: str, kind: str, field: str) -> None:
    if of == "list":
        if not isinstance(value, list):
            raise SpecInvalid(field=field, why="is not a list")
        for index, entry in enumerate(value):
            check_fields(entry, kind, field=f"{field}[{index}]")
        return
    if not isinstance(value, dict):
        raise SpecInvalid(field=field, why="is not an object")
    for name, entry in value.items():
        # The values may be texts or quantities, which may be numbers.
        if isinstance(entry, dict | list | bool):
            raise SpecInvalid(field=f"{field}[{str(name)[:_MOST_SHOWN]}]", why="is not a string")


def _check_object(value: Any, kind: str, field: str) -> None:
    if not isinstance(value, dict):
        raise SpecInvalid(field=field, why="is not an object")
    known = _types()[kind]
    for name, entry in value.items():
        if name not in known:
            raise SpecInvalid(field=f"{field}.{str(name)[:_MOST_SHOWN]}", why=_unknown(str(name), kind, known))
        check_fields(entry, known[name], field=f"{field}.{name}")


def _unknown(name: str, kind: str, known: dict[str, str]) -> str:
    what = re.sub(r"V\d+((alpha|beta)\d+)?", "", kind)
    if kind == POD_SPEC and name in ("spec", "metadata"):
        return (
            "is not a field of a PodSpec; this field is itself a PodSpec, so move the fields below `spec` one level up"
        )
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f"; did you mean `{near[0]}`?" if near else "; the API server would refuse it"
    return f"is not a field of a {what}{hint}"


@functools.cache
def _types() -> dict[str, dict[str, str]]:
    text = (resources.files("program.dialects.pods") / "pod_fields.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found
