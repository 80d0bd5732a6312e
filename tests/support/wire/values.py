"""Property values as the harness keeps them: JSON, in which secrets keep the signed form of Pulumi's wire.

Called by the other modules of this folder. It shares no code with `components.providers.marshalling`, which is
under test.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import struct_pb2

Properties = dict[str, Any]

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_STEP = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+|\*)\]|\.?([^.\[\]]+)')
_ABSENT: Any = object()


def from_wire(struct: struct_pb2.Struct) -> Properties:
    """Return the properties of a message. Output values become plain values, secrets or unknowns, as an engine passes
    them on to a provider that accepts no outputs; references of resources become their ids.
    """
    return {key: _value(value) for key, value in struct.fields.items()}


def _value(value: struct_pb2.Value) -> Any:
    which = value.WhichOneof("kind")
    if which == "struct_value":
        fields = from_wire(value.struct_value)
        return _signed(fields) if SIGNATURE in fields else fields
    if which == "list_value":
        return [_value(each) for each in value.list_value.values]
    if which == "number_value":
        return int(value.number_value) if value.number_value.is_integer() else value.number_value
    return getattr(value, which) if which in ("string_value", "bool_value") else None


def _signed(fields: Properties) -> Any:
    if fields[SIGNATURE] == SECRET:
        return fields
    if fields[SIGNATURE] == OUTPUT:
        value = fields.get("value", UNKNOWN)
        return secret(value) if fields.get("secret") else value
    if fields[SIGNATURE] == RESOURCE:
        return fields.get("id") or fields["urn"]
    raise NotImplementedError(f"the harness has no values with the signature {fields[SIGNATURE]}")


def to_wire(properties: Properties) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    for key, value in properties.items():
        _write(struct.fields[key], value)
    return struct


def _write(target: struct_pb2.Value, value: Any) -> None:
    if value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, dict):
        target.struct_value.CopyFrom(to_wire(value))
    else:
        target.list_value.SetInParent()
        for each in value:
            _write(target.list_value.values.add(), each)


def secret(value: Any) -> Any:
    """Return `value` with a secret mark; a value that has one stays."""
    return value if is_secret(value) else {SIGNATURE: SECRET, "value": value}


def is_secret(value: Any) -> bool:
    return isinstance(value, dict) and value.get(SIGNATURE) == SECRET


def revealed(value: Any) -> Any:
    """Copy a value without secret marks."""
    if isinstance(value, dict):
        return revealed(value["value"]) if is_secret(value) else {key: revealed(each) for key, each in value.items()}
    return [revealed(each) for each in value] if isinstance(value, list) else value


def has_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_unknown(each) for each in value.values())
    if isinstance(value, list):
        return any(has_unknown(each) for each in value)
    return isinstance(value, str) and value == UNKNOWN


class Vault:
    """Replaces secrets by texts that say nothing about them, as the encryption of a state does, and puts them back."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def sealed(self, value: Any) -> Any:
        if is_secret(value):
            text = f"v1:{len(self._kept):08d}"
            self._kept[text] = value["value"]
            return {SIGNATURE: SECRET, "ciphertext": text}
        if isinstance(value, dict):
            return {key: self.sealed(each) for key, each in value.items()}
        return [self.sealed(each) for each in value] if isinstance(value, list) else value

    def opened(self, value: Any) -> Any:
        if is_secret(value):
            return secret(self._kept[value["ciphertext"]])
        if isinstance(value, dict):
            return {key: self.opened(each) for key, each in value.items()}
        return [self.opened(each) for each in value] if isinstance(value, list) else value


def ignoring(wanted: Properties, before: Properties, paths: list[str]) -> Properties:
    """Copy `wanted` with the values of `before` at the paths of `ignoreChanges`."""
    for path in paths:
        steps = [_step(match) for match in _STEP.finditer(path)]
        if "*" in steps:
            raise NotImplementedError(f"the harness has no wildcards in ignoreChanges: {path}")
        wanted = _with(wanted, before, steps)
    return wanted


def _step(match: re.Match[str]) -> str | int:
    quoted, position, name = match.groups()
    if position is not None:
        return position if position == "*" else int(position)
    return str(quoted if quoted is not None else name)


def _with(wanted: Any, before: Any, steps: list[str | int]) -> Any:
    if is_secret(wanted) or is_secret(before):
        raise NotImplementedError("the harness has no ignoreChanges inside of secrets")
    (step, *rest) = steps
    old = _at(before, step)
    if isinstance(wanted, dict):
        if rest and _at(wanted, step) is not _ABSENT and old is not _ABSENT:
            return {**wanted, step: _with(wanted[step], old, rest)}
        without = {key: each for key, each in wanted.items() if key != step}
        return wanted if rest else without if old is _ABSENT else {**without, step: old}
    if isinstance(wanted, list) and isinstance(step, int) and step < len(wanted) and old is not _ABSENT:
        return [_with(each, old, rest) if rest else old if at == step else each for at, each in enumerate(wanted)]
    return wanted


def _at(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step, _ABSENT)
    return value[step] if isinstance(value, list) and isinstance(step, int) and step < len(value) else _ABSENT
