"""Values of the harness that plays the engine: secrets, unknowns and ignoreChanges."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from tests.support.wire.resources import Resource, read, urn_of, written
from tests.support.wire.values import (
    OUTPUT,
    SIGNATURE,
    UNKNOWN,
    Vault,
    from_wire,
    has_unknown,
    ignoring,
    is_secret,
    revealed,
    secret,
    to_wire,
)


def test_values_pass_the_wire_unchanged() -> None:
    values = {"a": 1, "b": 1.5, "c": [True, None, "x", {}], "d": {"e": []}, "f": secret({"g": "h"}), "u": UNKNOWN}
    assert from_wire(to_wire(values)) == values


def test_output_values_become_what_a_provider_without_outputs_gets() -> None:
    struct = Struct()
    struct.update(
        {
            "known": {SIGNATURE: OUTPUT, "value": "a", "dependencies": ["urn"]},
            "unknown": {SIGNATURE: OUTPUT},
            "secret": {SIGNATURE: OUTPUT, "value": "b", "secret": True},
        }
    )
    assert from_wire(struct) == {"known": "a", "unknown": UNKNOWN, "secret": secret("b")}
    assert has_unknown(from_wire(struct))


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("a", {"a": {"x": 1, "y": [1, 2]}, "new": 1}),
        ("a.x", {"a": {"x": 1, "z": 9}, "new": 1}),
        ('["a"]["z"]', {"a": {"x": 2}, "new": 1}),
        ("a.y[0]", {"a": {"x": 2, "z": 9}, "new": 1}),
        ("new", {"a": {"x": 2, "z": 9}}),
        ("nowhere.b", {"a": {"x": 2, "z": 9}, "new": 1}),
    ],
)
def test_ignored_paths_have_the_values_of_before(path: str, after: dict[str, Any]) -> None:
    before, wanted = {"a": {"x": 1, "y": [1, 2]}}, {"a": {"x": 2, "z": 9}, "new": 1}
    assert ignoring(wanted, before, [path]) == after


def test_a_state_keeps_its_resources_and_hides_their_secrets() -> None:
    vault = Vault()
    urn = urn_of("p", "dev", "urn:pulumi:dev::p::my:index:Component::c", "kubernetes:core/v1:Secret", "key")
    assert urn == "urn:pulumi:dev::p::my:index:Component$kubernetes:core/v1:Secret::key"
    kept = Resource(urn, "kubernetes:core/v1:Secret", inputs={"data": secret({"password": "hunter2"})})
    text = written([kept], vault)
    assert "hunter2" not in text
    assert read(text, vault) == [kept]
    assert is_secret(kept.inputs["data"]) and revealed(kept.inputs) == {"data": {"password": "hunter2"}}
