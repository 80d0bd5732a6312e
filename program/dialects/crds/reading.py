"""Reads custom resources: checks identity and metadata, and validates a spec with its schema class. Pure.

Errors name the field. The API server makes the same checks, but not for objects from files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.crds.schema import WORDS_OF_PATTERNS, CrdModel

_M = TypeVar("_M", bound=CrdModel)

_UNION_BRANCHES = frozenset({"int", "str", "constrained-str"})
# Values below these fields may be secrets, so an error names only the field.
_PRIVATE = frozenset({"env", "envs"})


_WORDS = {
    "bool_type": "is not true or false",
    "dict_type": "is not an object",
    "float_type": "is not a number",
    "greater_than": "is not greater than {gt}",
    "greater_than_equal": "is less than {ge}",
    "int_from_float": "is not a whole number",
    "int_type": "is not a whole number",
    "less_than": "is not less than {lt}",
    "less_than_equal": "is greater than {le}",
    "list_type": "is not a list",
    "literal_error": "is none of {expected}",
    "missing": "is missing",
    "model_type": "is not an object",
    "string_pattern_mismatch": "is not of the form {pattern}",
    "string_too_long": "is longer than {max_length} characters",
    "string_too_short": "is shorter than {min_length} characters",
    "string_type": "is not a string; put it in quotes",
    "too_long": "has {actual_length} entries; at most {max_length} are allowed",
    "too_short": "has {actual_length} entries; at least {min_length} are required",
}
"""pydantic's errors, in words for the author of a manifest."""


def without_nulls(value: Any) -> Any:
    """Drop null members of objects at all depths.

    The API server prunes them, so an object from a file must mean the same.
    """
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(member) for member in value]
    return value


def read(kind: type[_M], value: Any, *, field: str) -> _M:
    """Validate `value` (nulls dropped) as `kind`. Raises SpecInvalid with the path of the first invalid field."""
    try:
        return kind.model_validate({} if value is None else value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        first, path = found[0], join_path(field, found[0]["loc"])
        # A value that may be a number or a text has one error for each type.
        same = [each for each in found if join_path(field, each["loc"]) == path]
        why = _in_words(same[-1] if isinstance(first["input"], str) else first, either=len(same) > 1)
        given = first["input"]
        is_plain = isinstance(given, str | int | float) and given != ""
        if first["type"] != "missing" and is_plain and not _PRIVATE & set(first["loc"]):
            why = f"`{str(given)[:64]}` {why}"
        raise SpecInvalid(field=path, why=why) from None


def _in_words(error: ErrorDetails, *, either: bool) -> str:
    """Return the error of a value as the end of a sentence that starts with the value."""
    kind, limits = error["type"], error.get("ctx") or {}
    if either and kind == "string_pattern_mismatch":
        shares = limits["pattern"].endswith("%$")
        return (
            "is neither a whole number nor a percentage up to 100%"
            if shares
            else "is not a quantity; write for example `10Gi`"
        )
    if kind == "string_pattern_mismatch" and (words := WORDS_OF_PATTERNS.get(limits["pattern"])):
        return words
    if either:
        return "is neither a whole number nor a string"
    if kind == "string_too_short" and limits["min_length"] == 1:
        return "is empty"
    if words := _WORDS.get(kind):
        return words.format_map(limits)
    return f"is not valid: {error['msg'][:1].lower()}{error['msg'][1:]}"


def join_path(field: str, parts: Sequence[str | int]) -> str:
    """Join a path as the API server writes it: `spec.autoscaling.metrics[0].type`."""
    path = field
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _UNION_BRANCHES:
            path += f".{part}"
    return path


def unknown_fields(value: CrdModel, *, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of all fields that the schema neither has nor preserves."""
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


_TEXTS = ("name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_MAPS = ("labels", "annotations")
_LARGEST_GENERATION = 2**63 - 1
_MOST_SHOWN = 64


def check_shape(cr: Json) -> None:
    """Check a custom resource: its metadata, and that its spec and status are objects. Raises SpecInvalid."""
    check_metadata(cr)
    for field in ("spec", "status"):
        if not isinstance(cr.get(field), dict | None):
            raise SpecInvalid(field=field, why="is not an object")


def check_referred(obj: Json) -> None:
    """Check the fields that dialects read from a service's ConfigMaps and ServiceAccounts. Raises SpecInvalid."""
    match obj.get("kind"):
        case "ConfigMap":
            _check_texts(obj.get("data"), "data")
        case "ServiceAccount":
            for field in ("secrets", "imagePullSecrets"):
                _check_objects(obj.get(field), field)


def _check_objects(value: Any, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, list):
        raise SpecInvalid(field=field, why="is not a list")
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise SpecInvalid(field=f"{field}[{index}]", why="is not an object")


def check_metadata(cr: Json) -> None:
    """Raise SpecInvalid with the path of the first field of an object's identity or metadata that has a wrong type.

    A null counts as absent, as for the API server.
    """
    metadata = cr.get("metadata")
    if metadata is None:
        raise SpecInvalid(field="metadata.name", why="is missing")
    if not isinstance(metadata, dict):
        raise SpecInvalid(field="metadata", why="is not an object")
    for name in _TEXTS:
        if not isinstance(metadata.get(name), str | None):
            raise SpecInvalid(field=f"metadata.{name}", why="is not a string; put it in quotes")
    if not metadata.get("name"):
        raise SpecInvalid(field="metadata.name", why="is missing")
    for field in ("apiVersion", "kind"):
        if not isinstance(cr.get(field), str | None):
            raise SpecInvalid(field=field, why="is not a string; put it in quotes")
    for name in _MAPS:
        _check_texts(metadata.get(name), f"metadata.{name}")
    _check_finalizers(metadata.get("finalizers"))
    _check_owners(metadata.get("ownerReferences"))
    generation = metadata.get("generation")
    if generation is not None and not _is_generation(generation):
        raise SpecInvalid(field="metadata.generation", why="is not a whole number")


def _check_texts(value: Any, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise SpecInvalid(field=field, why="is not an object")
    for name, entry in value.items():
        if not isinstance(name, str):
            raise SpecInvalid(field=field, why=f"`{str(name)[:_MOST_SHOWN]}` is not a string; put it in quotes")
        if not isinstance(entry, str):
            raise SpecInvalid(field=f"{field}[{name[:_MOST_SHOWN]}]", why="is not a string; put it in quotes")


def _check_finalizers(value: Any) -> None:
    if value is not None and (not isinstance(value, list) or not all(isinstance(each, str) for each in value)):
        raise SpecInvalid(field="metadata.finalizers", why="is not a list of strings")


def _check_owners(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, list):
        raise SpecInvalid(field="metadata.ownerReferences", why="is not a list")
    for index, owner in enumerate(value):
        field = f"metadata.ownerReferences[{index}]"
        if not isinstance(owner, dict):
            raise SpecInvalid(field=field, why="is not an object")
        for name in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner.get(name), str | None):
                raise SpecInvalid(field=f"{field}.{name}", why="is not a string; put it in quotes")


def _is_generation(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_GENERATION
