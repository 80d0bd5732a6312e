"""How long an adopted service that describes its pods keeps the pod templates of its former controller."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from automation.adoption.candidates import Candidate, State, adoption_annotations
from automation.adoption.kept_templates import (
    digests_text,
    kept_digests,
    read_record,
    with_live_templates,
    workload_digest,
)
from automation.adoption.upstream_controller import UPSTREAM_CONTROLLERS, blocks_writes
from automation.reconcile.plan import ObjectName
from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_ADOPT, ANNOTATION_KEPT_TEMPLATE, ServiceKey
from program.dialects.registry import dialect_named
from tests.support.peer_objects import vector

LWS = ObjectName("LeaderWorkerSet", "chat")
KEY = ServiceKey("llmaz", "ns", "chat")


class Nothing:
    """A lookup that finds only the objects that the test gives it."""

    reads_model_status = False

    def __init__(self, *objects: Json) -> None:
        self._objects = objects

    def __call__(self, kind: Any, namespace: str | None, name: str, /) -> Json | None:
        found = (each for each in self._objects if (each["kind"], each["metadata"]["name"]) == (kind.kind, name))
        return next(found, None)

    def listed(self, _kind: Any, _namespace: str) -> tuple[Json, ...]:
        return ()


def playground(**spec: Any) -> tuple[Json, Json]:
    """A Playground that keeps its LeaderWorkerSet, and its OpenModel."""
    model, cr = copy.deepcopy(vector("llmaz", "001").input)
    cr["metadata"] |= {"namespace": "ns", "uid": "u1", "generation": 1}
    cr["metadata"]["annotations"] = {"herdsman.dev/workload": "LeaderWorkerSet"}
    cr["spec"] |= spec
    return cr, model


def rendered(cr: Json, model: Json) -> RenderedService:
    return render(dialect_named("llmaz").parse(cr, Nothing(model)).desired, RenderOptions())


def live() -> Json:
    """The objects that llmaz created for it."""
    found = next(each for each in vector("llmaz", "001").objects if each["kind"] == "LeaderWorkerSet")
    return copy.deepcopy(found) | {"metadata": {**found["metadata"], "uid": "u2"}}


def keeping(cr: Json, obj: Json) -> Json:
    notes = {**cr["metadata"]["annotations"], ANNOTATION_KEPT_TEMPLATE: digests_text("llmaz", {LWS: obj})}
    return {**cr, "metadata": {**cr["metadata"], "annotations": notes}}


def test_the_annotation_names_what_runs_pods_and_nothing_else() -> None:
    obj = live()
    cr = keeping(playground()[0], obj)
    assert kept_digests(KEY, cr) == {LWS: workload_digest(obj)}
    assert digests_text("llmaz", {ObjectName("Service", "chat-lb"): {"spec": {}}}) == ""
    assert kept_digests(KEY, {"metadata": {"annotations": {ANNOTATION_KEPT_TEMPLATE: "0123456789abcdef"}}}) == {}


def test_a_template_is_kept_with_a_note_until_something_else_is_asked_of_the_pods() -> None:
    obj, (cr, model) = live(), playground()
    cr = keeping(cr, obj)
    asked = rendered(cr, model)
    kept = with_live_templates(cr, asked, {LWS: obj})
    assert kept is not None and kept.fingerprint != asked.fingerprint
    last = kept.objects[-1].manifest
    assert workload_digest(last) == workload_digest(obj) != workload_digest(asked.objects[-1].manifest)
    assert last["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH] == kept.fingerprint
    assert [each.manifest for each in kept.objects[:-1]] == [each.manifest for each in asked.objects[:-1]]

    applied = {**obj, "metadata": {**obj["metadata"], "annotations": last["metadata"]["annotations"]}}
    assert read_record(applied) is not None
    again = with_live_templates(cr, rendered(cr, model), {LWS: applied})
    assert again is not None and again.fingerprint == kept.fingerprint, "the next pass makes the same"
    more = keeping(playground(replicas=3)[0], obj)
    scaled = with_live_templates(more, rendered(more, model), {LWS: applied})
    assert scaled is not None and scaled.objects[-1].manifest["spec"]["replicas"] == 3
    other = keeping(playground(backendRuntimeConfig={"args": ["--max-model-len", "9"]})[0], obj)
    assert with_live_templates(other, rendered(other, model), {LWS: applied}) is None


@pytest.mark.parametrize("note", [naming.ANNOTATION_APPLIED_HASH, naming.ANNOTATION_TEMPLATE_HASH])
def test_what_we_applied_without_a_note_is_ours(note: str) -> None:
    obj, (cr, model) = live(), playground()
    obj["metadata"]["annotations"] = {note: "0"}
    assert with_live_templates(keeping(cr, obj), rendered(cr, model), {LWS: obj}) is None


def test_a_template_that_changed_before_we_came_is_not_kept() -> None:
    obj, (cr, model) = live(), playground()
    marked = keeping(cr, obj)
    obj["spec"]["leaderWorkerTemplate"]["size"] = 2
    assert with_live_templates(marked, rendered(cr, model), {LWS: obj}) is None


def test_a_deployment_keeps_its_selector_which_could_change_only_with_a_new_one() -> None:
    recorded = vector("kserve", "015")
    cr = next(each for each in recorded.input if each["kind"] == "LLMInferenceService")
    cr = copy.deepcopy(cr) | {"metadata": {**cr["metadata"], "namespace": "ns", "uid": "u1", "generation": 1}}
    live_objects = {
        ObjectName("Deployment", each["metadata"]["name"]): each
        for each in recorded.objects
        if each["kind"] == "Deployment"
    }
    notes = {**cr["metadata"].get("annotations", {}), ANNOTATION_KEPT_TEMPLATE: digests_text("kserve", live_objects)}
    cr["metadata"]["annotations"] = notes
    asked = render(dialect_named("kserve").parse(cr, Nothing()).desired, RenderOptions())
    kept = with_live_templates(cr, asked, live_objects)
    assert kept is not None
    for each in kept.objects:
        if each.kind == "Deployment":
            was = live_objects[ObjectName("Deployment", each.name)]["spec"]
            assert each.manifest["spec"]["selector"] == was["selector"]
            assert workload_digest(each.manifest) == workload_digest({"kind": "Deployment", "spec": was})


def test_adopting_asks_for_as_much_as_it_needs() -> None:
    cr, _ = playground()
    cr["metadata"]["annotations"] = {}
    cr |= {"apiVersion": kinds.PLAYGROUNDS.api_version, "kind": "Playground"}
    one = Candidate(cr, State.ADOPTABLE, workloads={LWS: live()})
    assert adoption_annotations(one).keys() == {ANNOTATION_KEPT_TEMPLATE, "herdsman.dev/workload"}
    kserve = {**cr, "apiVersion": kinds.LLM_SERVICES.api_version, "kind": kinds.LLM_SERVICES.kind}
    bound = Candidate(kserve, State.ADOPTABLE, bindings=("ns-chat-epp-auth-rb",))
    assert adoption_annotations(bound) == {ANNOTATION_ADOPT: "true"}
    assert adoption_annotations(Candidate(kserve, State.ADOPTABLE)) == {}


@pytest.mark.parametrize(
    ("namespace", "policy", "group", "plural", "found"),
    [
        ("kserve", "Fail", "serving.kserve.io", "llminferenceservices", True),
        ("kserve", "Fail", "*", "*", True),
        ("kserve", "Ignore", "serving.kserve.io", "llminferenceservices", False),
        ("kserve", "Fail", "serving.kserve.io", "inferenceservices", False),
        ("herdsman-system", "Fail", "serving.kserve.io", "llminferenceservices", False),
    ],
)
def test_webhooks_count_that_would_refuse_an_annotation(
    namespace: str, policy: str, group: str, plural: str, found: bool
) -> None:
    webhook = {
        "clientConfig": {"service": {"name": "w", "namespace": namespace}},
        "failurePolicy": policy,
        "rules": [{"apiGroups": [group], "resources": [plural]}],
    }
    assert blocks_writes({"webhooks": [webhook]}, UPSTREAM_CONTROLLERS["kserve"]) is found
