"""The clients that may wake a sleeping service are looked up by their address on a real API server."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from automation.serving.wake import WakeSources, admitted_namespaces
from components.engine_workloads import NAMESPACE_LABEL
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.service import Exposure, NetworkAccess
from tests.support.builders import service
from tests.support.controlplane import Api
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.apiserver


def pod(api: Api, namespace: str, name: str, address: str, *, phase: str = "Running", **spec: Any) -> None:
    containers = [{"name": "c", "image": "i"}]
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": containers, "nodeName": "nowhere", "automountServiceAccountToken": False, **spec},
    }
    api.create(kinds.PODS.path(namespace), body)
    status = {"status": {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}}
    told, answer = api.request(
        "PATCH", kinds.PODS.path(namespace, name, "status"), status, content_type="application/merge-patch+json"
    )
    assert told == 200, answer


def test_a_running_pod_of_an_admitted_namespace_is_known_by_its_address(
    control_plane: LocalCluster, api: Api, namespace: str
) -> None:
    pod(api, namespace, "friend", "10.1.2.3")
    pod(api, namespace, "over", "10.1.2.4", phase="Succeeded")
    pod(api, namespace, "of-the-node", "10.1.2.5", hostNetwork=True)
    now = [0.0]
    sources = WakeSources(KubeClient.from_kubeconfig(str(control_plane.kubeconfig)), clock=lambda: now[0])

    def admitted(address: str, *namespaces: str) -> bool:
        answers: queue.Queue[bool] = queue.Queue()
        sources.check(namespaces, address, answers.put)
        return answers.get(timeout=20)

    try:
        assert admitted("10.1.2.3", "default", namespace)
        assert admitted("::ffff:10.1.2.3", namespace)
        assert not admitted("10.1.2.3", "default")
        assert not admitted("10.1.2.3")
        for stranger in ("10.1.2.4", "10.1.2.5", "10.9.9.9", "", "no address,status.phase!=x"):
            assert not admitted(stranger, namespace), stranger
        api.delete(kinds.PODS.path(namespace, "friend") + "?gracePeriodSeconds=0")
        assert admitted("10.1.2.3", namespace), "an answer counts for some seconds"
        now[0] += 60
        assert not admitted("10.1.2.3", namespace)
    finally:
        sources.close()


def test_the_wake_port_admits_whom_the_policy_of_the_pods_admits() -> None:
    access = NetworkAccess(namespaces=("friends", "more"))
    desired = service(network=access, expose=Exposure(by="gateway", gateway="g", gateway_namespace="gateways"))
    policy = next(obj for obj in render(desired, RenderOptions()).objects if obj.part == "network")
    rule = policy.manifest["spec"]["ingress"][0]["from"]
    named = [each["namespaceSelector"]["matchLabels"][NAMESPACE_LABEL] for each in rule[1:]]
    assert rule[0] == {"podSelector": {}}, "the service's own namespace"
    assert admitted_namespaces(desired) == (desired.key.namespace, *named)
    assert admitted_namespaces(service()) is None
