"""A service is changed while clients of several kinds send requests, and no request is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from components import naming
from kubeapi.client import KubeClient
from tests.support import node as real
from tests.support.client_load import under_load
from tests.support.controlplane import Api
from tests.support.loop import await_condition, edit, eventually, model, service
from tests.support.model_server import File, FileServer
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.node.node import Node
from tools.tiny_model import write_tiny_model

pytestmark = [pytest.mark.usefixtures("loop"), pytest.mark.soak]

STARTED_S = 90.0
REPLACED_S = 180.0
_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1}
ENGINE: dict[str, Any] = {
    "image": LLAMA_SERVER_IMAGE,
    "replicas": 2,
    "contextSize": 1024,
    "resources": {"cpu": "250m"},
    "extraArgs": ["--threads", "1"],
    "probeOverrides": {"startup": {**_HEALTH, "failureThreshold": 60}, "readiness": _HEALTH},
}


@pytest.fixture(scope="module")
def place(
    node_api: Api, client: KubeClient, files: FileServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A namespace with a Model."""
    weights = write_tiny_model(tmp_path_factory.mktemp("weights") / "tiny.gguf").read_bytes()
    with node_api.namespace("rolling") as name:
        model(client, name, source=files.serve("/rolling.gguf", File(weights)))
        yield name


def pods(client: KubeClient, place: str, name: str) -> list[dict[str, Any]]:
    return real.pods(client, place, f"{naming.LABEL_SERVICE}={name}")


def test_a_rolling_update_as_it_is_by_default_loses_no_request(client: KubeClient, node: Node, place: str) -> None:
    """Two replicas and eight clients: four read streams, two read whole answers, two keep their connections open."""
    service(client, place, "chat", annotations={"herdsman.dev/served-name": "tiny-chat"}, **ENGINE)
    await_condition(client, place, "chat", "Ready", "True", saying="2 of 2 replicas", timeout_s=STARTED_S)
    address = real.cluster_address(client, node, place, "chat")
    eventually(lambda: real.chat(address, tokens=1).status == 200, what="an answer by the Service")
    assert [each["id"] for each in real.ask(address, "/v1/models").json["data"]] == ["tiny-chat"]
    old = {pod["metadata"]["uid"] for pod in pods(client, place, "chat")}

    def replaced() -> bool:
        left = {pod["metadata"]["uid"] for pod in pods(client, place, "chat")}
        return len(left) == 2 and not left & old

    with under_load(address) as load:
        eventually(lambda: load.sent >= 20, what="requests of all clients")
        edit(client, place, "chat", contextSize=2048)
        eventually(replaced, what="the old pods to be gone", timeout_s=REPLACED_S)
        during = load.sent
        eventually(lambda: load.sent > during + 20, what="answers of the new pods")
    print(f"sent {load.sent} requests, lost {len(load.lost)}")
    assert not load.lost, f"{len(load.lost)} of {load.sent} requests were lost: {load.lost[:5]}"
    assert during > 50
