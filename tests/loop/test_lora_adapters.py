"""A LoRAAdapter from its creation to its deletion: real control plane, loop and gateway.

The engine is a server with vLLM's endpoints. The test writes the kubelet's status of its pod, and the EndpointSlice of
Kubernetes' own controller. Several replicas and all failures are tested by
`tests/unit/automation/test_adapter_controller.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.server.host_facts import own_address
from automation.serving.adapters.deciding import FINALIZER
from components.priority_classes import priority_classes
from gateway.cluster.routes import LABEL_SERVICE_NAME
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Invalid
from kubeapi.json_types import Json
from tests.support.adapter_engines import BASE, AdapterEngine, EngineServer
from tests.support.gateways import completion
from tests.support.kubelet import pods_of, write_ready_status
from tests.support.loop import LoopProcess, deployed, eventually, find, gateway_loop, model, service


@pytest.fixture(scope="module")
def loop(
    loop_kubeconfig: Path, pulumi_cli: Path, gateway: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    """One loop over all namespaces with the rights of a loop only, which is also a gateway."""
    with gateway_loop(loop_kubeconfig, tmp_path_factory.mktemp("loop"), gateway) as running:
        yield running


@pytest.fixture
def engine() -> Iterator[EngineServer]:
    """An engine at an address that the API server connects to; it refuses loopback."""
    with EngineServer(AdapterEngine(), address=own_address()) as running:
        yield running


def adapter(client: KubeClient, namespace: str) -> Json:
    """The LoRAAdapter; an empty object where there is none."""
    return find(client, kinds.LORA_ADAPTERS, namespace, "sql") or {"metadata": {}}


def phase(client: KubeClient, namespace: str) -> str:
    return str((adapter(client, namespace).get("status") or {}).get("phase"))


def publish(client: KubeClient, namespace: str, pod: Json, port: int) -> None:
    """Create the EndpointSlice of service `svc` with one pod."""
    refers = {"kind": "Pod", "namespace": namespace, **{key: pod["metadata"][key] for key in ("name", "uid")}}
    endpoint = {"addresses": [own_address()], "conditions": {"ready": True}, "targetRef": refers}
    made: Json = {"apiVersion": kinds.ENDPOINT_SLICES.api_version, "kind": "EndpointSlice", "addressType": "IPv4"}
    made["metadata"] = {"name": "svc-1", "labels": {LABEL_SERVICE_NAME: "svc"}}
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    client.create(kinds.ENDPOINT_SLICES, namespace, {**made, "ports": ports, "endpoints": [endpoint]})


@pytest.mark.usefixtures("loop")
def test_an_adapter_is_loaded_served_loaded_again_and_unloaded(
    client: KubeClient, namespace: str, gateway: str, engine: EngineServer
) -> None:
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)
    created = {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter", "metadata": {"name": "sql"}}
    spec = {"inferenceServiceRef": {"name": "svc"}, "name": "sql", "path": "/adapters/sql"}
    client.create(kinds.LORA_ADAPTERS, namespace, {**created, "spec": spec})
    eventually(lambda: phase(client, namespace) == "Pending", what="a status without a service")
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True, containerPort=engine.port)
    deployed(client, namespace)
    name = f"{namespace}/svc:sql"
    asked = eventually(lambda: (told := completion(gateway, name))[0] == 503 and told, what="the name at the gateway")
    assert asked[1]["error"]["code"] == "adapter_not_loaded"
    unknown = completion(gateway, f"{namespace}/svc:sqk")
    assert unknown[0] == 404 and "svc:sql" in unknown[1]["error"]["message"]

    [pod] = eventually(lambda: pods_of(client, namespace), what="a pod")
    write_ready_status(client, pod, address=own_address())
    publish(client, namespace, pod, engine.port)
    eventually(lambda: phase(client, namespace) == "Loaded", what="the adapter to be loaded")
    live = adapter(client, namespace)
    assert live["metadata"]["finalizers"] == [FINALIZER]
    assert live["status"]["pods"] == [{"name": pod["metadata"]["name"], "loaded": True}]
    assert engine.engine.adapters == {"sql": "/adapters/sql"}
    answer = eventually(lambda: (told := completion(gateway, name))[0] == 200 and told, what="an answer")
    assert answer[1]["model"] == "sql"
    assert completion(gateway, f"{namespace}/svc")[1]["model"] == BASE

    engine.engine.restart()
    write_ready_status(client, pod, run="c2", address=own_address())
    eventually(lambda: engine.engine.adapters, what="the adapter in the restarted container")
    assert engine.engine.changes().count("load_lora_adapter") == 2

    for change in ({"name": "other"}, {"inferenceServiceRef": {"name": "other"}}):
        with pytest.raises(Invalid, match="immutable"):
            client.patch(kinds.LORA_ADAPTERS, namespace, "sql", {"spec": change})
    client.delete(kinds.LORA_ADAPTERS, namespace, "sql")
    eventually(lambda: adapter(client, namespace) == {"metadata": {}}, what="the adapter to go")
    assert engine.engine.adapters == {}
    eventually(lambda: completion(gateway, name)[0] == 404, what="the name to go")
