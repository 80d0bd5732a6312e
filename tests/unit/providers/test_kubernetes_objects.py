"""The provider's type tokens, generated names, request bodies and outputs."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from components.providers import kubernetes_objects as objects
from components.providers.kubernetes_objects import Identity, NotSupported, Token
from components.providers.marshalling import UNKNOWN, Secret

CONFIG = Token("v1", "ConfigMap")
SECRET = Token("v1", "Secret")


@pytest.mark.parametrize(
    ("text", "api_version", "kind"),
    [
        ("kubernetes:core/v1:Service", "v1", "Service"),
        ("kubernetes:apps/v1:Deployment", "apps/v1", "Deployment"),
        ("kubernetes:herdsman.dev/v1alpha1:HostProcess", "herdsman.dev/v1alpha1", "HostProcess"),
        ("kubernetes:example.com/v1:Patch", "example.com/v1", "Patch"),
    ],
)
def test_type_tokens_name_an_api_version_and_a_kind(text: str, api_version: str, kind: str) -> None:
    assert Token.parse(text) == Token(api_version, kind)


@pytest.mark.parametrize(
    "text",
    [
        "kubernetes:core/v1:ServiceList",
        "kubernetes:core/v1:ServicePatch",
        "kubernetes:helm.sh/v3:Release",
        "kubernetes:helm.sh/v4:Chart",
        "kubernetes:yaml/v2:ConfigFile",
        "kubernetes:kustomize/v2:Directory",
        "kubernetes:Service",
        "kubernetes::Service",
        "kubernetes:core/v1:",
    ],
)
def test_tokens_of_what_is_no_single_object_are_refused(text: str) -> None:
    with pytest.raises(NotSupported, match=f"`{text}`"):
        Token.parse(text)


def test_made_up_names_are_valid_short_and_follow_the_seed() -> None:
    one = objects.auto_name("My_App/x", b"seed")
    assert one.startswith("my-app-x-")
    assert one == objects.auto_name("My_App/x", b"seed")
    assert one != objects.auto_name("My_App/x", b"other")
    assert len(objects.auto_name("x" * 100, b"seed")) == objects.MAX_NAME
    assert objects.auto_name("x", b"seed", "job-").startswith("job-")
    assert objects.auto_name("___", b"seed")[0] != "-"


def test_ids_name_the_namespace_where_there_is_one() -> None:
    assert Identity("ns", "a").id == "ns/a"
    assert Identity(None, "a").id == "a"
    assert Identity.parse("ns/a", namespaced=True) == Identity("ns", "a")
    assert Identity.parse("a", namespaced=True) == Identity("default", "a")
    assert Identity.parse("a", namespaced=False) == Identity(None, "a")


def test_a_body_holds_no_marks_nulls_or_fields_of_the_server() -> None:
    inputs: dict[str, Any] = {
        "metadata": {"name": "x", "uid": "1", "resourceVersion": "2", "labels": {"a": None, "b": "c"}},
        "data": Secret({"k": "v"}),
        "immutable": None,
        "__fieldManager": "somebody",
    }
    assert objects.body(inputs, CONFIG) == {"metadata": {"name": "x", "labels": {"b": "c"}}, "data": {"k": "v"}}


def test_the_string_data_of_a_secret_becomes_data() -> None:
    inputs = {"metadata": {"name": "x"}, "stringData": Secret({"a": "ü", "b": "2"}), "data": {"b": "AA==", "c": "BB=="}}
    ue, two = (base64.b64encode(text.encode()).decode() for text in ("ü", "2"))
    assert objects.body(inputs, SECRET)["data"] == {"a": ue, "b": two, "c": "BB=="}
    assert "stringData" not in objects.body(inputs, SECRET)
    assert "stringData" in objects.body(inputs, Token("example.com/v1", "Secret"))


def live(**metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "uid": "1", "managedFields": [{}], "creationTimestamp": "t", **metadata},
        "data": {"a": "1", "b": "2"},
    }


def test_outputs_are_the_live_object_with_the_inputs_secrets() -> None:
    inputs = {"data": {"a": Secret("1"), "b": "2"}}
    shaped = objects.outputs(live(), inputs, CONFIG, "me")
    assert shaped["data"] == {"a": Secret("1"), "b": "2"}
    assert shaped["metadata"] == {"name": "x", "uid": "1", "creationTimestamp": "t"}
    assert shaped[objects.FIELD_MANAGER_KEY] == "me"
    assert objects.FIELD_MANAGER_KEY not in objects.outputs(live(), inputs, CONFIG, None)


def test_an_identity_is_enough_to_find_the_very_same_object() -> None:
    assert objects.identity_outputs(live(namespace="n", resourceVersion="5"), "me") == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "n", "uid": "1"},
        objects.FIELD_MANAGER_KEY: "me",
    }


def test_what_a_secret_holds_is_secret_whoever_wrote_it() -> None:
    annotations = {objects.LAST_APPLIED_ANNOTATION: "{}", "kept": "1"}
    shaped = objects.outputs(live(annotations=annotations), {}, SECRET, None)
    assert shaped["data"] == Secret({"a": "1", "b": "2"})
    assert shaped["metadata"]["annotations"] == {"kept": "1"}


def test_a_planned_object_has_no_identity_yet() -> None:
    dry = {**live(), "spec": {"clusterIP": "10.0.0.0", "clusterIPs": ["10.0.0.0"], "type": "ClusterIP"}}
    shaped = objects.planned_outputs(dry, {"spec": {"type": "ClusterIP"}}, Token("v1", "Service"), "me")
    assert shaped["metadata"]["uid"] is UNKNOWN
    assert shaped["metadata"]["name"] == "x"
    assert shaped["spec"] == {"clusterIP": UNKNOWN, "clusterIPs": UNKNOWN, "type": "ClusterIP"}
    given = objects.planned_outputs(dry, {"spec": {"clusterIP": "10.0.0.0"}}, Token("v1", "Service"), "me")
    assert given["spec"]["clusterIP"] == "10.0.0.0"


def test_imported_inputs_are_what_a_person_would_have_written() -> None:
    annotations = {objects.LAST_APPLIED_ANNOTATION: "{}"}
    inputs = objects.imported_inputs({**live(annotations=annotations), "status": {"x": 1}}, CONFIG)
    assert inputs == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x"},
        "data": {"a": "1", "b": "2"},
    }


def test_adoption_is_asked_for_by_annotation() -> None:
    assert objects.adoption_asked({"metadata": {"annotations": {"herdsman.dev/adopt": "true"}}})
    assert not objects.adoption_asked({"metadata": {"annotations": {"herdsman.dev/adopt": "false"}}})
    assert not objects.adoption_asked({"metadata": {}})


def test_a_namespace_left_out_is_the_one_the_object_came_to_be_in() -> None:
    identity = Identity("default", "x")
    assert objects.comparable({"metadata": {"name": "x"}}, identity)["metadata"]["namespace"] == "default"
    assert objects.comparable({"metadata": {"name": "x", "namespace": "n"}}, identity)["metadata"]["namespace"] == "n"
    assert "namespace" not in objects.comparable({"metadata": {"name": "x"}}, Identity(None, "x"))["metadata"]


def test_replicas_are_given_up_only_when_they_were_set() -> None:
    assert objects.gives_up_replicas({"spec": {"replicas": 2}}, {"spec": {}})
    assert not objects.gives_up_replicas({"spec": {}}, {"spec": {}})
    assert not objects.gives_up_replicas({"spec": {"replicas": 2}}, {"spec": {"replicas": 3}})
