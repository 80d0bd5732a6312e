"""Drifted fields, the manager that changed them, the message; and no drift where others change only their own
fields.
"""

from __future__ import annotations

from typing import Any

from automation.cache import trim
from automation.drift.field_drift import ObjectDrift, describe_drift, fields_of, may_have_drifted, owned_text
from components import naming
from components.rendered import RenderedObject
from kubeapi.json_types import Json

MANIFEST: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "chat", "namespace": "prod", "labels": {"app": "chat"}, "ownerReferences": [{"uid": "u-1"}]},
    "spec": {"type": "ClusterIP", "replicas": 1, "ports": [{"port": 80, "targetPort": "http"}]},
}
FIELDS: Json = {
    "f:metadata": {"f:labels": {"f:app": {}}, "f:ownerReferences": {'k:{"uid":"u-1"}': {}}},
    "f:spec": {
        "f:type": {},
        "f:replicas": {},
        "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:targetPort": {}}},
    },
}


def service(**more: Any) -> RenderedObject:
    return RenderedObject("service", naming.TYPE_SERVICE, MANIFEST, **more)


def live(fields: Json, *others: Json, uid: str = "u-1", **spec: Any) -> Json:
    ours = {"manager": "herdsman", "operation": "Apply", "fieldsV1": fields}
    metadata = {**MANIFEST["metadata"], "managedFields": [ours, *others], "ownerReferences": [{"uid": uid}]}
    ports = [{"port": 80, "protocol": "TCP", "targetPort": "http"}]
    return {**MANIFEST, "metadata": metadata, "spec": {**MANIFEST["spec"], "ports": ports, **spec}}


def without(*path: str) -> Json:
    """Return Herdsman's fields without the one at `path`."""
    fields = {**FIELDS, "f:spec": dict(FIELDS["f:spec"])}
    assert path[0] == "f:spec"
    del fields["f:spec"][path[1]]
    return fields


def other(fields: Json, **more: Any) -> Json:
    entry = {"manager": "kubectl-edit", "operation": "Update", "time": "2026-11-22T01:02:03Z"}
    return {**entry, "fieldsV1": fields, **more}


def test_what_is_ours_reads_alike_for_all_services_of_one_shape() -> None:
    other_uid = {
        **FIELDS,
        "f:metadata": {**FIELDS["f:metadata"], "f:ownerReferences": {'k:{"uid":"u-2"}': {}}},
    }
    assert owned_text(live(FIELDS)) is owned_text(live(other_uid, uid="u-2"))
    assert not may_have_drifted(service(), owned_text(live(FIELDS)))
    assert owned_text({"metadata": {"managedFields": [other(FIELDS)]}}) == ""
    assert may_have_drifted(service(), "")


def test_a_changed_field_names_values_and_who() -> None:
    edited = live(without("f:spec", "f:type"), other({"f:spec": {"f:type": {}}}), type="NodePort")
    assert may_have_drifted(service(), owned_text(edited))
    (field,) = fields_of(service(), edited)
    assert (field.path, field.ours, field.live) == ("spec.type", "ClusterIP", "NodePort")
    assert field.by is not None
    assert (field.by.manager, field.by.operation, field.by.time) == ("kubectl-edit", "Update", "2026-11-22T01:02:03Z")
    drifted = ObjectDrift("Service", "chat", (field,))
    assert str(drifted) == "Service chat: type ClusterIP -> NodePort by `kubectl-edit`"
    assert drifted.since == "2026-11-22T01:02:03Z"


def test_a_field_of_a_list_item_is_found_by_the_items_key() -> None:
    fields = {
        **FIELDS,
        "f:spec": {**FIELDS["f:spec"], "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}}},
    }
    theirs = other({"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:targetPort": {}}}}})
    edited = live(fields, theirs)
    edited["spec"]["ports"] = [{"port": 80, "protocol": "TCP", "targetPort": 9}]
    (field,) = fields_of(service(), edited)
    assert field.path == "spec.ports[0].targetPort"
    assert field.by is not None and field.by.manager == "kubectl-edit"


def test_a_value_that_stands_there_anyway_is_no_drift_but_worth_a_look() -> None:
    again = live(without("f:spec", "f:type"), other({"f:spec": {"f:type": {}}}))
    assert may_have_drifted(service(), owned_text(again))
    assert fields_of(service(), again) == ()


def test_a_removed_field_has_nobody_to_name() -> None:
    removed = live(without("f:spec", "f:type"))
    del removed["spec"]["type"]
    (field,) = fields_of(service(), removed)
    assert (field.live, field.by, field.words) == ("(none)", None, "type removed")


def test_ignored_fields_and_replicas_that_were_scaled_are_left() -> None:
    edited = live(without("f:spec", "f:type"), other({"f:spec": {"f:type": {}}}), type="NodePort")
    leaving = service(ignore=("spec.type",))
    assert not may_have_drifted(leaving, owned_text(edited))
    assert fields_of(leaving, edited) == ()
    scale = other({"f:spec": {"f:replicas": {}}}, manager="hpa", subresource="scale")
    assert fields_of(service(), live(without("f:spec", "f:replicas"), scale, replicas=7)) == ()
    by_hand = other({"f:spec": {"f:replicas": {}}})
    assert [f.path for f in fields_of(service(), live(without("f:spec", "f:replicas"), by_hand, replicas=7))] == [
        "spec.replicas"
    ]


def test_secrets_are_not_told() -> None:
    container = {"name": "engine", "env": [{"name": "A", "value": "sesame"}], "args": ["--api-key", "sesame"]}
    manifest = {"kind": "Deployment", "metadata": {"name": "chat"}, "spec": {"template": {"spec": {}}}}
    manifest["spec"] = {"template": {"spec": {"containers": [container]}}}
    theirs = {
        "name": "engine",
        "env": [{"name": "A", "value": "their sesame"}],
        "args": ["--api-key", "their sesame"],
    }
    edited = {
        "metadata": {"managedFields": [{"manager": "herdsman", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"template": {"spec": {"containers": [theirs]}}},
    }
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"engine"}': {".": {}, "f:name": {}}}}}}}
    edited["metadata"]["managedFields"][0]["fieldsV1"] = fields  # type: ignore[index]
    found = fields_of(RenderedObject("deployment", naming.TYPE_SERVICE, manifest), edited)
    assert {field.path.rpartition("containers[0].")[2] for field in found} == {"env", "args"}
    assert "sesame" not in describe_drift([ObjectDrift("Deployment", "chat", found)])
    assert not any("sesame" in field.ours + field.live for field in found)


def test_a_long_list_is_cut() -> None:
    many = [ObjectDrift("Service", f"svc-{number}", deleted=True) for number in range(100)]
    assert len(describe_drift(many).encode()) < 800
    assert describe_drift(many).endswith(" more")


def test_the_cache_keeps_what_tells_drift() -> None:
    kept = trim.owned(live(FIELDS))["metadata"]
    assert not may_have_drifted(service(), kept["owned"])
    assert trim.owned(live(FIELDS, type="NodePort"))["metadata"]["content"] != kept["content"]
    labelled = live(FIELDS)
    labelled["metadata"] = {**labelled["metadata"], "labels": {"app": "x"}, "generation": 3}
    with_generation = {**live(FIELDS, type="NodePort")}
    with_generation["metadata"] = {**with_generation["metadata"], "generation": 3}
    same = live(FIELDS)
    same["metadata"] = {**same["metadata"], "generation": 3}
    assert trim.owned(with_generation)["metadata"]["content"] == trim.owned(same)["metadata"]["content"]
    assert trim.owned(labelled)["metadata"]["content"] != trim.owned(same)["metadata"]["content"]
