"""The ways to a service of a cluster: real port-forwards and HTTP servers, without a kube-apiserver."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.chat.completions import Completions
from automation.cli import exits
from automation.cli.main import invoke
from automation.places.cluster import ClusterPlace
from automation.places.cluster_reach import GATEWAY_KEY_VARIABLE, Replica, replicas_of
from automation.places.place import NoAccess, PlaceError, Reached
from kubeapi.json_types import Json
from tests.support.completion_server import NAME, CompletionServer, completion_server
from tests.support.pod_port_forward import TOKEN, ForwardingServer, forwarding_server

SERVICES = "/apis/inference.llmkube.dev/v1alpha1/namespaces/ns/inferenceservices"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
INGRESS = "/apis/networking.k8s.io/v1/namespaces/herdsman-system/ingresses/herdsman-gateway"


def endpoint_slice(*endpoints: Json, port: Json | None = None, labels: Json | None = None) -> Json:
    return {
        "metadata": {"namespace": "ns", "name": "chat-x", "labels": labels or {}},
        "ports": [port or {"name": "http", "port": 8080}],
        "endpoints": list(endpoints),
    }


def of_pod(name: str, **conditions: bool) -> Json:
    return {"addresses": ["10.0.0.7"], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def service(phase: str = "Ready", reason: str = "Serving", **annotations: str) -> Json:
    status = "True" if phase == "Ready" else "False"
    ready = {"type": "Ready", "status": status, "reason": reason, "message": "1 of 1 replicas ready"}
    return {
        "metadata": {"namespace": "ns", "name": "chat", "generation": 1, "annotations": annotations},
        "spec": {"modelRef": "base"},
        "status": {"phase": phase, "conditions": [ready], "observedGeneration": 1, "readyReplicas": 1},
    }


def test_endpoints_that_accept_requests_are_replicas() -> None:
    slices = [
        endpoint_slice(of_pod("a"), of_pod("b", ready=False), of_pod("c", ready=True, terminating=True)),
        endpoint_slice({"addresses": ["192.168.1.5"]}, labels={"herdsman.dev/host": "mac"}, port={"port": 9000}),
        endpoint_slice(of_pod("d"), port={"name": "https", "port": 8443}),
        {"metadata": {}, "ports": None, "endpoints": [of_pod("e")]},
    ]
    assert replicas_of(slices) == [
        Replica("10.0.0.7", 8080, pod="a"),
        Replica("192.168.1.5", 9000, host="mac"),
        Replica("10.0.0.7", 8443, tls=True, pod="d"),
    ]


@pytest.fixture
def engine() -> Iterator[CompletionServer]:
    with completion_server() as running:
        yield running


@pytest.fixture
def cluster(engine: CompletionServer) -> Iterator[ForwardingServer]:
    with forwarding_server({"chat-0": engine.port}) as server:
        server.objects = {SERVICES: {"items": [service()]}, SLICES: {"items": [endpoint_slice(of_pod("chat-0"))]}}
        yield server


def place(cluster: ForwardingServer) -> ClusterPlace:
    return ClusterPlace(cluster.client(), title="cluster test", default_namespace="ns")


def test_a_pod_is_reached_by_a_port_forward(cluster: ForwardingServer) -> None:
    there = place(cluster)
    with there.reach(there.find("chat")) as reached:
        assert reached.base_url.startswith("http://127.0.0.1:")
        assert (reached.model, reached.how, reached.key) == (NAME, "port-forward to pod chat-0", "")


def test_a_pod_that_is_gone_is_passed_over(cluster: ForwardingServer) -> None:
    cluster.objects[SLICES] = {"items": [endpoint_slice(of_pod("gone"), of_pod("chat-0"))]}
    there = place(cluster)
    with there.reach(there.find("chat")) as reached:
        assert reached.how == "port-forward to pod chat-0"


def test_a_host_is_reached_at_its_address(cluster: ForwardingServer, engine: CompletionServer) -> None:
    of_host = endpoint_slice(
        {"addresses": ["127.0.0.1"]}, labels={"herdsman.dev/host": "mac"}, port={"name": "http", "port": engine.port}
    )
    cluster.objects[SLICES] = {"items": [of_host]}
    there = place(cluster)
    with there.reach(there.find("chat")) as reached:
        assert (reached.base_url, reached.how) == (engine.base_url, "host mac")


def test_the_gateway_is_the_last_way(cluster: ForwardingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.objects[SLICES] = {"items": [endpoint_slice(of_pod("gone"))]}
    cluster.objects[INGRESS] = {"spec": {"rules": [{"host": "ai.example.com"}]}}
    there = place(cluster)
    with pytest.raises(NoAccess, match="the pod is gone") as refused, there.reach(there.find("chat")):
        pass
    assert GATEWAY_KEY_VARIABLE in refused.value.hint
    monkeypatch.setenv(GATEWAY_KEY_VARIABLE, "hk-1")
    with there.reach(there.find("chat")) as reached:
        assert (reached.base_url, reached.model, reached.is_gateway) == ("https://ai.example.com/v1", "ns/chat", True)


def test_the_key_of_an_engine_is_read_and_its_absence_named(cluster: ForwardingServer) -> None:
    cluster.objects[SERVICES] = {"items": [service(**{"herdsman.dev/api-key-secret": "keys/engine"})]}
    there = place(cluster)
    with pytest.raises(NoAccess, match="demands the key in Secret `keys`"), there.reach(there.find("chat")):
        pass
    cluster.objects["/api/v1/namespaces/ns/secrets/keys"] = {"data": {"engine": "c2VjcmV0"}}
    with there.reach(there.find("chat")) as reached:
        assert reached.key == "secret"
        assert "secret" not in repr(reached)


def test_without_a_replica_the_service_says_why(cluster: ForwardingServer) -> None:
    cluster.objects = {SERVICES: {"items": [service("Suspended", "Suspended")]}, SLICES: {"items": []}}
    there = place(cluster)
    with pytest.raises(PlaceError, match="no replica of `chat` serves") as stopped, there.reach(there.find("chat")):
        pass
    assert "herdsman start chat" in stopped.value.hint


@pytest.fixture
def kubeconfig(cluster: ForwardingServer, tmp_path: Path) -> str:
    file = tmp_path / "kubeconfig"
    file.write_text(
        f"clusters: [{{name: c, cluster: {{server: '{cluster.url}'}}}}]\n"
        f"users: [{{name: u, user: {{token: {TOKEN}}}}}]\n"
        "contexts: [{name: dev, context: {cluster: c, user: u, namespace: ns}}]\ncurrent-context: dev\n"
    )
    return str(file)


def test_a_chat_prints_only_the_answer(kubeconfig: str, engine: CompletionServer, capsys: Any) -> None:
    code = invoke(["chat", "chat", "-p", "hello to you", "--stats", "--max-tokens", "9", "--kubeconfig", kubeconfig])
    told = capsys.readouterr()
    assert (code, told.out) == (0, "hello to you \n")
    assert "7 prompt tokens, 3 tokens" in told.err
    assert engine.requests[-1]["max_tokens"] == 9


def test_standard_input_is_the_message(
    kubeconfig: str, engine: CompletionServer, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("read\nthis"))
    assert invoke(["chat", "chat", "--system", "Be short.", "--kubeconfig", kubeconfig]) == 0
    assert capsys.readouterr().out == "read this \n"
    assert [each["content"] for each in engine.requests[-1]["messages"]] == ["Be short.", "read\nthis"]


def test_a_refused_chat_fails_with_the_reason(kubeconfig: str, engine: CompletionServer, capsys: Any) -> None:
    engine.fault = "refused"
    assert invoke(["chat", "chat", "-p", "hello", "--kubeconfig", kubeconfig]) == exits.FAILED
    told = capsys.readouterr()
    assert told.out == ""
    assert "context size exceeded" in told.err


def test_a_chat_with_a_stopped_service_says_how_to_start_it(
    kubeconfig: str, cluster: ForwardingServer, capsys: Any
) -> None:
    cluster.objects[SERVICES] = {"items": [service("Suspended", "Suspended")]}
    assert invoke(["chat", "chat", "-p", "hello", "--kubeconfig", kubeconfig]) == exits.FAILED
    assert "herdsman start chat" in capsys.readouterr().err


def test_a_bench_measures_each_number_of_clients(kubeconfig: str, engine: CompletionServer, capsys: Any) -> None:
    words = ["bench", "chat", "--clients", "1,2", "--requests", "2", "--warmup", "0", "--kubeconfig", kubeconfig]
    assert invoke([*words, "-o", "json"]) == 0
    rounds = json.loads(capsys.readouterr().out)["rounds"]
    assert [(each["clients"], each["requests"], each["failed"]) for each in rounds] == [(1, 2, 0), (2, 4, 0)]
    assert invoke(words) == 0
    assert "FIRST p95" in capsys.readouterr().out
    assert invoke(["bench", "chat", "--clients", "0", "--kubeconfig", kubeconfig]) == exits.USAGE
    engine.fault = "refused"
    assert invoke(words) == exits.FAILED


def test_open_prints_an_address_that_answers_until_it_is_interrupted(kubeconfig: str) -> None:
    command = [sys.executable, "-m", "automation.cli", "open", "chat", "-o", "json", "--kubeconfig", kubeconfig]
    with ended(
        # A shell starts its background jobs with SIGINT ignored, and their children would inherit that.
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        assert "Ctrl-C" in running.stderr.readline()
        text = "".join(running.stdout.readline() for _ in range(5))
        found = json.loads(text)
        reached = Reached(base_url=found["baseUrl"], model=found["model"], how=found["how"])
        with Completions(reached) as completions:
            pieces = list(completions.stream([{"role": "user", "content": "hello"}]))
        assert [each.text for each in pieces] == ["hello "]
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0


def test_a_conversation_on_a_terminal_streams_answers_and_reads_commands(
    kubeconfig: str, engine: CompletionServer
) -> None:
    engine.fault = "thinks"
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "automation.cli", "chat", "chat", "--kubeconfig", kubeconfig]
    with ended(subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower)) as running:
        os.close(follower)
        said = await_text(leader, ">>> ")
        assert "port-forward to pod chat-0" in said
        os.write(leader, b"hello there\n")
        said = await_text(leader, ">>> ")
        assert "Let me see." in said and "hello there" in said.partition("Let me see.")[2]
        os.write(leader, b"/clera\n")
        assert "did you mean `/clear`?" in await_text(leader, ">>> ")
        os.write(leader, b"and again\n")
        await_text(leader, ">>> ")
        assert [each["role"] for each in engine.requests[-1]["messages"]] == ["user", "assistant", "user"]
        os.write(leader, b"/bye\n")
        assert running.wait(30) == 0
    os.close(leader)


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """Kill a process at the end of the block, so that a failed test does not wait for it."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def await_text(terminal: int, end: str) -> str:
    """Read a terminal until this text."""
    said = b""
    while not said.decode("utf-8", "replace").endswith(end):
        assert select.select([terminal], [], [], 30)[0], said
        said += os.read(terminal, 4096)
    return said.decode("utf-8", "replace")


def test_a_sleeping_service_that_only_the_gateway_wakes_is_reached_by_it(
    cluster: ForwardingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.objects[SERVICES] = {"items": [service("Ready", "Asleep")]}
    cluster.objects[SLICES] = {"items": []}
    cluster.objects[INGRESS] = {"spec": {"rules": [{"host": "ai.example.com"}]}}
    there = place(cluster)
    with pytest.raises(PlaceError, match="asleep") as refused, there.reach(there.find("chat")):
        pass
    assert GATEWAY_KEY_VARIABLE in refused.value.hint
    monkeypatch.setenv(GATEWAY_KEY_VARIABLE, "hk-1")
    with there.reach(there.find("chat")) as reached:
        assert reached.is_gateway
