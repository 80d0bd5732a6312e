"""A gateway, and an LLMInferenceService whose engine serves with the loop's certificate and demands a key."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.server.host_facts import own_address
from automation.cli.main import invoke
from automation.install import permissions
from components.naming import LABEL_SERVICE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import controlplane, dialects, loop
from tests.support.gateway_rights import USER, grant_gateway_rights
from tests.support.gateways import completion, gateway_process
from tests.support.loop import LoopProcess, eventually, find
from tests.support.supervising import free_port
from tests.support.tls_relay import TlsRelay
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

KEY = "key-of-the-engine"
SERVICE = "secured-kserve-workload-svc"
CERTIFICATES = "secured-kserve-self-signed-certs"
ROLES = "rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane without controllers: the test makes the pods' EndpointSlice."""
    with controlplane.running(("etcd", "kube-apiserver")) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[KubeClient]:
    administrator = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    loop.install_crds(administrator)
    dialects.install(administrator, "kserve")
    yield administrator
    administrator.close()


@pytest.fixture
def running(client: KubeClient, cluster: LocalCluster, pulumi_cli: Path, tmp_path: Path) -> Iterator[LoopProcess]:
    kubeconfig = loop.grant_loop_rights(client, cluster, tmp_path / "loop-kubeconfig")
    with loop.loop_process(kubeconfig, tmp_path) as started:
        yield started


@pytest.fixture
def engine(llama_server: Path, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A llama-server that demands a key."""
    with engine_process(llama_server, tmp_path, KEY) as place:
        yield place


@contextlib.contextmanager
def engine_process(
    llama_server: Path, tmp_path: Path, key: str, address: str = "127.0.0.1"
) -> Iterator[tuple[str, int]]:
    """Run a llama-server that demands a key, on an address of this machine."""
    write_tiny_model(tmp_path / "tiny.gguf")
    port = free_port()
    command = [
        str(llama_server),
        "--model",
        str(tmp_path / "tiny.gguf"),
        "--host",
        address,
        "--port",
        str(port),
        "-c",
        "256",
    ]
    with (tmp_path / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, "LLAMA_API_KEY": key}, stdout=log, stderr=log)
    try:
        yield address, port
    finally:
        process.kill()
        process.wait()


def put(client: KubeClient, kind: kinds.Kind, where: str | None, name: str, **body: Any) -> None:
    client.create(kind, where, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, **body})


def allow_secrets(client: KubeClient, where: str, *names: str) -> None:
    """Give the gateway the right to read these Secrets, as the guide does."""
    role, binding = client.mapping(ROLES, "Role"), client.mapping(ROLES, "RoleBinding")
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get"]}
    put(client, role, where, "gateway-engine-secrets", rules=[rule])
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "name": USER, "apiGroup": group}]
    reference = {"kind": "Role", "name": "gateway-engine-secrets", "apiGroup": group}
    put(client, binding, where, "gateway-engine-secrets", subjects=subjects, roleRef=reference)


def secured() -> Json:
    reference = {"secretKeyRef": {"name": "engine-key", "key": "key"}}
    engine: Json = {"name": "main", "image": "registry.example/engine:1", "command": ["serve"]}
    engine["env"] = [{"name": "LLAMA_API_KEY", "valueFrom": reference}]
    return {"model": {"uri": "hf://acme/tiny"}, "template": {"containers": [engine]}}


@pytest.mark.soak
def test_an_engine_with_tls_and_a_key_is_reached_with_the_rights_to_two_secrets(
    client: KubeClient, cluster: LocalCluster, running: LoopProcess, engine: tuple[str, int], tmp_path: Path
) -> None:
    where = "engines"
    put(client, kinds.NAMESPACES, None, where)
    put(client, kinds.SECRETS, where, "engine-key", stringData={"key": KEY, "other": "not-for-the-gateway"})
    put(client, kinds.LLM_SERVICES, where, "secured", spec=secured())
    issued = eventually(lambda: find(client, kinds.SECRETS, where, CERTIFICATES), what="the loop's certificate")
    assert issued is not None
    for file in ("tls.crt", "tls.key"):
        (tmp_path / file).write_bytes(base64.b64decode(issued["data"][file]))
    address = own_address()
    relay = TlsRelay(engine, tmp_path / "tls.crt", tmp_path / "tls.key", address=address)
    client.create(
        kinds.ENDPOINT_SLICES,
        where,
        {
            "apiVersion": kinds.ENDPOINT_SLICES.api_version,
            "kind": kinds.ENDPOINT_SLICES.kind,
            "metadata": {"name": f"{SERVICE}-1", "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "protocol": "TCP", "appProtocol": "https", "port": relay.port}],
        },
    )
    kubeconfig = grant_gateway_rights(client, cluster, tmp_path / "kubeconfig")
    log = tmp_path / "gateway.log"
    with gateway_process(kubeconfig, log, "-n", where) as gateway:

        def refused() -> str:
            status, told = completion(gateway, "secured")
            assert status in (0, 404, 503), told
            return str(told["error"]["code"] + told["error"]["message"]) if status == 503 else ""

        eventually(lambda: "may not be read" in refused(), what="a refusal without the right to the Secrets")
        assert refused().startswith("engine_not_accessible")
        allow_secrets(client, where, "engine-key", CERTIFICATES)
        eventually(lambda: completion(gateway, "secured")[0] == 200, what="an answer of the engine")
        status, told = completion(gateway, "secured")
        assert (status, told["usage"]["completion_tokens"] >= 1) == (200, True)
    relay.close()
    written = log.read_text()
    assert KEY not in written
    assert "PRIVATE KEY" not in written


def test_an_engine_gets_a_key_that_the_loop_made_and_answers_the_gateway_alone(
    client: KubeClient, cluster: LocalCluster, llama_server: Path, pulumi_cli: Path, tmp_path: Path
) -> None:
    where, name = "own-keys", "chat-engine-key"
    put(client, kinds.NAMESPACES, None, where)
    kubeconfig = loop.grant_loop_rights(client, cluster, tmp_path / "loop-kubeconfig")
    allow_keys(client)
    loop.model(client, where)
    loop.service(client, where, "chat", annotations={"herdsman.dev/engine-key": "true"}, runtime="llamacpp")
    with loop.loop_process(kubeconfig, tmp_path):
        eventually(lambda: find(client, kinds.SECRETS, where, name), what="the key")
        deployment = eventually(lambda: find(client, kinds.DEPLOYMENTS, where, "chat"), what="the Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    # What the kubelet does with it.
    [variable] = [each for each in container["env"] if each["name"] == "LLAMA_API_KEY"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": name, "key": "api-key"}
    key = base64.b64decode(client.get(kinds.SECRETS, where, name)["data"]["api-key"]).decode()
    state = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".gguf")
    assert key.encode() not in state
    with engine_process(llama_server, tmp_path, key, own_address()) as (address, port):
        client.create(
            kinds.ENDPOINT_SLICES,
            where,
            {
                "apiVersion": kinds.ENDPOINT_SLICES.api_version,
                "kind": kinds.ENDPOINT_SLICES.kind,
                "metadata": {"name": "chat-1", "labels": {"kubernetes.io/service-name": "chat"}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
                "ports": [{"name": "http", "protocol": "TCP", "port": port}],
            },
        )
        allow_secrets(client, where, name)
        gateway_rights = grant_gateway_rights(client, cluster, tmp_path / "kubeconfig")
        with gateway_process(gateway_rights, tmp_path / "gateway.log", "-n", where) as gateway:
            eventually(lambda: completion(gateway, "chat")[0] == 200, what="an answer of the engine")
        assert completion(f"http://{address}:{port}", "chat")[0] == 401
    assert key not in (tmp_path / "gateway.log").read_text()

    age, without = "herdsman_engine_key_age_seconds", {"metadata": {"annotations": {"herdsman.dev/engine-key": None}}}
    with loop.loop_process(kubeconfig, tmp_path) as again:
        eventually(lambda: again.metric(age) > 0, what="the age of the key")
        client.patch(kinds.INFERENCE_SERVICES, where, "chat", without)
        eventually(lambda: again.metric(age) == 0, what="the end of the age with that of the key")


def test_a_key_is_replaced_while_requests_go_on_and_none_fails(
    client: KubeClient, cluster: LocalCluster, llama_server: Path, pulumi_cli: Path, tmp_path: Path
) -> None:
    where = "rotated-keys"
    put(client, kinds.NAMESPACES, None, where)
    kubeconfig = loop.grant_loop_rights(client, cluster, tmp_path / "loop-kubeconfig")
    allow_keys(client)
    loop.model(client, where)
    loop.service(client, where, "chat", annotations={"herdsman.dev/engine-key": "true"}, runtime="llamacpp")
    allow_secrets(client, where, *(f"chat-engine-key{number}" for number in ("", "-2", "-3")))
    rights = grant_gateway_rights(client, cluster, tmp_path / "kubeconfig")

    def secret_of_pods() -> str:
        deployment = find(client, kinds.DEPLOYMENTS, where, "chat")
        containers = deployment["spec"]["template"]["spec"]["containers"] if deployment else []
        variables = [each for container in containers for each in container["env"] if each["name"] == "LLAMA_API_KEY"]
        return str(variables[0]["valueFrom"]["secretKeyRef"]["name"]) if variables else ""

    def key_in(name: str) -> str:
        return base64.b64decode(client.get(kinds.SECRETS, where, name)["data"]["api-key"]).decode()

    with contextlib.ExitStack() as stack:
        stack.enter_context(loop.loop_process(kubeconfig, tmp_path))
        eventually(lambda: secret_of_pods() == "chat-engine-key", what="the pods' key")
        first = key_in("chat-engine-key")
        old = stack.enter_context(engine_process(llama_server, tmp_path, first, own_address()))
        serve_replicas(client, where, old)
        put(client, kinds.SERVICE_ACCOUNTS, where, "default")
        # A pod as the Deployment's controller makes it.
        reference = {
            "name": "LLAMA_API_KEY",
            "valueFrom": {"secretKeyRef": {"name": "chat-engine-key", "key": "api-key"}},
        }
        container = {"name": "llama-server", "image": "registry.example/engine:1", "env": [reference]}
        metadata = {"name": "chat-1", "labels": {LABEL_SERVICE: "chat"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        client.create(kinds.PODS, where, pod)
        gateway = stack.enter_context(gateway_process(rights, tmp_path / "gateway.log", "-n", where))
        eventually(lambda: completion(gateway, "chat")[0] == 200, what="an answer of the engine")
        statuses: list[int] = []
        stopping = threading.Event()

        def ask() -> None:
            while not stopping.is_set():
                statuses.append(completion(gateway, "chat")[0])

        clients = ThreadPoolExecutor(3)
        stack.callback(clients.shutdown)
        stack.callback(stopping.set)
        for _ in range(2):
            clients.submit(ask)
        command = ["key", "rotate-engine", "chat", "-n", where, "--kubeconfig", str(cluster.kubeconfig)]
        rotation = clients.submit(invoke, command)
        eventually(lambda: secret_of_pods() == "chat-engine-key-2", what="the roll-out")
        second = key_in("chat-engine-key-2")
        assert second != first
        new = stack.enter_context(engine_process(llama_server, tmp_path, second, own_address()))
        eventually(lambda: completion(f"http://{new[0]}:{new[1]}", "chat")[0] == 401, what="the new replica")
        serve_replicas(client, where, old, new)
        asked = len(statuses)
        eventually(lambda: len(statuses) > asked + 20, what="requests to both replicas")
        assert not rotation.done(), "a pod still has the old key"
        serve_replicas(client, where, new)
        asked = len(statuses)
        eventually(lambda: len(statuses) > asked + 10, what="requests to the new replica")
        client.delete(kinds.PODS, where, "chat-1", grace_period_s=0)
        assert rotation.result(60) == 0
        assert find(client, kinds.SECRETS, where, "chat-engine-key") is None
        asked = len(statuses)
        eventually(lambda: len(statuses) > asked + 5, what="requests after the rotation")

        # The next one is made by the loop, as soon as the key is too old.
        annotations = {
            "herdsman.dev/engine-key-max-age": "12h",
            "herdsman.dev/engine-key-since": "2026-01-01T00:00:00Z",
        }
        client.patch(kinds.INFERENCE_SERVICES, where, "chat", {"metadata": {"annotations": annotations}})
        eventually(lambda: secret_of_pods() == "chat-engine-key-3", what="the loop's replacement")
        third = stack.enter_context(engine_process(llama_server, tmp_path, key_in("chat-engine-key-3"), own_address()))
        eventually(lambda: completion(f"http://{third[0]}:{third[1]}", "chat")[0] == 401, what="the third replica")
        serve_replicas(client, where, new, third)
        asked = len(statuses)
        eventually(lambda: len(statuses) > asked + 20, what="requests to both replicas")
        serve_replicas(client, where, third)
        asked = len(statuses)
        eventually(lambda: len(statuses) > asked + 10, what="requests to the third replica")
        assert set(statuses) == {200}
    log = (tmp_path / "gateway.log").read_text()
    assert first not in log
    assert second not in log


def serve_replicas(client: KubeClient, where: str, *places: tuple[str, int]) -> None:
    """Have EndpointSlices with these replicas of the service `chat`, as its pods' controller makes them."""
    wanted = {f"chat-{port}": (address, port) for address, port in places}
    present = {each["metadata"]["name"] for each in client.list(kinds.ENDPOINT_SLICES, where)["items"]}
    for name in wanted.keys() - present:
        address, port = wanted[name]
        endpoint_slice = {
            "apiVersion": kinds.ENDPOINT_SLICES.api_version,
            "kind": kinds.ENDPOINT_SLICES.kind,
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "chat"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        }
        client.create(kinds.ENDPOINT_SLICES, where, endpoint_slice)
    for name in present - wanted.keys():
        client.delete(kinds.ENDPOINT_SLICES, where, name)


def allow_keys(client: KubeClient) -> None:
    """Give the loop the right to make keys of engines, as an installation with a gateway does."""
    role, binding = client.mapping(ROLES, "ClusterRole"), client.mapping(ROLES, "ClusterRoleBinding")
    if find(client, role, None, "engine-keys") is not None:
        return
    put(client, role, None, "engine-keys", rules=[each.rule for each in permissions.ENGINE_KEYS])
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "name": loop.LOOP_USER, "apiGroup": group}]
    reference = {"kind": "ClusterRole", "name": "engine-keys", "apiGroup": group}
    put(client, binding, None, "engine-keys", subjects=subjects, roleRef=reference)
