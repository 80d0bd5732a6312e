"""Switches between alternatives of which an object may have only one: the former one is removed, whether it was
applied or is a default of the API server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import grpc
import pulumi
import pytest

from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import DEPLOYMENTS, SERVICES, Kind
from tests.engine.single_objects import Object, pod_of, pods
from tests.engine.stacks import manager_fields
from tests.support.wire.stack import WireStack

STATEFUL_SETS = Kind("apps/v1", "StatefulSet", "statefulsets", True)
BUDGETS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True)
POLICIES = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True)
AUTOSCALERS = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True)
INGRESSES = Kind("networking.k8s.io/v1", "Ingress", "ingresses", True)

PROBES: dict[str, Json] = {
    "none": {},
    "httpGet": {"livenessProbe": {"httpGet": {"path": "/healthz", "port": 80}, "periodSeconds": 7}},
    "tcpSocket": {"livenessProbe": {"tcpSocket": {"port": 80}}},
    "exec": {"livenessProbe": {"exec": {"command": ["true"]}}},
    "grpc": {"livenessProbe": {"grpc": {"port": 80}}},
}
HOOKS: dict[str, Json] = {
    "none": {},
    "httpGet": {"lifecycle": {"preStop": {"httpGet": {"port": 80}}}},
    "exec": {"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}},
    "sleep": {"lifecycle": {"preStop": {"sleep": {"seconds": 3}}}},
}
VARIABLES: dict[str, Json] = {
    "value": {"value": "x"},
    "fieldRef": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    "secretKeyRef": {"valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
    "configMapKeyRef": {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
    "resourceFieldRef": {"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
}
VOLUMES: dict[str, Json] = {
    "default": {},
    "emptyDir": {"emptyDir": {}},
    "configMap": {"configMap": {"name": "a"}},
    "secret": {"secret": {"secretName": "a"}},
    "hostPath": {"hostPath": {"path": "/a"}},
    "persistentVolumeClaim": {"persistentVolumeClaim": {"claimName": "a"}},
    "projected": {"projected": {"sources": [{"configMap": {"name": "a"}}]}},
}
STRATEGIES: dict[str, Json] = {
    "default": {},
    "Recreate": {"strategy": {"type": "Recreate"}},
    "RollingUpdate": {"strategy": {"type": "RollingUpdate"}},
    "rollingUpdate": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}},
}
UPDATES: dict[str, Json] = {
    "default": {},
    "OnDelete": {"updateStrategy": {"type": "OnDelete"}},
    "partition": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}},
}
PORTS = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
FRONTS: dict[str, Json] = {
    "ClusterIP": {"type": "ClusterIP", **PORTS},
    "NodePort": {"type": "NodePort", "externalTrafficPolicy": "Local", **PORTS},
    "nodePort": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    "LoadBalancer": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", **PORTS},
    "class": {"type": "LoadBalancer", "loadBalancerClass": "example.com/lb", **PORTS},
    "headless": {"clusterIP": "None", **PORTS},
    "ExternalName": {"type": "ExternalName", "externalName": "web.example.com"},
    "affinity": {"sessionAffinity": "ClientIP", **PORTS},
}
CPU = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
METRICS: dict[str, list[Json]] = {
    "default": [],
    "Utilization": [{"type": "Resource", "resource": CPU}],
    "AverageValue": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1"}}}
    ],
    "Pods": [
        {"type": "Pods", "pods": {"metric": {"name": "x"}, "target": {"type": "AverageValue", "averageValue": "1"}}}
    ],
    "External": [
        {"type": "External", "external": {"metric": {"name": "x"}, "target": {"type": "Value", "value": "1"}}}
    ],
}
BUDGET: dict[str, Json] = {"min": {"minAvailable": 1}, "max": {"maxUnavailable": "50%"}}
PEERS: dict[str, Json] = {"pods": {"podSelector": {}}, "block": {"ipBlock": {"cidr": "192.0.2.0/24"}}}
BACKENDS: dict[str, Json] = {
    "number": {"service": {"name": "web", "port": {"number": 80}}},
    "name": {"service": {"name": "web", "port": {"name": "http"}}},
    "resource": {"resource": {"apiGroup": "example.com", "kind": "Store", "name": "a"}},
}


def tour(members: dict[str, Any]) -> list[str]:
    """Return the members in an order in which each of them follows each other one exactly once."""
    left = {name: [other for other in members if other != name] for name in members}
    way, back = [next(iter(members))], []
    while way:
        at = way[-1]
        if left[at]:
            way.append(left[at].pop())
        else:
            back.append(way.pop())
    return back[::-1]


def test_a_tour_takes_every_way_once() -> None:
    assert len(tour(STRATEGIES)) == len(STRATEGIES) * (len(STRATEGIES) - 1) + 1
    assert len(set(itertools.pairwise(tour(FRONTS)))) == len(FRONTS) * (len(FRONTS) - 1)


def test_a_strategy_is_switched_both_ways(object_of: Callable[[Kind], Object]) -> None:
    deployment = object_of(DEPLOYMENTS)
    for name in tour(STRATEGIES):
        strategy = deployment.apply({**pods(), **STRATEGIES[name]})["spec"]["strategy"]
        recreates = name == "Recreate"
        assert strategy["type"] == ("Recreate" if recreates else "RollingUpdate"), name
        assert ("rollingUpdate" in strategy) is not recreates, name
        if name in ("default", "RollingUpdate"):
            assert strategy["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": "25%"}
        assert not deployment.replaced


def test_a_stateful_sets_updates_are_switched_both_ways(object_of: Callable[[Kind], Object]) -> None:
    stateful = object_of(STATEFUL_SETS)
    for name in tour(UPDATES):
        strategy = stateful.apply({"serviceName": "web", **pods(), **UPDATES[name]})["spec"]["updateStrategy"]
        assert ("rollingUpdate" in strategy) is (name != "OnDelete"), name
        assert not stateful.replaced


@pytest.mark.parametrize("alternatives", [PROBES, HOOKS], ids=["probes", "hooks"])
def test_handlers_are_switched_both_ways(object_of: Callable[[Kind], Object], alternatives: dict[str, Json]) -> None:
    deployment = object_of(DEPLOYMENTS)
    for name in tour(alternatives):
        container = pod_of(deployment.apply(pods(alternatives[name])))["containers"][0]
        handler = container.get("livenessProbe", {}) | container.get("lifecycle", {}).get("preStop", {})
        assert {"exec", "httpGet", "tcpSocket", "grpc", "sleep"} & handler.keys() == {name} - {"none"}, name


def test_sources_of_variables_are_switched_both_ways(object_of: Callable[[Kind], Object]) -> None:
    deployment = object_of(DEPLOYMENTS)
    for name in tour(VARIABLES):
        live = deployment.apply(pods({"env": [{"name": "A", **VARIABLES[name]}, {"name": "B", "value": "b"}]}))
        variable, other = pod_of(live)["containers"][0]["env"]
        assert (variable.keys() | variable.get("valueFrom", {}).keys()) - {"name", "valueFrom"} == {name}, name
        assert other == {"name": "B", "value": "b"}


def test_sources_of_volumes_are_switched_both_ways(object_of: Callable[[Kind], Object]) -> None:
    deployment = object_of(DEPLOYMENTS)
    for name in tour(VOLUMES):
        live = deployment.apply(pods(volumes=[{"name": "v", **VOLUMES[name]}]))
        assert pod_of(live)["volumes"][0].keys() - {"name"} == {"emptyDir" if name == "default" else name}, name


def test_the_type_of_a_service_is_switched_both_ways(object_of: Callable[[Kind], Object]) -> None:
    service = object_of(SERVICES)
    before = ""
    for name in tour(FRONTS):
        spec = service.apply(FRONTS[name])["spec"]
        assert spec["type"] == FRONTS[name].get("type", "ClusterIP"), (before, name)
        assert (spec.get("clusterIP") == "None") is (name == "headless"), (before, name)
        assert ("clusterIP" in spec) is (name != "ExternalName"), (before, name)
        assert (spec["sessionAffinity"] == "ClientIP") is (name == "affinity"), (before, name)
        assert ("sessionAffinityConfig" in spec) is (name == "affinity"), (before, name)
        has_ports = spec["type"] in ("NodePort", "LoadBalancer")
        assert any("nodePort" in port for port in spec.get("ports", [])) is has_ports, (before, name)
        assert ("externalTrafficPolicy" in spec) is has_ports, (before, name)
        balances = name == "LoadBalancer"
        assert ("healthCheckNodePort" in spec) is balances, (before, name)
        # Immutable are whether a Service is headless, and its load balancer class.
        assert service.replaced is (is_fixed(before, name)), (before, name)
        before = name


def is_fixed(before: str, after: str) -> bool:
    if "ExternalName" in (before, after) or not before:
        return False
    classes = {before, after} == {"LoadBalancer", "class"}
    return (before == "headless") is not (after == "headless") or classes


def test_the_metrics_of_an_autoscaler_are_switched_both_ways(object_of: Callable[[Kind], Object]) -> None:
    autoscaler = object_of(AUTOSCALERS)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    for name in tour(METRICS):
        metrics = {"metrics": METRICS[name]} if METRICS[name] else {}
        spec = autoscaler.apply({"scaleTargetRef": target, "maxReplicas": 3, **metrics})["spec"]
        assert spec["metrics"] == (METRICS[name] or METRICS["Utilization"]), name


def test_a_budget_a_policy_and_an_ingress_are_switched_both_ways(object_of: Callable[[Kind], Object]) -> None:
    budget, policy, ingress = object_of(BUDGETS), object_of(POLICIES), object_of(INGRESSES)
    for name in tour(BUDGET):
        spec = budget.apply({"selector": {"matchLabels": {"app": "web"}}, **BUDGET[name]})["spec"]
        assert {"minAvailable", "maxUnavailable"} & spec.keys() == BUDGET[name].keys()
    for name in tour(PEERS):
        rules = {"policyTypes": ["Ingress"], "ingress": [{"from": [PEERS[name]]}]}
        assert policy.apply({"podSelector": {}, **rules})["spec"]["ingress"] == [{"from": [PEERS[name]]}]
    for name in tour(BACKENDS):
        assert ingress.apply({"defaultBackend": BACKENDS[name]})["spec"]["defaultBackend"] == BACKENDS[name]


def test_pods_lose_their_service_account_when_it_is_no_longer_wanted(object_of: Callable[[Kind], Object]) -> None:
    deployment = object_of(DEPLOYMENTS)
    pod = pod_of(deployment.apply(pods(serviceAccountName="reader")))
    assert pod["serviceAccount"] == pod["serviceAccountName"] == "reader"
    pod = pod_of(deployment.apply(pods()))
    assert "serviceAccount" not in pod and "serviceAccountName" not in pod


def test_an_object_whose_state_was_lost_is_switched(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    deployment = object_of(DEPLOYMENTS)
    deployment.apply(pods(PROBES["httpGet"]))
    uid = client.get(DEPLOYMENTS, namespace, "web")["metadata"]["uid"]
    deployment.lose_state()
    live = deployment.apply({**pods(PROBES["exec"]), **STRATEGIES["Recreate"]})
    assert live["metadata"]["uid"] == uid
    assert live["spec"]["strategy"] == {"type": "Recreate"}
    assert "httpGet" not in pod_of(live)["containers"][0]["livenessProbe"]


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "inherited"])
def test_an_object_that_is_taken_over_is_switched(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str, asked: bool
) -> None:
    """An object is taken over if it has the owner of the new one, or if an annotation asks for it. The other manager
    wrote all its fields by updates.
    """
    owner = {"apiVersion": "example.com/v1", "kind": "Model", "name": "m", "uid": "u-1", "controller": True}
    metadata: Json = {"annotations": {"herdsman.dev/adopt": "true"}} if asked else {"ownerReferences": [owner]}
    spec = pods({**PROBES["httpGet"], "env": [{"name": "A", **VARIABLES["fieldRef"]}]}, volumes=[{"name": "v"}])
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace, **({} if asked else metadata)},
        "spec": spec,
    }
    made = client.create(DEPLOYMENTS, namespace, theirs, field_manager="manager")
    wanted = pods(
        {**PROBES["exec"], "env": [{"name": "A", "value": "x"}]}, volumes=[{"name": "v", "hostPath": {"path": "/a"}}]
    )
    live = object_of(DEPLOYMENTS).apply({**wanted, **STRATEGIES["Recreate"]}, **metadata)
    assert live["metadata"]["uid"] == made["metadata"]["uid"]
    pod = pod_of(live)
    assert live["spec"]["strategy"] == {"type": "Recreate"}
    assert pod["containers"][0]["env"] == [{"name": "A", "value": "x"}]
    assert "httpGet" not in pod["containers"][0]["livenessProbe"]
    assert pod["volumes"] == [{"name": "v", "hostPath": {"path": "/a", "type": ""}}]


def test_a_field_of_another_manager_is_told_as_a_conflict(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    deployment = object_of(DEPLOYMENTS)
    deployment.apply(pods())
    surge = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 2}}}}
    client.patch(DEPLOYMENTS, namespace, "web", surge, field_manager="kubectl-edit")
    before = client.get(DEPLOYMENTS, namespace, "web")
    with pytest.raises(grpc.RpcError) as refused:
        deployment.apply({**pods(), **STRATEGIES["Recreate"]})
    said = refused.value.details()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"Deployment `{namespace}/web`" in said
    assert "spec.strategy.rollingUpdate: conflict with field manager `kubectl-edit`" in said
    after = client.get(DEPLOYMENTS, namespace, "web")
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], before["metadata"]["generation"])


def test_an_alternative_that_somebody_chose_over_the_applied_one_is_told_as_a_conflict(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    deployment = object_of(DEPLOYMENTS)
    deployment.apply(pods(PROBES["httpGet"]))
    live = client.get(DEPLOYMENTS, namespace, "web")
    pod_of(live)["containers"][0]["livenessProbe"] = PROBES["exec"]["livenessProbe"]
    live["metadata"].pop("resourceVersion")
    path = DEPLOYMENTS.path(namespace, "web")
    client.request("PUT", path, query={"fieldManager": "kubectl-edit"}, body=live)
    with pytest.raises(grpc.RpcError) as refused:
        deployment.restore()
    field = "spec.template.spec.containers[0].livenessProbe.exec"
    assert f"{field}: conflict with field manager `kubectl-edit`" in refused.value.details()


def test_a_switch_to_another_strategy_claims_nothing_for_good(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    deployment = object_of(DEPLOYMENTS)
    deployment.apply(pods())
    deployment.apply({**pods(), **STRATEGIES["Recreate"]})
    owned = manager_fields(client.get(DEPLOYMENTS, namespace, "web"), "herdsman")
    assert owned is not None and owned["f:spec"]["f:strategy"] == {"f:type": {}}
    assert client.get(DEPLOYMENTS, namespace, "web")["metadata"]["generation"] == 2


def test_the_engine_previews_and_makes_a_switch(stack: WireStack, client: KubeClient, namespace: str) -> None:
    def program(strategy: Json) -> Callable[[], None]:
        body = {"metadata": {"name": "web", "namespace": namespace}, "spec": {**pods(), **strategy}}
        return lambda: pulumi.CustomResource("kubernetes:apps/v1:Deployment", "web", body) and None

    stack.up(program({}))
    assert stack.preview(program(STRATEGIES["Recreate"])).steps() == {"web": "update"}
    stack.up(program(STRATEGIES["Recreate"]))
    assert client.get(DEPLOYMENTS, namespace, "web")["spec"]["strategy"] == {"type": "Recreate"}
    assert stack.up(program(STRATEGIES["Recreate"])).steps() == {"web": "same"}
