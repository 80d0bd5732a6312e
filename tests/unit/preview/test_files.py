"""The input of a preview: the body that kubectl would send, sources without secrets, the loop's options, and fields of
other controllers.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automation.preview.custom_resources import three_way
from automation.preview.dry_run import without_left_behind
from automation.preview.loop_options import RENDERED_BY, settings_of
from automation.settings import Settings
from kubeapi.json_types import Json
from program.desired.web_address import shown

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
documents = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), scalars | st.lists(scalars, max_size=2), max_size=4),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner | scalars, max_size=4),
    max_leaves=8,
)


def merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch as RFC 7386 defines it."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    return value


@given(documents, documents, documents)
def test_after_the_patch_all_that_is_wanted_stands_there(before: Json, wanted: Json, live: Json) -> None:
    after = merged(live, three_way(before, wanted, live))

    def covers(value: Any, asked: Any) -> bool:
        if isinstance(asked, dict) and isinstance(value, dict):
            return all(covers(value.get(key), child) for key, child in asked.items())
        return bool(value == asked)

    assert covers(without_nulls(after), without_nulls(wanted))


@given(documents, documents)
def test_a_file_that_says_what_stands_there_changes_nothing(wanted: Json, others: Json) -> None:
    wanted = without_nulls(wanted)
    live = {**{key: value for key, value in without_nulls(others).items() if key not in wanted}, **wanted}
    assert three_way(wanted, wanted, live) == {}


def test_what_was_in_the_file_and_is_not_any_more_goes_and_what_others_wrote_stays() -> None:
    before = {"spec": {"replicas": 2, "contextSize": 1, "endpoint": {"port": 1}}}
    live = {"spec": {"replicas": 2, "contextSize": 1, "endpoint": {"port": 1, "path": "/x"}, "priority": "high"}}
    wanted = {"spec": {"replicas": 3, "endpoint": {}}}
    assert three_way(before, wanted, live) == {"spec": {"contextSize": None, "replicas": 3, "endpoint": {"port": None}}}


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("https://user:secret@example.com/m.gguf?sig=secret#secret", "https://example.com/m.gguf"),
        ("hf://org/repo@main/file.gguf", "hf://org/repo@main/file.gguf"),
        ("org/repo", "org/repo"),
        ("/srv/models/m.gguf", "/srv/models/m.gguf"),
        ("s3://bucket/key?versionId=1", "s3://bucket/key"),
    ],
)
def test_a_source_is_told_without_what_may_be_a_secret(address: str, told: str) -> None:
    assert shown(address) == told


def test_the_settings_of_a_loop_are_read_off_its_deployment() -> None:
    env = [
        {"name": "HERDSMAN_HUB_URL", "value": "https://hub.example"},
        {"name": "HERDSMAN_STATE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "PATH", "value": "/bin"},
    ]
    deployment = {"spec": {"template": {"spec": {"containers": [{"name": "loop", "env": env}]}}}}
    assert settings_of(deployment) == {"HUB_URL": "https://hub.example"}
    assert settings_of({}) == {}
    assert {name.lower() for name in RENDERED_BY} <= set(Settings.model_fields)


def test_what_another_controller_left_behind_goes_and_defaults_and_others_stay() -> None:
    theirs = {
        "f:metadata": {"f:labels": {"f:app": {}, "f:peer": {}, "f:both": {}}, "f:ownerReferences": {}},
        "f:spec": {
            "f:progressDeadlineSeconds": {},
            "f:template": {"f:spec": {"f:containers": {'k:{"name":"old"}': {}, 'k:{"name":"main"}': {"f:image": {}}}}},
        },
    }
    live: Json = {
        "metadata": {
            "labels": {"app": "a", "peer": "x", "both": "y", "hand": "z"},
            "ownerReferences": [{"uid": "1", "controller": True}],
            "managedFields": [
                {"manager": "peer", "operation": "Update", "fieldsV1": theirs},
                {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:both": {}}}}},
            ],
        },
        "spec": {
            "progressDeadlineSeconds": 600,
            "template": {"spec": {"containers": [{"name": "old"}, {"name": "main", "image": "i"}]}},
        },
    }
    wanted = {"metadata": {"labels": {"app": "a"}}, "spec": {"template": {"spec": {"containers": [{"name": "main"}]}}}}
    after = without_left_behind(copy.deepcopy(live), live, wanted, "herdsman")
    assert after["metadata"]["labels"] == {"app": "a", "both": "y", "hand": "z"}
    assert after["spec"]["progressDeadlineSeconds"] == 600
    assert [each["name"] for each in after["spec"]["template"]["spec"]["containers"]] == ["main"]
    ours = {"manager": "herdsman", "operation": "Apply", "fieldsV1": {}}
    live["metadata"]["managedFields"].append(ours)
    assert without_left_behind(live, live, wanted, "herdsman") == live
