"""Adoption: the owner of a service, which services may be adopted, and when a template is kept."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from automation.adoption.candidates import Candidate, NamespaceObjects, State, adoption_annotations, find_candidate
from automation.adoption.kept_templates import (
    Record,
    comparable,
    digest_of,
    keeps_template,
    kept_digests,
    read_record,
    request_hash,
    template_by_digest,
    with_live_templates,
)
from automation.adoption.ownership import controller_changed, controller_of, is_managed, is_model_managed
from automation.adoption.upstream_controller import held_by
from automation.reconcile.plan import ObjectName
from automation.serving.rollout import rendered_template_hash
from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_CONTROLLER, ANNOTATION_KEPT_TEMPLATE
from tests.support.builders import service

NAME = ObjectName("Deployment", "svc")


def cr(controller: str = "", *, kept: str = "") -> Json:
    notes = {ANNOTATION_CONTROLLER: controller, ANNOTATION_KEPT_TEMPLATE: kept}
    metadata = {"name": "svc", "namespace": "ns", "uid": "u1", "annotations": {k: v for k, v in notes.items() if v}}
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"modelRef": "base"},
    }


# --- the owner ---


@pytest.mark.parametrize(
    ("own", "of_namespace", "controller_class", "ours"),
    [
        ("", "", "", True),
        ("herdsman", "", "", True),
        ("llmkube", "", "", False),
        ("", "team-a", "", False),
        ("", "", "herdsman", False),
        ("herdsman", "", "herdsman", True),
        ("", "herdsman", "herdsman", True),
        ("llmkube", "herdsman", "herdsman", False),
        ("herdsman", "llmkube", "", True),
        ("team-b", "", "team-a", False),
    ],
)
def test_a_service_is_that_controllers_which_it_or_its_namespace_names(
    own: str, of_namespace: str, controller_class: str, ours: bool
) -> None:
    said = {ANNOTATION_CONTROLLER: of_namespace} if of_namespace else {}
    assert is_managed(cr(own), said, controller_class) is ours
    assert controller_of(cr(own), said) == (own or of_namespace)


def test_a_models_status_follows_from_whose_its_services_are() -> None:
    ours, theirs, model = cr("herdsman"), cr("llmkube"), cr()
    assert is_model_managed(model, [theirs, ours], {}, "herdsman")
    assert not is_model_managed(model, [theirs], {}, "herdsman")
    assert not is_model_managed(model, [theirs], {}, "")
    assert not is_model_managed(model, [], {}, "herdsman"), "nobody uses it, and nobody said that it is ours"
    assert is_model_managed(model, [], {ANNOTATION_CONTROLLER: "herdsman"}, "herdsman")
    assert is_model_managed(model, [], {}, "")


def test_a_change_of_hands_is_told_by_the_annotation_alone() -> None:
    assert (
        controller_changed(None, cr("herdsman"))
        and controller_changed(cr("herdsman"), cr())
        and controller_changed(cr("a"), None)
    )
    assert not controller_changed(None, cr()) and not controller_changed(cr("a"), cr("a", kept="0"))


# --- which services may be adopted ---


def deployment(of: RenderedService, *, applied: bool = False, uid: str = "u1", record: str = "") -> Json:
    """LLMKube's Deployment with the name of Herdsman's, but with another script and image."""
    made = copy.deepcopy(next(obj.manifest for obj in of.objects if obj.kind == "Deployment"))
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"
    made["metadata"]["annotations"] = {naming.ANNOTATION_TEMPLATE_HASH: "their-hash"}
    made["metadata"]["ownerReferences"] = [{"kind": "InferenceService", "uid": uid, "controller": True}]
    entry: Json = {"manager": "llmkube", "operation": "Update", "fieldsV1": {}}
    if applied:
        made["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH] = "1"
        entry = {"manager": "herdsman", "operation": "Apply", "fieldsV1": {}}
    if record:
        made["metadata"]["annotations"][ANNOTATION_KEPT_TEMPLATE] = record
    made["metadata"]["managedFields"] = [entry]
    return made


def rendered(**fields: Any) -> RenderedService:
    return render(service(**fields), RenderOptions())


def judged(
    service_cr: Json, made: Json | None, *, model: Json | None = None, slices: tuple[Json, ...] = ()
) -> Candidate:
    labels = made["spec"]["template"]["metadata"]["labels"] if made is not None else {}
    objects = NamespaceObjects(
        models={"base": model} if model is not None else {},
        workloads=(made,) if made is not None else (),
        pods=(
            {"metadata": {"uid": "p1", "labels": labels}},
            {"metadata": {"uid": "p2", "labels": labels, "deletionTimestamp": "now"}},
            {"metadata": {"uid": "p3", "labels": {**labels, naming.LABEL_SERVICE: "another"}}},
        ),
        endpoint_slices=slices,
    )
    return find_candidate(service_cr, objects, "herdsman")


def test_what_llmkube_made_is_adoptable_once() -> None:
    found = judged(cr(), deployment(rendered()))
    assert (found.state, found.pods) == (State.ADOPTABLE, {"p1"})
    digest = digest_of(deployment(rendered())["spec"]["template"])
    assert adoption_annotations(found) == {ANNOTATION_KEPT_TEMPLATE: digest}
    assert kept_digests(found.key, cr(kept=digest)) == dict.fromkeys(found.workloads, digest)
    assert judged(cr("herdsman"), deployment(rendered(), applied=True)).state is State.OURS
    assert judged(cr("herdsman"), deployment(rendered())).state is State.ADOPTABLE, "marked, and not taken yet"
    assert adoption_annotations(judged(cr(), None)) == {}


def test_what_an_agent_runs_and_what_is_somebody_elses_is_left_alone() -> None:
    metal = {"spec": {"hardware": {"accelerator": "metal"}}}
    of_agent: Json = {"metadata": {"labels": {"kubernetes.io/service-name": "svc"}}}
    assert judged(cr(), None, model=metal).state is State.ON_HOST
    assert judged(cr(), None, slices=(of_agent,)).state is State.ON_HOST
    foreign = judged(cr(), deployment(rendered(), uid="another"))
    assert foreign.state is State.FOREIGN and "llmkube" in foreign.why


def test_llmkubes_controller_runs_while_its_lease_is_renewed() -> None:
    now = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)

    def lease(renewed: str | None, holder: str = "pod-1") -> Json:
        return {"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}}

    assert held_by(lease("2026-01-01T12:00:00.000000Z"), now) == "pod-1"
    assert held_by(lease("2026-01-01T11:59:00.000000Z"), now) == ""
    assert held_by(lease("2026-01-01T12:00:00Z", holder=""), now) == ""
    assert held_by(lease(None), now) == ""


# --- when a template is kept ---


def test_a_digest_is_the_same_for_a_deployment_and_its_replica_set() -> None:
    template = deployment(rendered())["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": "x"}
    in_set = {**template, "metadata": {**template["metadata"], "labels": labels, "creationTimestamp": None}}
    assert digest_of(in_set) == digest_of(template)
    sets = [{"spec": {"template": {"metadata": {}, "spec": {}}}}, {"spec": {"template": in_set}}]
    assert template_by_digest(sets, digest_of(template)) == comparable(template)
    assert template_by_digest(sets, "unknown") is None


def with_templates_of(made: Json, service_cr: Json, of: RenderedService) -> RenderedService | None:
    return with_live_templates(service_cr, of, {NAME: made})


def keeps(service_cr: Json, of: RenderedService, made: Json) -> bool:
    digest = kept_digests(of.key, service_cr).get(NAME)
    return digest is not None and keeps_template("llmkube", digest, of.objects[-1], made)


def test_an_adopted_service_is_made_with_the_template_that_lives() -> None:
    ours, live = rendered(), deployment(rendered())
    wish = cr("herdsman", kept=digest_of(live["spec"]["template"]))
    kept = with_templates_of(live, wish, ours)
    assert kept is not None
    made = kept.objects[-1].manifest
    assert made["spec"]["template"] == comparable(live["spec"]["template"])
    assert made["spec"]["selector"] == ours.objects[-1].manifest["spec"]["selector"]
    assert rendered_template_hash(kept) == "their-hash", "LLMKube recognises its objects again"
    assert read_record(made) == Record(digest_of(live["spec"]["template"]), request_hash(ours.objects[-1]))
    assert kept.fingerprint != ours.fingerprint
    assert with_templates_of(made, wish, ours) == kept, "the next pass renders the same"


def test_a_template_is_kept_until_something_else_is_asked_of_the_pods() -> None:
    first = rendered()
    live = deployment(first)
    digest = digest_of(live["spec"]["template"])
    wish = cr("herdsman", kept=digest)
    adopted = deployment(first, applied=True, record=str(Record(digest, request_hash(first.objects[-1]))))
    assert keeps(wish, first, live) and keeps(wish, first, adopted)
    assert keeps(wish, rendered(replicas=7), adopted), "replicas are not asked of the pods"
    assert not keeps(wish, rendered(image="new"), adopted)
    assert not keeps(cr("herdsman"), first, adopted), "the annotation was taken away"
    assert not keeps(wish, first, deployment(first, applied=True)), "Herdsman's template was rolled out already"
    assert with_templates_of(live, cr("herdsman", kept="another"), first) is None, "it was changed since it was marked"


def test_a_new_script_of_the_downloader_asks_nothing_of_pods() -> None:
    ours = rendered()
    changed = copy.deepcopy(ours.objects[-1].manifest)
    for container in changed["spec"]["template"]["spec"]["initContainers"]:
        container["command"] = ["another"]
    other = RenderedService.of(ours.key, (*ours.objects[:-1], type(ours.objects[-1])("d", "t", changed)))
    assert request_hash(other.objects[-1]) == request_hash(ours.objects[-1])
