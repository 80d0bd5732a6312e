"""Obstacles to moving a service between loop and fleet, and the resources that a stack forgets: the pure parts."""

from __future__ import annotations

from typing import Any

import pytest

from automation.adoption.moving.acting import urns_of
from automation.adoption.moving.comparing import compare, leftovers
from automation.adoption.moving.move import Move, MoveFailed, written
from automation.adoption.moving.planning import plan_give
from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedObject, RenderedService
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.manifests import Manifests
from tests.fakes.echoing_client import EchoingClient

KEY = ServiceKey("kserve", "prod", "chat")
MARKS = {"app.kubernetes.io/part-of": "llminferenceservice", "app.kubernetes.io/name": "chat"}


def obj(kind: str, name: str = "chat-kserve", spec: Json | None = None, **annotations: str) -> Json:
    noted = {key.replace("__", "/").replace("_", "-"): value for key, value in annotations.items()}
    metadata = {"name": name, "namespace": "prod", "annotations": noted}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec or {}}


def deployment(image: str = "a", *, template_hash: str | None = "1", kept: str = "") -> Json:
    template = {"spec": {"containers": [{"image": image}]}}
    made = obj("Deployment", spec={"template": template, "selector": {"matchLabels": MARKS}})
    notes = {naming.ANNOTATION_TEMPLATE_HASH: template_hash, naming.ANNOTATION_KEPT_TEMPLATE: kept}
    made["metadata"]["annotations"] = {key: value for key, value in notes.items() if value}
    return made


def move(wanted: list[Json], live: list[Json]) -> Move:
    rendered = tuple(RenderedObject("part", naming.TYPE_SERVICE, each) for each in wanted)
    return Move(KEY, objects=live, rendered=RenderedService.of(KEY, rendered))


def problems(wanted: list[Json], live: list[Json]) -> list[str]:
    found = move(wanted, live)
    compare(found)
    return found.problems


def test_what_stays_as_it_is_may_move() -> None:
    live = deployment()
    live["spec"]["template"]["spec"]["restartPolicy"] = "Always"  # a default of the API server
    assert problems([deployment()], [live]) == []


@pytest.mark.parametrize(
    ("live", "said"),
    [
        (
            deployment("b"),
            "its pods would restart: spec.template.spec.containers[0].image. Run this command with the settings",
        ),
        (deployment(template_hash="2"), "a field that the API server defaulted differs"),
        (deployment("b", template_hash="2", kept="x"), "`herdsman adopt --refresh llminferenceservice/chat -n prod`"),
        (deployment(template_hash=None), "`herdsman adopt llminferenceservice/chat -n prod`"),
        (obj("Deployment", "other"), "Deployment chat-kserve does not exist, so its pods would be new"),
        (obj("HostProcess"), "its process would be stopped: in the file, the service runs in pods"),
    ],
)
def test_what_would_restart_is_refused_with_what_to_do(live: Json, said: str) -> None:
    (problem,) = problems([deployment()], [live])
    assert said in problem


def test_another_selector_a_host_another_plan_and_another_way_in_are_refused() -> None:
    other = deployment()
    other["spec"]["selector"] = {"matchLabels": {"a": "b"}}
    assert "spec.selector.matchLabels" in problems([deployment()], [other])[0]
    assert problems([obj("HostProcess")], [deployment()]) == [
        "the Deployment would be deleted: in the file, the service runs on a host"
    ]
    for kind, said in (
        ("HostProcess", "would restart its process"),
        ("HTTPRoute", "would route requests to other pods"),
    ):
        assert problems([obj(kind, spec={"a": 1})], [obj(kind, spec={"a": 2})]) == [
            f"{kind} chat-kserve {said}: spec.a"
        ]
    groups, more = (obj("LeaderWorkerSet", spec={"leaderWorkerTemplate": {"size": size}}) for size in (2, 3))
    more["metadata"]["annotations"] = {naming.ANNOTATION_TEMPLATE_HASH: "1"}
    assert "its pods would restart: spec.leaderWorkerTemplate.size" in problems([groups], [more])[0]


def test_a_context_that_the_loop_chose_has_to_be_set_before_a_move() -> None:
    wanted, live = (obj("HostProcess", spec={"argv": ["--ctx-size", tokens]}) for tokens in ("2048", "16384"))
    live["metadata"]["annotations"] = {naming.ANNOTATION_DEFAULT_CONTEXT: "16384"}
    (problem,) = problems([wanted], [live])
    assert "would restart its process" in problem and "set spec.contextSize to 16384 first" in problem


def test_what_the_file_does_not_mean_is_not_left_behind() -> None:
    found = move([deployment()], [deployment(), obj("Service"), obj("EndpointSlice")])
    leftovers(found)
    assert found.problems == ["Service chat-kserve would be left without an owner: the file does not describe it"]


def test_a_file_has_what_was_said_and_nothing_of_the_cluster() -> None:
    cr = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "a",
            "uid": "1",
            "annotations": {"herdsman.dev/mode": "Preview", "herdsman.dev/kept-template": "x", "mine": "1"},
        },
        "data": {"k": "v"},
        "status": {},
    }
    metadata = {"name": "a", "annotations": {"mine": "1"}}
    assert written(cr) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "v"}}


def resource(urn: str, inputs: Json, id_: str = "") -> Json:
    return {
        "urn": urn,
        "custom": True,
        "type": "t",
        "id": id_ or urn,
        "parent": f"component of {urn}",
        "inputs": inputs,
    }


def test_a_stack_forgets_one_service_with_its_binding_of_the_whole_cluster() -> None:
    def inputs(labels: Json, namespace: str | None = "prod", **more: Any) -> Json:
        metadata = {"name": "x", "labels": labels, **({"namespace": namespace} if namespace else {})}
        return {"metadata": metadata, **more}

    subjects = [{"kind": "ServiceAccount", "name": "chat-epp-sa", "namespace": "prod"}]
    elsewhere = [{**subjects[0], "namespace": "other"}]
    deployment = {
        "resources": [
            resource("pods", inputs(MARKS)),
            resource("binding", inputs(MARKS, None, subjects=subjects)),
            resource("binding of other", inputs(MARKS, None, subjects=elsewhere)),
            resource("of llmaz", inputs({"llmaz.io/playground-name": "chat"})),
            resource("of llmkube", inputs({naming.LABEL_SERVICE: "chat"})),
            resource("elsewhere", inputs(MARKS, "other")),
            {"urn": "component of pods", "inputs": {}},
        ]
    }
    found = urns_of(KEY, deployment)
    assert found == ["pods", "binding", "component of pods", "component of binding"]
    assert urns_of(ServiceKey("llmkube", "prod", "chat"), deployment)[0] == "of llmkube"
    deployment["resources"].append(resource("twice", inputs(MARKS), id_="pods"))
    with pytest.raises(MoveFailed, match="in several clusters"):
        urns_of(KEY, deployment)


def given_to_the_loop(text: str, *, change: Json, beside: Json | None = None) -> Move:
    """Plan the move of a fleet's InferenceService to the loop; the live Deployment has `change` in its spec."""
    manifests = Manifests("prod")
    manifests.read_text("file", text)
    ((document, desired),) = manifests.services()
    live = [each.manifest for each in render(desired, RenderOptions()).objects]
    live[-1] = {**live[-1], "spec": {**live[-1]["spec"], **change}}
    for each in (*live, beside) if beside is not None else live:
        each["metadata"] = {**each["metadata"], "annotations": dict(each["metadata"].get("annotations") or {})}
        each["metadata"]["annotations"][naming.ANNOTATION_FLEET] = "p/s"
    client = EchoingClient([*live, *([beside] if beside is not None else [])])
    return plan_give(client, document, manifests, options=RenderOptions())


INFERENCE_SERVICE = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: base, namespace: prod}
spec: {source: "https://example.com/base.gguf"}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: chat, namespace: prod}
spec: {modelRef: base, replicas: 2}
"""


def test_an_inference_service_is_given_with_its_model_and_the_live_number_of_replicas() -> None:
    found = given_to_the_loop(INFERENCE_SERVICE, change={"replicas": 3})
    model, service = found.documents
    assert found.problems == []
    assert model["status"]["path"].endswith("/base.gguf"), "the pods use the name of the fleet"
    assert service["spec"]["replicas"] == 3
    assert found.notes == ["spec.replicas is 3 in the file, as the Deployment has it now"]


def test_an_inference_service_is_not_given_while_an_object_would_be_left_behind() -> None:
    metadata = {"name": "chat", "namespace": "prod", "labels": {naming.LABEL_SERVICE: "chat"}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": {}}
    found = given_to_the_loop(INFERENCE_SERVICE, change={}, beside=budget)
    assert found.problems == ["PodDisruptionBudget chat would be left without an owner: the file does not describe it"]
