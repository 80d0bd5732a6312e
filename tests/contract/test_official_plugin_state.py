"""The state that Herdsman's provider writes, compared with a recorded state of Pulumi's Kubernetes plugin.

`official_plugin_state.json` was recorded from a run of the plugin on the program `mixed` of
`tests/engine/test_official_plugin_on_our_stacks.py`. Identifiers and times in it are placeholders. managedFields are
left out, since the plugin does not read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2

from automation.engine.exporting import portable
from components.providers import kubernetes_objects as objects
from components.providers.kubernetes_objects import Token
from components.providers.marshalling import Secret, decode, encode, plain

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "official_plugin_state.json").read_text())
RESOURCES: dict[str, Any] = RECORD["resources"]
OF_STATE = (objects.INPUTS_KEY, objects.INITIAL_VERSION_KEY, objects.FIELD_MANAGER_KEY)


def decoded(properties: dict[str, Any]) -> dict[str, Any]:
    return decode(json_format.ParseDict(properties, struct_pb2.Struct()))


def shape(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and JSON type of each value; a secret value yields the type `secret` as well."""
    if isinstance(value, Secret):
        yield path, "secret"
        yield from shape(value.value, path)
    elif isinstance(value, dict):
        yield path, "object"
        for key, child in value.items():
            yield from shape(child, f"{path}.{key}")
    elif isinstance(value, list):
        yield path, "list"
        for at, child in enumerate(value):
            yield from shape(child, f"{path}[{at}]")
    else:
        yield path, "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize("name", RESOURCES)
def test_outputs_have_the_fields_that_the_plugin_reads(name: str) -> None:
    resource = RESOURCES[name]
    recorded, inputs = decoded(resource["outputs"]), decoded(resource["inputs"])
    live = plain({key: value for key, value in recorded.items() if key not in OF_STATE})
    made = objects.outputs(live, inputs, Token.parse(resource["type"]), "herdsman")
    assert set(shape(made)) == set(shape(recorded))
    assert plain(made[objects.INPUTS_KEY]) == plain(inputs)
    assert made[objects.INITIAL_VERSION_KEY] == recorded[objects.INITIAL_VERSION_KEY]


def test_what_a_secret_holds_is_marked_in_each_copy() -> None:
    resource = RESOURCES["key"]
    recorded = decoded(resource["outputs"])
    live = plain({key: value for key, value in recorded.items() if key not in OF_STATE})
    # A program may pass the data without marking it as secret.
    made = objects.outputs(live, plain(decoded(resource["inputs"])), Token.parse(resource["type"]), "herdsman")
    assert isinstance(made["data"], Secret)
    assert isinstance(made[objects.INPUTS_KEY]["data"], Secret)
    given = {**plain(decoded(resource["inputs"])), "stringData": {"password": "hunter2"}}
    assert isinstance(
        objects.outputs(live, given, Token.parse(resource["type"]), "herdsman")["__inputs"]["stringData"], Secret
    )
    marks = json_format.MessageToJson(encode(made)).count("1b47061264138c4ac30d75fd1eb44270")
    assert marks == 2, "on the wire each copy has its mark"


@pytest.mark.parametrize("name", [name for name in RESOURCES if name != "key"])
def test_an_export_of_the_loop_has_the_fields_that_the_plugin_compares(name: str) -> None:
    resource = RESOURCES[name]
    metadata = {"name": name, "namespace": "recorded", "uid": "u-1"}
    identity = {**{key: resource["outputs"][key] for key in ("apiVersion", "kind")}, "metadata": metadata}
    of_loop = {
        "urn": f"urn:pulumi:recorded::herdsman::{resource['type']}::{name}",
        "type": resource["type"],
        "inputs": resource["inputs"],
        "outputs": {**identity, "__fieldManager": "herdsman"},
    }
    exported = portable({"version": 3, "deployment": {"resources": [of_loop]}})["deployment"]["resources"][0]
    outputs = exported["outputs"]
    assert exported["protect"] is True
    for key in OF_STATE:
        assert key in outputs
    assert outputs["__inputs"] == resource["inputs"]
    assert outputs["metadata"] == {**resource["inputs"]["metadata"], **metadata}
    # The plugin compares the new inputs with those outputs that the last inputs name.
    assert {key: outputs[key] for key in resource["inputs"] if key != "metadata"} == {
        key: value for key, value in resource["inputs"].items() if key != "metadata"
    }
