"""The everyday commands and services in pods of a real kubelet: a real port-forward, and a service that sleeps."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from automation.cli.main import invoke
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.port_forward import PodForward, forward_to_pod
from tests.support import node as real
from tests.support.loop import await_condition, eventually
from tests.support.model_server import File, FileServer
from tools.localcluster import LocalCluster
from tools.node import image_set
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.node.node import Node
from tools.tiny_model import write_tiny_model

pytestmark = [pytest.mark.usefixtures("loop"), pytest.mark.soak]

STARTED_S = 90.0


def test_a_deployed_model_is_chatted_with_through_a_port_forward_also_after_it_slept(
    client: KubeClient,
    node_cluster: tuple[LocalCluster, Node],
    namespace: str,
    files: FileServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = ("-n", namespace, "--kubeconfig", str(node_cluster[0].kubeconfig))
    url = files.serve("/talk.gguf", File(write_tiny_model(tmp_path / "talk.gguf").read_bytes()))
    words = ["--image", LLAMA_SERVER_IMAGE, "--cpu", "250m", "--context", "512", "--idle-timeout", "5s"]
    assert invoke(["deploy", "talk", "--source", url, *words, "--extra-args=--threads", "--extra-args=1", *there]) == 0
    assert invoke(["chat", "talk", "-p", "Hi", "--max-tokens", "8", *there]) == 0
    told = capsys.readouterr()
    assert told.out.strip()
    assert "talk is starting" in told.err, "the chat says what it waits for"

    await_condition(client, namespace, "talk", "Ready", "True", saying="the next request", timeout_s=STARTED_S)
    labels = f"{naming.LABEL_SERVICE}=talk"
    eventually(lambda: not real.pods(client, namespace, labels), what="no pod", timeout_s=STARTED_S)
    assert invoke(["bench", "talk", "--clients", "2", "--requests", "2", "--max-tokens", "4", *there]) == 0
    assert "port-forward to pod talk-" in capsys.readouterr().err

    (pod,) = real.pods(client, namespace, labels)
    with pytest.raises(NotFound), forward_to_pod(client, namespace, "made-up", 8080):
        pass
    # Nothing listens on this port of the pod.
    with forward_to_pod(client, namespace, pod["metadata"]["name"], 81) as there_is_nobody:
        eventually(lambda: _problem_of(there_is_nobody), what="the kubelet's error", timeout_s=30)

    monkeypatch.setenv("HERDSMAN_INIT_CONTAINER_IMAGE", image_set.DOWNLOADER_IMAGE)
    capsys.readouterr()
    assert invoke(["delete", "talk", "--yes", "--purge", *there]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Deleted InferenceService `talk`, Model `talk`, ")
    assert told.endswith(" of files\n")
    assert client.list(kinds.MODELS, namespace)["items"] == []


def _problem_of(forward: PodForward) -> str:
    with socket.create_connection(("127.0.0.1", forward.port), timeout=10) as connection:
        connection.recv(10)
    return forward.problem
