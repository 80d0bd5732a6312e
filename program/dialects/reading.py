"""Read a custom resource's dict into its schema class once, with errors that name the field. Pure.

Called by the dialects' parsers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from program.desired.errors import SpecInvalid
from program.dialects.crd_schema import CrdModel

_M = TypeVar("_M", bound=CrdModel)

_UNION_BRANCHES = frozenset({"int", "str"})
# Values below these may be secrets; an error names the field only.
_PRIVATE = frozenset({"env", "envs"})


def without_nulls(value: Any) -> Any:
    """Drop null members of objects, deeply: the API server prunes them, so a file read offline must mean the same."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(member) for member in value]
    return value


def read(kind: type[_M], value: Any, *, field: str) -> _M:
    """Validate `value` (nulls dropped) as `kind`. Raises SpecInvalid with the path of the first field that is wrong."""
    try:
        return kind.model_validate({} if value is None else value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = join_path(field, first["loc"])
        why = first["msg"][:1].lower() + first["msg"][1:]
        given = first["input"]
        if first["type"] != "missing" and isinstance(given, str | int | float) and not _PRIVATE & set(first["loc"]):
            why = f"`{str(given)[:64]}` is not valid: {why}"
        raise SpecInvalid(field=path, why=why) from None


def join_path(field: str, parts: Sequence[str | int]) -> str:
    """Write a path as the API server does: `spec.autoscaling.metrics[0].type`."""
    path = field
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _UNION_BRANCHES:
            path += f".{part}"
    return path


def unknown_fields(value: CrdModel, *, field: str) -> Iterator[tuple[str, Any]]:
    """Walk the paths and values of all fields that the schema does not know, and does not keep as they are."""
    extra = value.model_config.get("json_schema_extra")
    if isinstance(extra, dict) and extra.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, extra in (value.model_extra or {}).items():
        yield f"{field}.{name}", extra
    for name, info in type(value).model_fields.items():
        path = f"{field}.{info.alias or name}"
        member = getattr(value, name)
        if isinstance(member, CrdModel):
            yield from unknown_fields(member, field=path)
        elif isinstance(member, list):
            for index, item in enumerate(member):
                if isinstance(item, CrdModel):
                    yield from unknown_fields(item, field=f"{path}[{index}]")
