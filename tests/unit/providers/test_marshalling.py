"""Properties are converted to and from the wire format, with unknown and secret values."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from components.providers.kubernetes_objects import cleaned, plain_cleaned
from components.providers.marshalling import (
    OUTPUT_SIGNATURE,
    RESOURCE_SIGNATURE,
    SECRET_SIGNATURE,
    SIGNATURE_KEY,
    UNKNOWN,
    UNKNOWN_STRING,
    Secret,
    Unsupported,
    decode,
    decode_some,
    encode,
    has_secret,
    has_unknown,
    marked_like,
    plain,
    secret_texts,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.just(UNKNOWN)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
)
keys = st.text(min_size=1, max_size=6)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4) | inner.map(Secret),
    max_leaves=20,
)


@given(st.dictionaries(keys, values, max_size=5))
@pytest.mark.slow
def test_properties_survive_the_wire(properties: dict[str, Any]) -> None:
    wire = encode(properties).SerializeToString()
    assert decode(struct_pb2.Struct.FromString(wire)) == properties


@given(values)
def test_plain_values_hold_no_marks(value: Any) -> None:
    assert not has_secret(plain(value))
    assert has_unknown(plain(value)) == has_unknown(value)


@given(values)
def test_a_value_marked_like_itself_is_itself(value: Any) -> None:
    assert plain(marked_like(plain(value), value)) == plain(value)
    assert has_secret(marked_like(plain(value), value)) == has_secret(value)


@given(st.dictionaries(keys, values, max_size=5))
def test_some_fields_are_decoded_as_all_are(properties: dict[str, Any]) -> None:
    struct = encode(properties)
    some = [*list(properties)[::2], "made-up"]
    whole = decode(struct)
    assert decode_some(struct, some) == {key: whole[key] for key in some if key in whole}


@given(st.dictionaries(keys, values, max_size=5))
def test_inputs_are_cleaned_in_one_pass_as_in_two(properties: dict[str, Any]) -> None:
    assert plain_cleaned(properties) == cleaned(plain(properties))


def test_secret_nulls_are_removed_as_others() -> None:
    assert plain_cleaned({"a": Secret(None), "b": [None, {"c": None}], "d": {"__e": 1}, "__f": 1}) == {
        "b": [None, {}],
        "d": {"__e": 1},
    }


def test_whole_numbers_are_integers_and_truth_is_no_number() -> None:
    decoded = decode(encode({"a": 3, "b": 3.0, "c": 3.5, "d": True}))
    assert {key: type(value) for key, value in decoded.items()} == {"a": int, "b": int, "c": float, "d": bool}


def test_empty_objects_and_lists_keep_their_kind() -> None:
    assert decode(encode({"object": {}, "list": [], "null": None})) == {"object": {}, "list": [], "null": None}


def test_the_wire_carries_the_signatures_of_the_engine() -> None:
    fields = encode({"s": Secret("x"), "u": UNKNOWN}).fields
    assert fields["u"].string_value == UNKNOWN_STRING
    assert fields["s"].struct_value.fields[SIGNATURE_KEY].string_value == SECRET_SIGNATURE
    assert fields["s"].struct_value.fields["value"].string_value == "x"


def test_outputs_and_resources_become_their_values() -> None:
    struct = struct_pb2.Struct()
    struct.update(
        {
            "known": {SIGNATURE_KEY: OUTPUT_SIGNATURE, "value": 1.0},
            "unknown": {SIGNATURE_KEY: OUTPUT_SIGNATURE},
            "secret": {SIGNATURE_KEY: OUTPUT_SIGNATURE, "value": "x", "secret": True},
            "resource": {SIGNATURE_KEY: RESOURCE_SIGNATURE, "urn": "urn:x", "id": "ns/name"},
        }
    )
    assert decode(struct) == {"known": 1, "unknown": UNKNOWN, "secret": Secret("x"), "resource": "ns/name"}


def test_assets_are_refused() -> None:
    struct = struct_pb2.Struct()
    struct.update({"file": {SIGNATURE_KEY: "c44067f5952c0a294b673a41bacd8c17", "text": "x"}})
    with pytest.raises(Unsupported, match="assets"):
        decode(struct)


def test_a_list_whose_length_changed_is_secret_as_a_whole() -> None:
    model = {"env": [{"value": Secret("x")}], "open": 1}
    assert marked_like({"env": [{"value": "y"}], "open": 2}, model) == {"env": [{"value": Secret("y")}], "open": 2}
    assert marked_like({"env": [{"value": "y"}, {}], "open": 2}, model) == {
        "env": Secret([{"value": "y"}, {}]),
        "open": 2,
    }


def test_secret_texts_are_found_at_any_depth_and_never_shown() -> None:
    value = {"a": Secret({"b": ["deep", 1]}), "c": "open", "d": [Secret("flat")]}
    assert sorted(secret_texts(value)) == ["deep", "flat"]
    assert "deep" not in repr(value)
