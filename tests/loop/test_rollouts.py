"""Changes of a pod template: reported, held back while replicas may be busy, rolled back when they fail.

The control plane and the loop are real; the tests write the kubelet's statuses of pods.
"""

from __future__ import annotations

import pytest

from components import naming
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.kubelet import pods_of, write_crashing_status, write_ready_status
from tests.support.loop import (
    LoopProcess,
    arguments,
    await_condition,
    condition,
    deployed,
    edit,
    eventually,
    model,
    service,
    status,
)

pytestmark = pytest.mark.usefixtures("priorities")
VLLM = {"runtime": "vllm", "skipModelInit": True}


@pytest.fixture(scope="module")
def priorities(client: KubeClient) -> None:
    """The PriorityClasses, without which the API server refuses the pods."""
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)


def events(client: KubeClient, namespace: str, reason: str) -> list[str]:
    found = client.list(kinds.EVENTS, namespace)["items"]
    return [str(event.get("message")) for event in found if event["reason"] == reason]


def serving(client: KubeClient, namespace: str, **spec: object) -> Json:
    """Create a service with one replica, make it Ready, and return its pod."""
    model(client, namespace)
    service(client, namespace, **{**VLLM, **spec})
    deployed(client, namespace)
    (pod,) = eventually(lambda: pods_of(client, namespace), what="a pod")
    write_ready_status(client, pod)
    await_condition(client, namespace, "svc", "Ready", "True")
    return pod


def gate(client: KubeClient, namespace: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition that a pod's readiness gate waits for."""
    (pod,) = pods_of(client, namespace)
    conditions = {c["type"]: c for c in pod["status"].get("conditions") or ()}
    found = conditions.get(naming.CONDITION_COMPLETED) or {}
    return str(found.get("status")), str(found.get("reason")), str(found.get("message"))


def test_a_pods_gate_follows_the_starts_of_its_engine(client: KubeClient, namespace: str, loop: LoopProcess) -> None:
    model(client, namespace)
    service(client, namespace, annotations={"herdsman.dev/readiness-gate": "true"}, **VLLM)
    deployed(client, namespace)
    (pod,) = eventually(lambda: pods_of(client, namespace), what="a pod")
    assert pod["spec"]["readinessGates"] == [{"conditionType": naming.CONDITION_COMPLETED}]
    write_ready_status(client, pod)
    # There is no node, so requests cannot reach the engine. A completion check that cannot run does not close the gate.
    opened = ("True", "Unverified", "containerd://c1")
    eventually(lambda: gate(client, namespace) == opened, what="an open gate")
    write_crashing_status(client, pod, run="c2")
    eventually(lambda: gate(client, namespace) == ("False", "Restarted", "containerd://c2"), what="a closed gate")
    write_ready_status(client, pod, run="c3")
    eventually(lambda: gate(client, namespace) == ("True", "Unverified", "containerd://c3"), what="an open gate again")


def test_an_event_tells_what_a_change_changes(client: KubeClient, namespace: str, loop: LoopProcess) -> None:
    model(client, namespace)
    service(client, namespace, **VLLM, vllmConfig={"maxModelLen": 4096})
    deployed(client, namespace)
    edit(client, namespace, vllmConfig={"maxModelLen": 8192})
    wanted = "Updated Deployment svc: containers[vllm].args --max-model-len 4096 -> 8192"
    eventually(lambda: wanted in events(client, namespace, "Applied"), what=wanted)


def test_a_change_waits_for_idle_replicas_over_a_restart_of_the_loop_and_force_ends_it(
    client: KubeClient, namespace: str, loop: LoopProcess
) -> None:
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 3600}
    serving(client, namespace, rolloutPolicy=policy)
    edit(client, namespace, vllmConfig={"maxModelLen": 512})
    # Without a kubelet the engine does not respond, so the loop cannot tell whether the replica is idle.
    held = await_condition(client, namespace, "svc", "RolloutDeferred", "True")
    assert held["reason"] == "IdleCheckFailed"
    assert "512" not in arguments(deployed(client, namespace))
    eventually(lambda: events(client, namespace, "RolloutDeferred"), what="an Event of it")
    loop.stop()
    loop.start()
    seen = loop.metric("herdsman_reconciles_total")
    eventually(lambda: loop.metric("herdsman_reconciles_total") > seen + 2, what="passes after the restart")
    again = condition(client, namespace, "svc", "RolloutDeferred")
    assert again["lastTransitionTime"] == held["lastTransitionTime"]
    assert "512" not in arguments(deployed(client, namespace))
    edit(client, namespace, rolloutPolicy={**policy, "force": True})
    eventually(lambda: "512" in arguments(deployed(client, namespace)), what="the change")
    eventually(lambda: not condition(client, namespace, "svc", "RolloutDeferred"), what="no condition any more")


def test_the_timeout_ends_the_waiting_and_is_told(client: KubeClient, namespace: str, loop: LoopProcess) -> None:
    serving(client, namespace, rolloutPolicy={"waitForIdle": True, "idleTimeoutSeconds": 15})
    edit(client, namespace, vllmConfig={"maxModelLen": 512})
    await_condition(client, namespace, "svc", "RolloutDeferred", "True")
    assert "512" not in arguments(deployed(client, namespace))
    eventually(lambda: "512" in arguments(deployed(client, namespace)), what="the change")
    eventually(lambda: events(client, namespace, "RolloutForced"), what="an Event of it")


def test_a_change_that_crashes_is_taken_back_until_the_spec_changes(
    client: KubeClient, namespace: str, loop: LoopProcess
) -> None:
    old = serving(client, namespace, image="engine:good")
    body = {"metadata": {"annotations": {"herdsman.dev/rollback": "true"}}}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", body)
    served = eventually(lambda: status(client, namespace).get("servedTemplateHash"), what="the hash that served")
    edit(client, namespace, image="engine:bad", replicas=2)

    def new_pods() -> list[Json]:
        return [pod for pod in pods_of(client, namespace) if pod["spec"]["containers"][0]["image"] == "engine:bad"]

    for pod in eventually(new_pods, what="a pod of the new template"):
        write_crashing_status(client, pod)
    back = await_condition(client, namespace, "svc", "RolledBack", "True")
    assert served in back["message"] and "was restarted 4 times" in back["message"]
    eventually(lambda: only_good(client, namespace), what="pods of the old template only")
    assert old["metadata"]["name"] in {pod["metadata"]["name"] for pod in pods_of(client, namespace)}
    live = deployed(client, namespace)
    assert live["metadata"]["annotations"][naming.ANNOTATION_TEMPLATE_HASH] == served
    assert live["spec"]["replicas"] == 2, "only the template is taken back"
    eventually(lambda: events(client, namespace, "RolledBack"), what="an Event of it")
    loop.stop()
    loop.start()
    eventually(lambda: loop.metric("herdsman_reconciles_total") > 0, what="a pass after the restart")
    assert condition(client, namespace, "svc", "RolledBack")["lastTransitionTime"] == back["lastTransitionTime"]
    assert deployed(client, namespace)["metadata"]["generation"] == live["metadata"]["generation"]
    edit(client, namespace, image="engine:better")
    eventually(lambda: "engine:better" in images(client, namespace), what="a pod of the third template")
    eventually(lambda: not condition(client, namespace, "svc", "RolledBack"), what="no condition any more")


def only_good(client: KubeClient, namespace: str) -> bool:
    """Make the new pods of `engine:good` ready; return whether the service has two pods, both of that image."""
    pods = pods_of(client, namespace)
    for pod in pods:
        if pod["spec"]["containers"][0]["image"] == "engine:good" and "containerStatuses" not in pod["status"]:
            write_ready_status(client, pod)
    return len(pods) == 2 and images(client, namespace) == {"engine:good"}


def images(client: KubeClient, namespace: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in pods_of(client, namespace)}
