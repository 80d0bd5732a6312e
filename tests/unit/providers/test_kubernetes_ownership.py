"""The owners of objects and fields, read from managedFields as the API server writes them."""

from __future__ import annotations

from typing import Any

import pytest

from components.providers.kubernetes_diff import MISSING, path_text
from components.providers.kubernetes_ownership import drift, managers_words, owner_of, owns, writer_of
from components.providers.kubernetes_records import inherited

ME = "herdsman"


def live(fields: dict[str, Any] | None, body: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return an object whose managedFields record that the provider applied `fields`; None: no record."""
    record = {"manager": ME, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}
    managed = metadata.pop("managedFields", [] if fields is None else [record])
    return {**(body or {}), "metadata": {"name": "x", "managedFields": managed, **metadata}}


def entry(manager: str, operation: str = "Update", subresource: str = "") -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "subresource": subresource, "fieldsV1": {}}


def held_by(name: str, uid: str, kind: str = "InferenceService", api: str = "a.dev/v1") -> dict[str, Any]:
    reference = {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}
    return {"metadata": {"name": "x", "ownerReferences": [reference]}}


def references(obj: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = obj["metadata"]["ownerReferences"]
    return found


@pytest.mark.parametrize(
    ("held", "wanted", "applied", "ours"),
    [
        (None, None, True, True),
        (None, None, False, False),
        (None, held_by("a", "1"), True, True),
        (held_by("a", "1"), held_by("a", "1"), False, True),
        (held_by("a", "1"), held_by("a", "2"), True, True),
        (held_by("a", "1"), held_by("a", "2"), False, False),
        (held_by("a", "1"), held_by("a", "2", api="a.dev/v2"), True, True),
        (held_by("a", "1"), held_by("a", "2", api="b.dev/v1"), True, False),
        (held_by("a.b", "1"), held_by("a-b", "2"), True, False),
        (held_by("a", "1"), None, True, False),
    ],
)
def test_an_object_is_ours_by_its_controller_or_by_our_record(
    held: dict[str, Any] | None, wanted: dict[str, Any] | None, applied: bool, ours: bool
) -> None:
    obj = live({} if applied else None, **({"ownerReferences": references(held)} if held else {}))
    assert owner_of(obj, wanted or {}, ME).ours is ours


@pytest.mark.parametrize(
    ("uid", "labels", "ours"),
    [
        ("1", {"herdsman.dev/host": "studio"}, True),
        ("2", {"herdsman.dev/host": "studio"}, False),
        ("1", {}, False),
    ],
)
def test_what_leads_to_a_host_for_the_same_service_is_ours(uid: str, labels: dict[str, str], ours: bool) -> None:
    owner = {"apiVersion": "a.dev/v1", "kind": "InferenceService", "name": "a", "uid": uid}
    found = live(None, managedFields=[entry("agent", "Apply")], labels=labels, ownerReferences=[owner])
    assert owner_of(found, held_by("a", "1"), ME).ours is ours


def test_our_name_on_an_update_or_a_status_is_no_apply() -> None:
    records = [entry(ME, "Update"), entry(ME, "Apply", "status"), entry("other")]
    owner = owner_of(live(None, managedFields=records), {}, ME)
    assert not owner.ours
    assert owner.words == "field managers `herdsman`, `other`"


def test_owners_are_named() -> None:
    assert managers_words(live(None, managedFields=[entry("kubectl", subresource="status"), entry("helm")])) == (
        "field manager `helm`"
    )
    assert managers_words(live(None, managedFields=[entry("kubectl", subresource="status")])) == (
        "field manager `kubectl`"
    )
    assert "unknown writer" in managers_words(live(None))
    assert owner_of(live({}, **held_by("a", "1")["metadata"]), {}, ME).words == "controller InferenceService `a`"


def drifts(wanted: dict[str, Any], obj: dict[str, Any]) -> dict[str, Any]:
    return {path_text(found.path): found.live for found in drift(wanted, obj, ME)}


def test_what_is_recorded_as_ours_did_not_drift_however_it_is_written() -> None:
    wanted = {"spec": {"cpu": "1000m", "replicas": 2, "empty": {}}}
    fields = {"f:spec": {"f:cpu": {}, "f:replicas": {}, "f:empty": {}}}
    assert drifts(wanted, live(fields, {"spec": {"cpu": "1", "replicas": 2, "more": "default"}})) == {}


def test_a_field_that_left_our_record_drifted() -> None:
    wanted = {"spec": {"a": 1, "b": 2, "c": 3}}
    obj = live({"f:spec": {"f:a": {}}}, {"spec": {"a": 1, "b": 9}})
    assert drifts(wanted, obj) == {"spec.b": 9, "spec.c": MISSING}


def test_a_value_that_stands_there_anyway_is_no_drift() -> None:
    wanted = {"spec": {"a": 1, "gone": {}, "none": [], "blank": "", "list": [{"x": 1}]}}
    obj = live({"f:spec": {"f:other": {}}}, {"spec": {"a": 1, "list": [{"x": 1, "y": 2}]}})
    assert drifts(wanted, obj) == {}
    assert drifts({"spec": {"list": [{"x": 3}]}}, obj) == {"spec.list": [{"x": 1, "y": 2}]}


def test_identity_is_never_recorded_and_never_drifts() -> None:
    wanted = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "namespace": "n", "labels": {"a": "b"}}}
    assert drifts(wanted, live({"f:metadata": {"f:labels": {"f:a": {}}}}, {})) == {}
    assert drifts(wanted, live({"f:spec": {"f:a": {}}}, {})) == {"metadata.labels": MISSING}


def test_atomic_objects_and_lists_are_ours_as_a_whole_or_not_at_all() -> None:
    wanted = {"spec": {"selector": {"app": "x"}, "args": ["a", "b"]}}
    assert drifts(wanted, live({"f:spec": {"f:selector": {}, "f:args": {}}}, {"spec": {}})) == {}
    obj = live({"f:spec": {"f:other": {}}}, {"spec": {"selector": {"app": "y"}, "args": ["a"]}})
    assert drifts(wanted, obj) == {"spec.selector.app": "y", "spec.args": ["a"]}


def test_items_are_found_by_their_keys() -> None:
    wanted = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]}
    fields = {
        "f:env": {
            'k:{"name":"B"}': {".": {}, "f:name": {}},
            'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}},
        }
    }
    obj = live(fields, {"env": [{"name": "X"}, {"name": "B", "value": "edited"}, {"name": "A", "value": "1"}]})
    assert drifts(wanted, obj) == {"env[1].value": "edited", "env[2]": MISSING}


def test_a_key_left_to_its_default_does_not_take_the_place_of_one_spelled_out() -> None:
    wanted = {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}
    udp, tcp = 'k:{"port":53,"protocol":"UDP"}', 'k:{"port":53,"protocol":"TCP"}'
    both = {"f:ports": {udp: {"f:port": {}, "f:protocol": {}}, tcp: {"f:port": {}}}}
    items = [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]
    assert drifts(wanted, live(both, {"ports": items})) == {}
    one = {"f:ports": {tcp: {"f:port": {}}}}
    assert drifts(wanted, live(one, {"ports": items[:1]})) == {"ports[1]": MISSING}


def test_members_of_a_set_are_found_by_value() -> None:
    wanted = {"finalizers": ["a", "b"]}
    assert drifts(wanted, live({"f:finalizers": {'v:"a"': {}}}, {"finalizers": ["a"]})) == {"finalizers[1]": MISSING}
    assert drifts(wanted, live({"f:finalizers": {'v:"a"': {}, 'v:"b"': {}}}, {"finalizers": ["b", "a"]})) == {}


@pytest.mark.parametrize(
    ("path", "recorded"),
    [
        ("/data/R&D", "/data/R\\u0026D"),
        ("/a<b>c", "/a\\u003cb\\u003ec"),
        ("/line\u2028\u2029", "/line\\u2028\\u2029"),
        ("/ü/\U0001f999", "/ü/\U0001f999"),
        ('/quoted"\\tab\t', '/quoted\\"\\\\tab\\t'),
        ("/bell\x07\x7f", "/bell\\u0007\x7f"),
    ],
)
def test_keys_and_members_are_found_however_go_writes_them(path: str, recorded: str) -> None:
    wanted = {"mounts": [{"mountPath": path, "name": "data"}], "set": [path, "plain"]}
    mounts = {f'k:{{"mountPath":"{recorded}"}}': {".": {}, "f:mountPath": {}, "f:name": {}}}
    fields = {"f:mounts": mounts, "f:set": {f'v:"{recorded}"': {}, 'v:"plain"': {}}}
    # The live values differ, so only the record shows the owner of the fields.
    body = {"mounts": [{"mountPath": path, "name": "other"}], "set": []}
    assert drifts(wanted, live(fields, body)) == {}
    record = {"manager": "kubectl", "operation": "Update", "fieldsV1": fields}
    others = live(None, body, managedFields=[record])
    for at in (("mounts", 0, "name"), ("set", 0)):
        writer = writer_of(others, wanted, at, ME)
        assert writer is not None
        assert writer.manager == "kubectl"


def test_a_member_of_a_set_is_not_found_by_a_value_of_another_type() -> None:
    fields = {"f:set": {"v:1": {}, "v:true": {}}}
    assert drifts({"set": [1, True]}, live(fields, {"set": []})) == {}
    assert drifts({"set": [True]}, live({"f:set": {"v:1": {}}}, {"set": []})) == {"set[0]": MISSING}


def test_without_any_record_values_decide() -> None:
    wanted = {"spec": {"a": 1, "b": {"c": 2}}}
    assert drifts(wanted, live(None, {"spec": {"a": 1, "b": {"c": 2, "d": 3}}})) == {}
    assert drifts(wanted, live(None, {"spec": {"a": 1}})) == {"spec.b": MISSING}


def test_owning_a_path() -> None:
    obj = live({"f:spec": {"f:replicas": {}, "f:selector": {}}})
    assert owns(obj, ME, ("spec", "replicas"))
    assert owns(obj, ME, ("spec", "selector", "app"))
    assert not owns(obj, ME, ("spec", "template"))
    assert not owns(live(None), ME, ("spec", "replicas"))
    assert not owns(live({}), ME, ("spec", "replicas"))


def test_we_inherit_from_the_controller_that_made_an_object_and_from_nobody_else() -> None:
    made = {**entry("llmkube"), "fieldsV1": {"f:metadata": {"f:ownerReferences": {}}, "f:spec": {}}}
    labelled = {**entry("kubectl-label"), "fieldsV1": {"f:metadata": {"f:labels": {}}}}
    scaled = {**entry("llmkube", subresource="scale"), "fieldsV1": made["fieldsV1"]}
    entries = inherited(live(None, managedFields=[labelled, made, scaled]), ME)
    assert entries == [labelled, {**made, "manager": ME, "operation": "Apply"}, scaled]
    ours = entry(ME, "Apply")
    for others in ([labelled, scaled], [made, ours], [{**made, "operation": "Apply"}], []):
        assert inherited(live(None, managedFields=others), ME) is None
