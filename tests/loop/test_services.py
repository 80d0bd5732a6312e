"""The objects of a service: created, changed, scaled by an autoscaler, deleted with it, repaired."""

from __future__ import annotations

import time

import pytest

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.loop import (
    LoopProcess,
    arguments,
    await_condition,
    condition,
    deployed,
    edit,
    eventually,
    find,
    model,
    service,
    settled,
    status,
)

pytestmark = pytest.mark.usefixtures("loop")


def test_a_service_gets_its_objects_and_says_where_it_is(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True, autoscaling={"maxReplicas": 3})
    deployment = deployed(client, namespace)
    assert find(client, kinds.SERVICES, namespace, "svc")
    assert find(client, kinds.AUTOSCALERS, namespace, "svc")
    (owner,) = deployment["metadata"]["ownerReferences"]
    assert owner["kind"] == "InferenceService" and owner["controller"]
    written = eventually(lambda: status(client, namespace).get("endpoint"), what="an endpoint")
    assert written == f"http://svc.{namespace}.svc.cluster.local:8080/v1/chat/completions"
    settled(client, namespace)
    assert await_condition(client, namespace, "svc", "Reconciling", "True")["observedGeneration"] == 1
    eventually(lambda: status(client, namespace)["phase"] == "Creating", what="Creating")


def test_a_changed_spec_reaches_the_deployment(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)
    edit(client, namespace, vllmConfig={"maxModelLen": 4096})
    eventually(lambda: "--max-model-len 4096" in arguments(deployed(client, namespace)), what="the new argument")


def test_replicas_belong_to_the_autoscaler_while_it_exists(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True, replicas=2)
    assert deployed(client, namespace)["spec"]["replicas"] == 2
    edit(client, namespace, autoscaling={"maxReplicas": 5})
    eventually(lambda: find(client, kinds.AUTOSCALERS, namespace, "svc"), what="the autoscaler")
    assert deployed(client, namespace)["spec"]["replicas"] == 2, "handing over must not reset the live count"
    scale = {"spec": {"replicas": 4}}
    client.patch(
        kinds.DEPLOYMENTS, namespace, "svc", scale, subresource="scale", field_manager="kube-controller-manager"
    )
    edit(client, namespace, vllmConfig={"maxModelLen": 2048})
    eventually(lambda: "2048" in arguments(deployed(client, namespace)), what="the change after scaling")
    assert deployed(client, namespace)["spec"]["replicas"] == 4
    edit(client, namespace, autoscaling=None, replicas=1)
    eventually(lambda: find(client, kinds.AUTOSCALERS, namespace, "svc") is None, what="the autoscaler to go")
    eventually(lambda: deployed(client, namespace)["spec"]["replicas"] == 1, what="our own count again")


def test_deleting_a_service_removes_exactly_its_objects(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    for name in ("a", "a-b"):
        service(client, namespace, name, runtime="vllm", skipModelInit=True)
    kept = deployed(client, namespace, "a-b")
    deployed(client, namespace, "a")
    client.delete(kinds.INFERENCE_SERVICES, namespace, "a")
    eventually(
        lambda: (
            find(client, kinds.DEPLOYMENTS, namespace, "a") is None
            and find(client, kinds.SERVICES, namespace, "a") is None
        ),
        what="the objects of `a` to go",
    )
    assert deployed(client, namespace, "a-b")["metadata"]["uid"] == kept["metadata"]["uid"]
    assert find(client, kinds.SERVICES, namespace, "a-b")


def test_an_object_of_others_with_the_services_label_is_left_alone(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)
    labels = {naming.LABEL_SERVICE: "svc"}
    body = {"metadata": {"name": "theirs", "labels": labels}, "spec": {"ports": [{"port": 80}], "selector": labels}}
    theirs = client.create(kinds.SERVICES, namespace, {"apiVersion": "v1", "kind": "Service", **body})
    edit(client, namespace, vllmConfig={"maxModelLen": 640})
    eventually(lambda: "640" in arguments(deployed(client, namespace)), what="the change")
    client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")
    eventually(lambda: find(client, kinds.SERVICES, namespace, "svc") is None, what="our Service to go")
    kept = client.get(kinds.SERVICES, namespace, "theirs")
    assert kept["metadata"]["uid"] == theirs["metadata"]["uid"]


def test_a_deleted_deployment_comes_back(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    uid = deployed(client, namespace)["metadata"]["uid"]
    settled(client, namespace, "svc")
    client.delete(kinds.DEPLOYMENTS, namespace, "svc")
    eventually(lambda: deployed(client, namespace)["metadata"]["uid"] != uid, what="another Deployment")


def test_an_edit_by_hand_of_a_field_of_ours_is_undone(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True, nodeSelector={"disk": "fast"})
    before = deployed(client, namespace)
    settled(client, namespace, "svc")
    template = {"spec": {"template": {"spec": {"nodeSelector": {"disk": "slow"}}}}}
    client.patch(kinds.DEPLOYMENTS, namespace, "svc", template, field_manager="kubectl-edit")
    eventually(
        lambda: (
            deployed(client, namespace)["metadata"]["generation"] > before["metadata"]["generation"] + 1
            and deployed(client, namespace)["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
        ),
        what="the node selector to be restored",
    )


def test_labels_of_others_stay(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)
    client.patch(kinds.DEPLOYMENTS, namespace, "svc", {"metadata": {"labels": {"team": "blue"}}})
    edit(client, namespace, vllmConfig={"maxModelLen": 1024})
    eventually(lambda: "1024" in arguments(deployed(client, namespace)), what="the change")
    assert deployed(client, namespace)["metadata"]["labels"]["team"] == "blue"


def test_an_unchanged_service_costs_no_engine_run(client: KubeClient, namespace: str, loop: LoopProcess) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)
    settled(client, namespace, "svc")
    eventually(lambda: loop.metric("herdsman_queue_depth") == 0, what="an empty queue")
    runs, seen = loop.submitted(namespace), loop.metric("herdsman_reconciles_total")
    assert runs > 0
    client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", {"metadata": {"labels": {"touched": "yes"}}})
    client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", {"metadata": {"annotations": {"note": "hello"}}})
    eventually(lambda: loop.metric("herdsman_reconciles_total") > seen, what="another pass")
    time.sleep(1.0)
    assert loop.submitted(namespace) == runs


def test_events_tell_what_was_made(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)

    def applied() -> bool:
        events = client.list(kinds.EVENTS, namespace)["items"]
        return any(e["reason"] == "Applied" and "Deployment svc" in (e.get("message") or "") for e in events)

    eventually(applied, what="an Event about the Deployment")


def test_the_objects_are_written_by_our_field_manager(client: KubeClient, namespace: str) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    managers = {m["manager"] for m in deployed(client, namespace)["metadata"]["managedFields"]}
    assert naming.FIELD_MANAGER in managers
    assert condition(client, namespace, "svc", "Stalled").get("status") != "True"
