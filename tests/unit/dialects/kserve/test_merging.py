"""The merge of a service with its base configs, and of base configs with presets."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.configuration.merge import merged

pytestmark = pytest.mark.slow


def pod(*containers: Json, **fields: Any) -> Json:
    return {"template": {"containers": list(containers), **fields}}


def main(**fields: Any) -> Json:
    return {"name": "main", **fields}


Y: Json = {"mountPath": "/b", "name": "y"}


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        pytest.param({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}, id="fields merge"),
        pytest.param({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}, id="objects merge"),
        pytest.param({"a": 1}, {"a": None}, {"a": 1}, id="null says nothing"),
        pytest.param({"a": "x"}, {"a": ""}, {"a": "x"}, id="an empty text says nothing"),
        pytest.param({"args": ["x"]}, {"args": []}, {"args": ["x"]}, id="an empty list says nothing"),
        pytest.param({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}, id="an empty object sets none of its fields"),
        pytest.param({}, {"prefill": {}}, {"prefill": {}}, id="an empty object is a choice"),
        pytest.param({"replicas": 3}, {"replicas": 0}, {"replicas": 0}, id="no replicas are a number of replicas"),
        pytest.param({"enabled": True}, {"enabled": False}, {"enabled": False}, id="false is an answer"),
        pytest.param(
            {"livenessProbe": {"httpGet": {"path": "/"}, "initialDelaySeconds": 5, "periodSeconds": 1}},
            {"livenessProbe": {"initialDelaySeconds": 0, "periodSeconds": 7}},
            {"livenessProbe": {"httpGet": {"path": "/"}, "initialDelaySeconds": 5, "periodSeconds": 7}},
            id="zeros that are no answer",
        ),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"a": "", "b": ""}}, {"labels": {"a": "", "b": ""}}, id="maps"),
        pytest.param({"args": ["a", "b"]}, {"args": ["c"]}, {"args": ["c"]}, id="args are replaced"),
        pytest.param(
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
            id="as are tolerations",
        ),
        pytest.param(
            pod(main(image="i", args=["x"])),
            pod(main(args=["y"]), {"name": "side", "image": "s"}),
            pod({"name": "side", "image": "s"}, main(image="i", args=["y"])),
            id="containers that only the upper one has come first",
        ),
        pytest.param(
            pod(main(image="i")), {"template": {"containers": None}}, pod(main(image="i")), id="no containers"
        ),
        pytest.param(
            pod(main(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])),
            pod(main(env=[{"name": "B", "value": "3"}, {"name": "C", "value": "4"}])),
            pod(main(env=[{"name": "C", "value": "4"}, {"name": "A", "value": "1"}, {"name": "B", "value": "3"}])),
            id="env by name",
        ),
        pytest.param(
            pod(main(env=[{"name": "A", "value": "1"}])),
            pod(main(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])),
            pod(main(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])),
            id="a variable has one value",
        ),
        pytest.param(
            pod(main(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])),
            pod(main(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])),
            pod(main(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])),
            id="a variable has one source",
        ),
        pytest.param(
            pod(main(ports=[{"containerPort": 8000, "protocol": "TCP"}])),
            pod(main(ports=[{"containerPort": 8000, "name": "http"}, {"containerPort": 8000, "protocol": "UDP"}])),
            pod(
                main(
                    ports=[
                        {"containerPort": 8000, "protocol": "UDP"},
                        {"containerPort": 8000, "protocol": "TCP", "name": "http"},
                    ]
                )
            ),
            id="ports by number and protocol",
        ),
        pytest.param(
            pod(
                main(
                    volumeMounts=[{"mountPath": "/a", "name": "x", "readOnly": True}, {"mountPath": "/b", "name": "y"}]
                )
            ),
            pod(main(volumeMounts=[{"mountPath": "/a", "name": "z", "readOnly": False}])),
            pod(
                main(
                    volumeMounts=[{"mountPath": "/a", "name": "z", "readOnly": True}, {"mountPath": "/b", "name": "y"}]
                )
            ),
            id="mounts by path",
        ),
        pytest.param(
            pod(main(readinessProbe={"httpGet": {"path": "/"}, "periodSeconds": 1})),
            pod(main(readinessProbe={"exec": {"command": ["true"]}})),
            pod(main(readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 1})),
            id="a probe has one handler",
        ),
        pytest.param(
            pod(main(lifecycle={"preStop": {"exec": {"command": ["x"]}}})),
            pod(main(lifecycle={"preStop": {"sleep": {"seconds": 5}}})),
            pod(main(lifecycle={"preStop": {"sleep": {"seconds": 5}}})),
            id="so has a hook",
        ),
        pytest.param(
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            id="a volume is of one kind",
        ),
        pytest.param(
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
            id="and may be told more of",
        ),
        pytest.param(
            {"replicas": 3},
            {"scaling": {"maxReplicas": 4}},
            {"scaling": {"maxReplicas": 4}},
            id="scaling is for replicas",
        ),
        pytest.param(
            {"prefill": {"scaling": {"wva": {"hpa": {}}}}},
            {"prefill": {"scaling": {"keda": {}}}},
            {"prefill": {"scaling": {"keda": {}}}},
            id="by one thing",
        ),
        pytest.param(
            {"route": {"http": {"spec": {"rules": [1]}}}},
            {"route": {"http": {"refs": [{"name": "r"}]}}},
            {"route": {"http": {"refs": [{"name": "r"}]}}},
            id="routes of the user replace the preset's",
        ),
        pytest.param(
            {"config": {"inline": {"plugins": [1], "x": 1}}},
            {"config": {"inline": {"plugins": [2]}}},
            {"config": {"inline": {"plugins": [2]}}},
            id="a document is whole",
        ),
        pytest.param(
            {"spec": {"endpointPickerRef": {"name": "a", "failureMode": "FailOpen"}}},
            {"spec": {"endpointPickerRef": {"name": "b"}}},
            {"spec": {"endpointPickerRef": {"name": "b"}}},
            id="so is a reference",
        ),
        pytest.param(
            pod(main()),
            pod(main(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])),
            pod(main(env=[{"name": "A", "value": "2"}])),
            id="the last of a name",
        ),
    ],
)
def test_merging(base: Json, over: Json, expected: Json) -> None:
    before = copy.deepcopy((base, over))
    assert merged(base, over) == expected
    assert (base, over) == before


@pytest.mark.parametrize(
    ("over", "field"),
    [
        (pod({"image": "x"}), "spec.template.containers[0]"),
        (pod({"name": "", "image": "x"}), "spec.template.containers[0]"),
        (pod(main(), "main"), "spec.template.containers[1]"),  # type: ignore[arg-type]
        (pod(main(ports=[{"name": "http"}])), "spec.template.containers[0].ports[0]"),
        (pod(volumes=[None]), "spec.template.volumes[0]"),
    ],
)
def test_members_without_a_name(over: Json, field: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        merged(pod(main(image="i")), over)
    assert raised.value.reason == "CombineBaseError"
    assert raised.value.field.startswith(field)


def test_nesting_has_an_end() -> None:
    deep: Json = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(SpecInvalid, match="nested"):
        merged({}, deep)


WORDS = st.sampled_from(["containers", "env", "name", "volumes", "httpGet", "readinessProbe", "labels", "a", "ports"])
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.text("ab{", max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=12,
)
OBJECTS = st.dictionaries(WORDS, JUNK, max_size=4)


@given(OBJECTS, OBJECTS)
@settings(max_examples=200, deadline=None)
def test_whatever_is_merged_ends_in_an_object_or_a_named_field(base: Json, over: Json) -> None:
    before = copy.deepcopy((base, over))
    with contextlib.suppress(SpecInvalid):
        assert isinstance(merged(base, over), dict)
    assert merged(base, {}) == base
    assert (base, over) == before


@given(OBJECTS)
@settings(max_examples=100, deadline=None)
def test_merging_the_same_again_changes_nothing(over: Json) -> None:
    try:
        once = merged({}, over)
    except SpecInvalid:
        return
    assert merged(once, over) == once
