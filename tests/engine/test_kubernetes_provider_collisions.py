"""List items of other clients that exclude an item of Herdsman's, such as a port with a changed number."""

from __future__ import annotations

import copy
from collections.abc import Callable

import grpc
import pytest

from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import DEPLOYMENTS, SERVICES, Kind
from tests.engine.single_objects import Object, pod_of, pods
from tests.engine.stacks import manager_fields

WHO = "kubectl-edit"

HTTP: Json = {"name": "http", "protocol": "TCP", "port": 8080, "targetPort": 8080}
METRICS: Json = {"name": "metrics", "protocol": "TCP", "port": 9090, "targetPort": 9090}
FIXED: Json = {**HTTP, "nodePort": 31087}
PORTS: dict[str, tuple[list[Json], list[Json]]] = {
    "number": ([HTTP], [{**HTTP, "port": 9090}]),
    "protocol": ([HTTP], [{**HTTP, "protocol": "UDP"}]),
    "short": ([{"name": "http", "port": 8080}], [{**HTTP, "port": 9090}]),
    "nameless": ([{"port": 8080}], [{"port": 9090, "protocol": "TCP"}]),
    "named": ([{"port": 8080}], [{**HTTP, "port": 9090}]),
    "unnamed": ([HTTP], [{"port": 9090, "targetPort": 9090, "protocol": "TCP"}]),
    "split": ([{"port": 8080}], [{**HTTP, "port": 9090}, {**METRICS, "port": 9091}]),
    "exchanged": ([HTTP, METRICS], [{**HTTP, "port": 9090}, {**METRICS, "port": 8080}]),
    "in turn": ([HTTP, METRICS], [{**HTTP, "port": 9090}, {**METRICS, "port": 9091}]),
    "one of two": ([HTTP, METRICS], [{**HTTP, "port": 8081}, METRICS]),
}
"""The ports of a Service in the program, and the ports after another client's change."""


def put(client: KubeClient, kind: Kind, namespace: str, change: Callable[[Json], None]) -> Json:
    """Change an object by a PUT of the whole object, as an editor does."""
    live = client.get(kind, namespace, "web")
    change(live["spec"])
    for field in ("managedFields", "resourceVersion"):
        live["metadata"].pop(field)
    answer: Json = client.request("PUT", kind.path(namespace, "web"), query={"fieldManager": WHO}, body=live)
    return answer


def numbers(spec: Json) -> list[tuple[str, int, str]]:
    return sorted((port.get("name", ""), port["port"], port["protocol"]) for port in spec["ports"])


@pytest.mark.parametrize("case", PORTS)
def test_a_services_port_that_was_changed_is_put_back(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str, case: str
) -> None:
    wanted, theirs = PORTS[case]
    service = object_of(SERVICES)
    made = service.apply({"selector": {"app": "web"}, "ports": wanted})
    put(client, SERVICES, namespace, lambda spec: spec.update(ports=theirs))
    live = service.restore()
    assert numbers(live["spec"]) == numbers(made["spec"])
    assert live["metadata"]["uid"] == made["metadata"]["uid"] and not service.replaced
    assert [port["targetPort"] for port in live["spec"]["ports"]] == [
        port["targetPort"] for port in made["spec"]["ports"]
    ]


def test_a_node_port_that_somebody_gave_to_another_port_is_taken_back(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    service = object_of(SERVICES)
    service.apply({"type": "NodePort", "selector": {"app": "web"}, "ports": [FIXED]})
    moved = {**FIXED, "name": "theirs", "port": 9090}
    put(client, SERVICES, namespace, lambda spec: spec.update(ports=[moved]))
    (port,) = service.restore()["spec"]["ports"]
    assert (port["name"], port["port"], port["nodePort"]) == ("http", 8080, 31087)


def test_ports_that_others_add_beside_stay(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    service = object_of(SERVICES)
    service.apply({"selector": {"app": "web"}, "ports": [HTTP]})
    put(client, SERVICES, namespace, lambda spec: spec.update(ports=[{**HTTP, "port": 8081}, METRICS]))
    live = service.restore()
    assert numbers(live["spec"]) == [("http", 8080, "TCP"), ("metrics", 9090, "TCP")]
    owned = manager_fields(client.get(SERVICES, namespace, "web"), "herdsman")
    assert owned is not None and len([key for key in owned["f:spec"]["f:ports"] if key.startswith("k:")]) == 1


def test_a_port_that_another_manager_applied_is_put_back(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    """A forced apply takes the port over, like any other field."""
    service = object_of(SERVICES)
    service.apply({"selector": {"app": "web"}, "ports": [HTTP]})
    put(client, SERVICES, namespace, lambda spec: spec.update(ports=[METRICS]))
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"ports": [{**HTTP, "port": 8443}]},
    }
    client.apply(SERVICES, namespace, theirs, field_manager="gitops")
    assert numbers(service.restore()["spec"]) == [("http", 8080, "TCP"), ("metrics", 9090, "TCP")]


@pytest.mark.parametrize("host_port", [False, True], ids=["name", "host port"])
def test_a_containers_port_that_was_changed_is_put_back(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str, host_port: bool
) -> None:
    port: Json = {"containerPort": 8080, **({"hostPort": 8080} if host_port else {"name": "http"})}
    deployment = object_of(DEPLOYMENTS)
    deployment.apply(pods({"ports": [port]}))

    def change(spec: Json) -> None:
        container = spec["template"]["spec"]["containers"][0]
        container["ports"] = [{**port, "containerPort": 9090, "protocol": "TCP"}, {"containerPort": 7070}]

    put(client, DEPLOYMENTS, namespace, change)
    ports = pod_of(deployment.restore())["containers"][0]["ports"]
    beside = {"containerPort": 7070, "protocol": "TCP"}
    assert sorted(ports, key=lambda each: int(each["containerPort"])) == [beside, {**port, "protocol": "TCP"}]


@pytest.mark.parametrize("to", ["containers", "initContainers"])
def test_a_container_that_was_moved_to_the_other_list_is_put_back(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str, to: str
) -> None:
    deployment = object_of(DEPLOYMENTS)
    first, second = ({"name": name, "image": f"example.com/{name}:1"} for name in ("first", "second"))
    spec = pods(initContainers=[copy.deepcopy(first)])
    spec["template"]["spec"]["containers"].append(second)
    made = pod_of(deployment.apply(spec))
    moved, back = ("first", "initContainers") if to == "containers" else ("second", "containers")

    def change(spec: Json) -> None:
        pod = spec["template"]["spec"]
        (found,) = (each for each in pod[back] if each["name"] == moved)
        pod[back].remove(found)
        pod[to].append(found)

    put(client, DEPLOYMENTS, namespace, change)
    pod = pod_of(deployment.restore())
    assert {key: pod[key] for key in ("containers", "initContainers")} == {
        key: made[key] for key in ("containers", "initContainers")
    }


def test_another_fault_beside_is_told_and_nothing_is_changed(
    object_of: Callable[[Kind], Object], client: KubeClient, namespace: str
) -> None:
    service = object_of(SERVICES)
    service.apply({"selector": {"app": "web"}, "ports": [HTTP]})
    put(client, SERVICES, namespace, lambda spec: spec.update(ports=[{**HTTP, "port": 9090}]))
    before = client.get(SERVICES, namespace, "web")
    with pytest.raises(grpc.RpcError, match="sessionAffinity"):
        service.apply({"selector": {"app": "web"}, "ports": [HTTP], "sessionAffinity": "Nobody"})
    assert client.get(SERVICES, namespace, "web")["spec"] == before["spec"]
