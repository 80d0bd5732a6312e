"""Converts between Pulumi's wire form (protobuf Struct with signed objects) and plain Python values.

Called by the providers' servicers.

Two marks survive the conversion. `UNKNOWN` is a value that becomes known only after another resource was made (previews
only). `Secret` wraps a value that must never be shown or stored in the clear. The signatures and sentinels are those of
the Pulumi SDK (`sdk/go/common/resource/sig` and `plugin/rpc.go` of pulumi v3.255.0).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from google.protobuf import struct_pb2

from components.providers.properties import UNKNOWN as UNKNOWN
from components.providers.properties import Properties as Properties
from components.providers.properties import Secret as Secret
from components.providers.properties import has_secret as has_secret
from components.providers.properties import has_unknown as has_unknown
from components.providers.properties import marked_like as marked_like
from components.providers.properties import plain as plain
from components.providers.properties import secret_texts as secret_texts

SIGNATURE_KEY: Final = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - a signature, no secret
OUTPUT_SIGNATURE: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
RESOURCE_SIGNATURE: Final = "5cf8f73096256a8f31e491e813e4eb8e"
UNKNOWN_STRING: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_UNKNOWNS: Final = frozenset(
    {
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        UNKNOWN_STRING,
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "030794c1-ac77-496b-92df-f27374a8bd58",
        "e48ece36-62e2-4504-bad9-02848725956a",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)
_MAX_EXACT_FLOAT: Final = float(2**53)


class Unsupported(Exception):
    """A value that no Kubernetes field can hold: an asset, an archive, or a value with an unknown signature."""


def decode(struct: struct_pb2.Struct) -> Properties:
    """Convert an object from the wire form. Raises Unsupported."""
    return _decode_fields(struct.fields)


def decode_some(struct: struct_pb2.Struct, keys: Collection[str]) -> Properties:
    """Convert only the fields with these keys from the wire form; the others cost nothing. Raises Unsupported."""
    fields = struct.fields
    return {key: _decode_value(fields[key]) for key in keys if key in fields}


def _decode_fields(fields: Any) -> Properties:
    # The items() of a map of protobuf is a generic, slow one.
    return {key: _decode_value(fields[key]) for key in fields}


def _decode_value(value: struct_pb2.Value) -> Any:
    which = value.WhichOneof("kind")
    if which == "string_value":
        text = value.string_value
        return UNKNOWN if text in _UNKNOWNS else text
    if which == "struct_value":
        fields = value.struct_value.fields
        if SIGNATURE_KEY in fields:
            return _decode_signed(fields[SIGNATURE_KEY].string_value, value.struct_value)
        return _decode_fields(fields)
    if which == "list_value":
        return [_decode_value(child) for child in value.list_value.values]
    if which == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= _MAX_EXACT_FLOAT else number
    if which == "bool_value":
        return value.bool_value
    return None


def _decode_signed(signature: str, struct: struct_pb2.Struct) -> Any:
    fields = struct.fields
    if signature == SECRET_SIGNATURE:
        return Secret(_decode_value(fields["value"]))
    if signature == OUTPUT_SIGNATURE:
        value = _decode_value(fields["value"]) if "value" in fields else UNKNOWN
        return Secret(value) if "secret" in fields and fields["secret"].bool_value else value
    if signature == RESOURCE_SIGNATURE:
        return _decode_value(fields["id"] if "id" in fields else fields["urn"])
    raise Unsupported("assets, archives and values of other providers cannot be part of a Kubernetes object")


def encode(properties: Properties) -> struct_pb2.Struct:
    """Convert an object to the wire form, including marks."""
    struct = struct_pb2.Struct()
    _encode_fields(struct.fields, properties)
    return struct


def _encode_fields(fields: Any, properties: Properties) -> None:
    for key, value in properties.items():
        _encode_value(fields[key], value)


def _encode_value(target: struct_pb2.Value, value: Any) -> None:
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, dict):
        # The call makes the value an object even if it has no fields.
        target.struct_value.SetInParent()
        _encode_fields(target.struct_value.fields, value)
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    elif isinstance(value, (list, tuple)):
        target.list_value.SetInParent()
        values = target.list_value.values
        for item in value:
            _encode_value(values.add(), item)
    elif value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif value is UNKNOWN:
        target.string_value = UNKNOWN_STRING
    elif isinstance(value, Secret):
        fields = target.struct_value.fields
        fields[SIGNATURE_KEY].string_value = SECRET_SIGNATURE
        _encode_value(fields["value"], value.value)
    else:
        raise Unsupported(f"a value of type {type(value).__name__} cannot be sent to the engine")
