"""Variables in arguments, and the merge of a Playground's settings with its runtime's recommended ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.desired.errors import SpecInvalid
from program.dialects.llmaz.dialect import PLAYGROUNDS
from program.dialects.llmaz.parse.models import Claim, find_models
from program.dialects.llmaz.parse.runtimes import (
    fill,
    limit_below_request,
    merged_env,
    merged_resources,
    variables_of,
    with_limits,
)
from tests.unit.dialects.llmaz.objects import Cluster, open_model, playground

VARIABLES = {"ModelPath": "/workspace/models/x", "ModelName": "m", "TP": "2", "Empty": ""}


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("{{ .ModelPath }}", "/workspace/models/x"),
        ("{{.ModelName}}", "m"),
        ("{{   .ModelName }}", "m"),
        ("--alias={{ .ModelName }}/{{.ModelName}}", "--alias=m/m"),
        ("{{ .TP }}", "2"),
        # llmaz does not replace these, so Herdsman does not either.
        ("{{ ModelName }}", "{{ ModelName }}"),
        ("{ .ModelName }", "{ .ModelName }"),
        ("plain", "plain"),
    ],
)
def test_variables_are_filled_in(argument: str, filled: str) -> None:
    assert fill([argument], VARIABLES, field="args") == [filled]


@pytest.mark.parametrize("name", ["TensorParallel", "DraftModelPath", "Empty"])
def test_a_variable_without_a_value_is_an_error_that_names_those_that_have_one(name: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        fill(["--x", f"{{{{ .{name} }}}}"], VARIABLES, field="args")
    assert raised.value.field == "args"
    assert f"{{{{ .{name} }}}}" in raised.value.why
    assert "ModelName, ModelPath, TP" in raised.value.why


def test_variables_are_those_of_the_models_and_of_the_flavor() -> None:
    cluster = Cluster(open_model("m"), open_model("d"), open_model("o", uri="ollama://qwen2:0.5b"))
    main, draft, ollama = find_models(
        [Claim("m", "main", "f"), Claim("d", "draft", "f"), Claim("o", "main", "f")], cluster
    )
    assert variables_of((main, draft), {"TP": "4", "ModelName": "not this"}, fetched=True) == {
        "TP": "4",
        "ModelPath": "/workspace/models/models--acme--m",
        "ModelName": "m",
        "DraftModelPath": "/workspace/models/models--acme--d",
    }
    assert variables_of((main,), {}, fetched=False)["ModelPath"] == "acme/m"
    assert variables_of((ollama,), {}, fetched=True)["ModelName"] == "qwen2:0.5b"


def test_the_later_environment_wins_at_the_place_of_the_earlier() -> None:
    ours = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    theirs = [{"name": "C", "value": "3"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    assert merged_env(ours, theirs) == [
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "B", "value": "2"},
        {"name": "C", "value": "3"},
    ]


@given(st.lists(st.sampled_from("ABCDE")), st.lists(st.sampled_from("ABCDE")))
def test_merged_environments_have_each_name_once_and_always_in_one_order(first: list[str], second: list[str]) -> None:
    def named(names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "value": str(index)} for index, name in enumerate(names)]

    merged = merged_env(named(first), named(second))
    names = [variable["name"] for variable in merged]
    assert names == list(dict.fromkeys([*first, *second]))
    assert merged == merged_env(named(first), named(second))


RECOMMENDED = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}


@pytest.mark.parametrize(
    ("own", "requests", "limits"),
    [
        ({}, {"cpu": "4", "memory": "8Gi"}, {"cpu": "4", "memory": "8Gi"}),
        # A number of the user takes precedence over the recommended one.
        ({"requests": {"cpu": "10"}}, {"cpu": "10", "memory": "8Gi"}, {"cpu": "10", "memory": "8Gi"}),
        ({"limits": {"memory": "4Gi"}}, {"cpu": "4", "memory": "4Gi"}, {"cpu": "4", "memory": "4Gi"}),
        ({"requests": {"cpu": "500m"}}, {"cpu": "500m", "memory": "8Gi"}, {"cpu": "4", "memory": "8Gi"}),
        ({"limits": {"cpu": 6}}, {"cpu": "4", "memory": "8Gi"}, {"cpu": "6", "memory": "8Gi"}),
        (
            {"limits": {"nvidia.com/gpu": 1}},
            {"cpu": "4", "memory": "8Gi"},
            {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"},
        ),
    ],
)
def test_resources_are_joined(own: dict[str, Any], requests: dict[str, str], limits: dict[str, str]) -> None:
    assert merged_resources(own, RECOMMENDED) == {"requests": requests, "limits": limits}


def test_nothing_asked_for_is_nothing() -> None:
    assert merged_resources({}, {}) == {}


def test_limits_of_a_flavor_are_requests_as_well() -> None:
    assert with_limits({"requests": {"cpu": "1"}, "claims": []}, {"nvidia.com/gpu": "2"}) == {
        "requests": {"cpu": "1", "nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
        "claims": [],
    }
    assert with_limits({"requests": {"cpu": "1"}}, {}) == {"requests": {"cpu": "1"}}


def test_a_limit_below_its_request_is_found() -> None:
    assert limit_below_request({"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "1025Mi"}}) == "memory"
    assert limit_below_request({"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}}) == ""
    assert limit_below_request({}) == ""


def test_a_variable_in_a_playgrounds_own_arguments_is_handed_on_and_told() -> None:
    own = ["{{ .ModelPath }}", "--chat-template={{ .messages }}", "plain", "--tp={{ .TP }}"]
    parsed = PLAYGROUNDS.parse(
        playground(backendRuntimeConfig={"args": own}),
        Cluster(open_model(flavors=[{"name": "a", "params": {"TP": "2"}}])),
    )
    assert parsed.desired.workloads is not None
    assert parsed.desired.workloads.main.template["spec"]["containers"][0]["args"][-4:] == own
    told = {problem.field: problem.message for problem in parsed.unsupported}
    # `{{ .messages }}` is not reported, since it is no variable of llmaz.
    assert list(told) == ["spec.backendRuntimeConfig.args[0]", "spec.backendRuntimeConfig.args[3]"]
    assert "`{{ .TP }}` is passed to the engine unchanged" in told["spec.backendRuntimeConfig.args[3]"]
