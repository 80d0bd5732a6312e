"""Lost and missing parts of a cluster: a node without heartbeats, and a metrics API that is not installed.

The scheduler, the node controller and the autoscaler's controller are real; the tests write the kubelet's statuses.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import STRATEGIC_PATCH, KubeClient
from kubeapi.json_types import Json
from tests.support.kubelet import pods_of, write_ready_status
from tests.support.loop import LoopProcess, await_condition, condition, eventually, model, service, status

pytestmark = pytest.mark.soak

VLLM: Json = {"runtime": "vllm", "skipModelInit": True}
SILENT = {"status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}


def say_of_node(client: KubeClient, name: str, **said: str) -> None:
    ready = {"type": "Ready", **(said or {"status": "True", "reason": "KubeletReady", "message": "ready"})}
    room = {"cpu": "8", "memory": "64Gi", "pods": "10"}
    body = {"status": {"conditions": [ready], "allocatable": room, "capacity": room}}
    client.patch(kinds.NODES, None, name, body, content_type=STRATEGIC_PATCH, subresource="status")


@pytest.fixture
def node(client: KubeClient, namespace: str) -> Iterator[str]:
    """A node that only pods of this test select."""
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)
    name = f"node-{namespace}"
    labels = {"tests/of": namespace}
    client.create(kinds.NODES, None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    say_of_node(client, name)
    yield name
    client.delete(kinds.NODES, None, name)


def scheduled(client: KubeClient, namespace: str, node: str) -> Json:
    def look() -> Json | None:
        return next((pod for pod in pods_of(client, namespace) if pod["spec"].get("nodeName") == node), None)

    found = eventually(look, what=f"a pod on {node}")
    assert found is not None
    return found


def test_a_lost_node_and_missing_metrics_are_named_and_healed_from(
    loop: LoopProcess, client: KubeClient, namespace: str, node: str
) -> None:
    """Expected: Ready=False with the node's name and reason NodeLost. A replica on the lost node does not count as
    healthy, whatever its kubelet reported last. The return of the node is reported without any other change. An
    autoscaler without metrics gives AutoscalerReady=False with its controller's message, and not SpecHonoured=False.
    """
    model(client, namespace)
    service(client, namespace, "scaled", autoscaling={"maxReplicas": 3}, nodeSelector={"tests/of": "nobody"}, **VLLM)
    service(client, namespace, nodeSelector={"tests/of": namespace}, **VLLM)
    pod = scheduled(client, namespace, node)
    write_ready_status(client, pod)
    await_condition(client, namespace, "svc", "Ready", "True")

    say_of_node(client, node, **SILENT)
    # The node controller changes only the condition Ready of the pod.
    told = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    name = pod["metadata"]["name"]
    client.patch(kinds.PODS, namespace, name, told, content_type=STRATEGIC_PATCH, subresource="status")
    said = await_condition(client, namespace, "svc", "Ready", "False", saying=f"its node {node} is lost")
    assert said["reason"] == "NodeLost" and "Kubelet stopped posting" in said["message"]
    eventually(lambda: "unprovedReplicas" not in status(client, namespace), what="no replica to be called healthy")

    say_of_node(client, node)
    await_condition(client, namespace, "svc", "Ready", "False", saying="0 of 1 replicas ready")
    eventually(lambda: condition(client, namespace, "svc", "Ready")["reason"] != "NodeLost", what="the node's return")
    write_ready_status(client, pod)
    await_condition(client, namespace, "svc", "Ready", "True")

    said = await_condition(client, namespace, "scaled", "AutoscalerReady", "False", saying="FailedGet")
    assert "metrics" in said["message"]
    assert loop.poll() is None
    assert condition(client, namespace, "scaled", "SpecHonoured").get("status") != "False"
