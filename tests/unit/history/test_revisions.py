"""Revisions of a service: their content, the author of a change, and the revision that a rollback restores."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from automation.engine.port import AccessoriesRefused
from automation.history import revision
from automation.history.revision import (
    NothingToRestore,
    Outcome,
    Revision,
    changed_models,
    choose_revision,
    data_of,
    edit_of,
    manifest,
    read,
    read_all,
    restore,
)
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.facts import RefusedObject

MODEL: Json = {
    "apiVersion": kinds.MODELS.api_version,
    "kind": "Model",
    "metadata": {"name": "base", "namespace": "ns"},
    "spec": {"source": "org/repo"},
}


def service(**spec: Any) -> Json:
    return {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": "InferenceService",
        "metadata": {
            "name": "chat",
            "namespace": "ns",
            "uid": "u1",
            "annotations": {"herdsman.dev/rollback": "true", "herdsman.dev/mode": "Preview", "team": "a"},
            "changedBy": {"manager": "kubectl-edit", "time": "2026-01-02T03:04:05Z"},
        },
        "spec": {"modelRef": "base", **spec},
        "status": {"phase": "Ready"},
    }


def recorded(number: int, *, error: str = "", models: tuple[Json, ...] = (MODEL,), **spec: Any) -> Revision:
    outcome = Outcome("Updated Deployment chat", error, timedelta(seconds=0.5))
    cr = service(**spec)
    written = manifest(cr, number, data_of(cr, models), outcome)
    written["metadata"]["creationTimestamp"] = "2026-01-02T03:04:06Z"
    found = read(written)
    assert found is not None
    return found


def test_a_revision_reads_as_it_was_written() -> None:
    found = recorded(3, contextSize=4096)
    assert (found.number, found.result, found.duration_s) == (3, revision.APPLIED, 0.5)
    assert found.changed_by == "kubectl-edit" and found.changes == "Updated Deployment chat"
    assert found.data["spec"] == {"modelRef": "base", "contextSize": 4096}
    assert found.data["annotations"] == {"herdsman.dev/rollback": "true"}, "not how it is looked after, not others'"
    assert found.data["models"] == {"base": {"source": "org/repo"}}
    assert not recorded(4, error="refused by the API server").is_applied


def test_others_revisions_and_those_of_an_earlier_service_of_the_name_are_left_out() -> None:
    cr = service()
    mine = manifest(cr, 1, data_of(cr, ()), Outcome("", "", timedelta()))
    earlier = manifest(
        {**cr, "metadata": {**cr["metadata"], "uid": "u0"}}, 2, data_of(cr, ()), Outcome("", "", timedelta())
    )
    foreign = {"metadata": {"ownerReferences": [{"uid": "u1"}]}, "data": {"spec": {}}, "revision": 7}
    assert [each.number for each in read_all([mine, earlier, foreign], owner="u1")] == [1]


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [
        (kinds.INFERENCE_SERVICES, "chat-v2", {"inference.llmkube.dev/service": "chat"}),
        (
            kinds.LLM_SERVICES,
            "chat-v2.kserve",
            {"app.kubernetes.io/part-of": "llminferenceservice", "app.kubernetes.io/name": "chat"},
        ),
        (kinds.PLAYGROUNDS, "chat-v2.llmaz", {"herdsman.dev/playground": "chat"}),
        (kinds.LLMAZ_SERVICES, "chat-v2.llmaz-service", {"herdsman.dev/llmaz-service": "chat"}),
    ],
)
def test_services_of_one_name_have_revisions_apart(kind: Kind, name: str, labels: Json) -> None:
    cr = {**service(), "apiVersion": kind.api_version, "kind": kind.kind}
    metadata = manifest(cr, 2, data_of(cr, ()), Outcome("", "", timedelta()))["metadata"]
    assert (metadata["name"], metadata["labels"]) == (name, {**labels, revision.LABEL_FORMAT: revision.FORMAT})
    (owner,) = metadata["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["uid"]) == (kind.api_version, kind.kind, "u1")


def test_what_a_service_refers_to_is_recorded_by_kind_and_nothing_else_is() -> None:
    def referred(kind: Kind, name: str, **spec: Any) -> Json:
        where = {"namespace": "ns"} if kind.namespaced else {}
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, **where},
            "spec": spec,
        }

    model, config = referred(kinds.OPEN_MODELS, "tiny", size=1), referred(kinds.LLM_CONFIGS, "base", size=2)
    others = (referred(kinds.CONFIG_MAPS, "c"), referred(kinds.LLM_SERVICES, "member"), referred(kinds.GATEWAYS, "g"))
    data = data_of(service(), (model, config, MODEL, *others))
    assert data["models"] == {
        "LLMInferenceServiceConfig/ns/base": {"size": 2},
        "OpenModel/tiny": {"size": 1},
        "base": {"source": "org/repo"},
    }
    found = Revision(1, data, "", "", "", "Applied", "", 0.0, "")
    assert changed_models(found, (model, referred(kinds.LLM_CONFIGS, "base", size=3))) == {
        "LLMInferenceServiceConfig/ns/base": {"size": 2},
        "base": None,
    }


def test_the_last_writer_of_spec_or_annotations_is_named_and_no_status_writer() -> None:
    def entry(manager: str, time: str, fields: Json, subresource: str = "") -> Json:
        return {"manager": manager, "time": time, "fieldsV1": fields, "subresource": subresource}

    entries = [
        entry("helm", "2026-01-01T00:00:00Z", {"f:spec": {}}),
        entry("argocd", "2026-01-03T00:00:00Z", {"f:metadata": {"f:annotations": {}}}),
        entry("herdsman", "2026-01-04T00:00:00Z", {"f:status": {}}, "status"),
        entry("kubectl-label", "2026-01-05T00:00:00Z", {"f:metadata": {"f:labels": {}}}),
    ]
    assert edit_of({"managedFields": entries}) == {"manager": "argocd", "time": "2026-01-03T00:00:00Z"}
    assert edit_of({}) is None
    # The API server lists entries of one second by the names of their managers.
    approved = entry("herdsman-approve", "2026-01-06T00:00:00Z", {"f:metadata": {"f:annotations": {}}})
    edited = entry("kubectl-client-side-apply", "2026-01-06T00:00:00Z", {"f:spec": {}})
    assert edit_of({"managedFields": [approved, edited]}) == {"manager": "herdsman-approve", "time": approved["time"]}


def test_a_rollback_goes_to_the_last_applied_version_that_differs() -> None:
    old, failed, now = recorded(1), recorded(2, error="no", contextSize=1), recorded(3, contextSize=8192)
    revisions = (now, failed, old)
    assert choose_revision(revisions, service(contextSize=8192), [MODEL], None) is old
    assert choose_revision(revisions, service(contextSize=8192), [MODEL], 2) is failed, (
        "asked for by number it may be any"
    )
    assert choose_revision(revisions, service(), [MODEL], None) is now, "back and forth"
    with pytest.raises(NothingToRestore, match="kept revisions are: 3, 2, 1"):
        choose_revision(revisions, service(), [MODEL], 9)
    with pytest.raises(NothingToRestore, match="no applied revision differs"):
        choose_revision((old,), service(), [MODEL], None)


def test_a_rollback_may_go_to_a_version_of_which_an_accessory_was_refused() -> None:
    refused = RefusedObject(kind="HorizontalPodAutoscaler", name="svc", reason="ForeignObject", message="not ours")
    served = recorded(2, error=AccessoriesRefused([refused]).message, contextSize=1)
    assert not served.is_applied, "a later try may still go well"
    assert choose_revision((served, recorded(1)), service(contextSize=8192), [MODEL], None) is served


def test_spec_and_annotations_come_back_and_nothing_else_changes() -> None:
    cr = service(contextSize=8192)
    cr["metadata"]["resourceVersion"] = "7"
    cr["metadata"]["annotations"] |= {"herdsman.dev/scale-query": "up", "herdsman.dev/approved": "abc"}
    back = restore(cr, recorded(1))
    assert back["spec"] == {"modelRef": "base"} and "status" not in back
    assert back["metadata"]["resourceVersion"] == "7", "an edit in between is a conflict"
    assert back["metadata"]["annotations"] == {
        "herdsman.dev/rollback": "true",
        "herdsman.dev/mode": "Preview",
        "herdsman.dev/approved": "abc",
        "team": "a",
    }


def test_models_that_were_other_are_named() -> None:
    then = recorded(1, models=(MODEL, {**MODEL, "metadata": {"name": "draft"}, "spec": {"source": "d"}}))
    now = [{**MODEL, "spec": {"source": "org/newer"}}]
    assert changed_models(then, now) == {"base": {"source": "org/repo"}, "draft": None}
