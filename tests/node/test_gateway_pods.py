"""Gateways in pods, installed beside the operator: clients outside of the cluster use them by TLS and with a key."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from automation.install.gateway import GATEWAY, METRICS_PORT
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.pods import read_log
from tests.support import node as real
from tests.support.certificates import own_certificate
from tests.support.controlplane import Api
from tests.support.loop import await_condition, eventually, model, service
from tests.support.model_server import File, FileServer
from tests.support.operator_pods import OperatorPods
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

NAME = f"{GATEWAY}.{SYSTEM_NAMESPACE}.svc"
STARTED_S = 90.0
_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1}
ENGINE: Json = {
    "image": LLAMA_SERVER_IMAGE,
    "contextSize": 512,
    "resources": {"cpu": "100m"},
    "extraArgs": ["--threads", "1"],
    "probeOverrides": {"startup": {**_HEALTH, "failureThreshold": 60}, "readiness": _HEALTH},
}


@dataclass(frozen=True)
class Outside:
    """A client outside of the cluster, at the port of the node."""

    address: real.Address
    tls: real.Tls
    key: str = ""

    def ask(self, path: str, body: Json | None = None) -> real.Answer:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return real.ask(self.address, path, body, headers=headers, tls=self.tls)

    def chat(self) -> real.Answer:
        asked: Json = {"model": "svc", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        return self.ask("/v1/chat/completions", asked)


@pytest.fixture(scope="module")
def operator(operator_pods: OperatorPods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorPods]:
    """The operator with two gateways and their certificate."""
    folder = tmp_path_factory.mktemp("certificate")
    pem = own_certificate(folder, NAME).read_text()
    operator_pods.make_secret("herdsman-gateway-tls", **{"tls.crt": (folder / "ca.crt").read_text(), "tls.key": pem})
    operator_pods.install("--gateway", "--gateway-service-type=NodePort", "--gateway-memory=192Mi", "--gateway-metrics")
    operator_pods.await_leading()
    (operator_pods.directory / "ca.crt").write_text((folder / "ca.crt").read_text())
    yield operator_pods
    operator_pods.wipe()


@pytest.fixture(scope="module")
def place(
    operator: OperatorPods, node_api: Api, files: FileServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A namespace with a service that runs a real engine."""
    weights = write_tiny_model(tmp_path_factory.mktemp("weights") / "tiny.gguf").read_bytes()
    with node_api.namespace("gateway") as name:
        model(operator.client, name, source=files.serve("/gateway.gguf", File(weights)))
        service(operator.client, name, **ENGINE)
        await_condition(operator.client, name, "svc", "Ready", "True", timeout_s=STARTED_S)
        yield name


@pytest.fixture(scope="module")
def stranger(operator: OperatorPods) -> Outside:
    """A client without a key."""
    deployment = eventually(lambda: _ready(operator), what="two gateways that are ready", timeout_s=STARTED_S)
    assert deployment["status"]["readyReplicas"] == 2
    [port] = operator.client.get(kinds.SERVICES, SYSTEM_NAMESPACE, GATEWAY)["spec"]["ports"]
    network = operator.node.network
    context = ssl.create_default_context(cafile=str(operator.directory / "ca.crt"))
    return Outside(real.Address(network.address, port["nodePort"], network.device), real.Tls(context, NAME))


def _ready(operator: OperatorPods) -> Json:
    found: Json = operator.client.get(kinds.DEPLOYMENTS, SYSTEM_NAMESPACE, GATEWAY)
    status = found.get("status") or {}
    new = status.get("observedGeneration") == found["metadata"]["generation"] and status.get("updatedReplicas") == 2
    return found if new and status.get("readyReplicas") == 2 and status.get("replicas") == 2 else {}


@pytest.fixture(scope="module")
def member(operator: OperatorPods, stranger: Outside) -> Outside:
    """A client with a key."""
    made = operator.command("key", "create", "outside")
    assert made.returncode == 0, made.stderr
    found = Outside(stranger.address, stranger.tls, made.stdout.strip())
    # Each of the two gateways follows the keys, and a request may go to either.
    eventually(lambda: all(found.ask("/v1/models").status == 200 for _ in range(12)), what="the key to be known")
    return found


def test_a_client_outside_of_the_cluster_chats_with_a_key_only(place: str, stranger: Outside, member: Outside) -> None:
    assert stranger.chat().status == 401
    listed = member.ask("/v1/models")
    assert [each["id"] for each in listed.json["data"]][:1] == ["svc"], listed
    assert real.said(member.chat())


def test_the_rights_and_the_file_system_of_the_pods_are_enough(operator: OperatorPods, place: str) -> None:
    """The pods have not restarted, and their log has no error."""
    selector = f"app.kubernetes.io/name={GATEWAY}"
    found = real.pods(operator.client, SYSTEM_NAMESPACE, selector)
    assert len(found) == 2
    for pod in found:
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        metrics = real.Address(pod["status"]["podIP"], METRICS_PORT, operator.node.network.device)
        answer = real.ask(metrics, "/metrics")
        assert answer.status == 200 and "herdsman_gateway" in answer.body, answer
        log = b"".join(read_log(operator.client, SYSTEM_NAMESPACE, pod["metadata"]["name"], "gateway")).decode()
        assert "orbidden" not in log and '"level": "error"' not in log, log


def test_new_pods_replace_the_old_ones_without_a_lost_request(
    operator: OperatorPods, place: str, member: Outside
) -> None:
    stop, lost, sent = threading.Event(), [], []

    def load() -> None:
        while not stop.is_set():
            answer = member.chat()
            sent.append(answer.status)
            if answer.status != 200:
                lost.append(answer)

    clients = [threading.Thread(target=load) for _ in range(2)]
    for each in clients:
        each.start()
    try:
        again: Any = {"spec": {"template": {"metadata": {"annotations": {"restarted": "1"}}}}}
        operator.client.patch(kinds.DEPLOYMENTS, SYSTEM_NAMESPACE, GATEWAY, again)
        eventually(lambda: _ready(operator), what="the new pods", timeout_s=STARTED_S)
        selector = f"app.kubernetes.io/name={GATEWAY}"
        eventually(
            lambda: len(real.pods(operator.client, SYSTEM_NAMESPACE, selector)) == 2,
            what="the old pods to be gone",
            timeout_s=STARTED_S,
        )
    finally:
        stop.set()
        for each in clients:
            each.join()
    assert len(sent) > 4
    assert not lost, lost[:3]
