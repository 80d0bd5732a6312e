"""The loop's requests to replicas, sent to a real llama-server through a relay in place of the API server's proxy."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from automation.reconcile.act_on_pods import PodActor
from automation.serving.completion_check import CompletionCheck
from automation.serving.engine_progress import Reading, read_metrics
from automation.serving.engine_start import EngineStart
from automation.serving.idleness import IdleCheck
from automation.serving.readiness import REPLACE_AFTER
from automation.serving.replicas import Replicas
from automation.status.event_recorder import EventRecorder
from program.desired.keys import ServiceKey
from program.runtimes import runtime_for
from tests.support.builders import service
from tests.support.held_file import held
from tests.support.loop import eventually
from tests.support.pod_actions import act_on_pods
from tests.support.pod_proxy import PodProxy, Say
from tests.support.pods import remembered
from tests.support.supervising import free_port

START = EngineStart("ns", "p", "u1", "c1", 8080, "llama-server")


class Server:
    """One llama-server on loopback; requests to pod `p` of the relay go to it."""

    def __init__(self, binary: Path, model: Path, *arguments: str) -> None:
        self.port = free_port()
        command = [str(binary), "--model", str(model), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["-c", "1024", "--parallel", "1", "--metrics", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_for(self, health: int) -> None:
        """Wait until `/health` answers with this status: 200, or 503 while the model is loaded."""
        what = f"a llama-server whose health is {health}"
        eventually(lambda: self.ask("GET", "/health").status == health, what=what, timeout_s=60)

    def ask(self, method: str, path: str, body: Any = None) -> Say:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
            answer = connection.getresponse()
            return Say(answer.status, answer.read())
        except OSError:
            return Say(502, b"")
        finally:
            connection.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def serve(llama_server: Path, tiny_model: Path) -> Iterator[Callable[..., tuple[PodProxy, Server]]]:
    with PodProxy() as proxy:
        running: list[Server] = []

        def start(*arguments: str) -> tuple[PodProxy, Server]:
            made = Server(llama_server, tiny_model, *arguments)
            running.append(made)
            made.wait_for(200)
            proxy.engines["p"] = made.ask
            return proxy, made

        yield start
        for server in running:
            server.stop()


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [
        ("chat", ()),
        ("embedding", ("--embedding", "--pooling", "last")),
        ("rerank", ("--reranking", "--embedding", "--pooling", "rank")),
    ],
)
def test_a_real_engine_proves_itself_in_every_mode(
    serve: Callable[..., tuple[PodProxy, Server]], mode: str, arguments: tuple[str, ...]
) -> None:
    proxy, _ = serve(*arguments)
    desired = service(mode=mode)
    request = runtime_for(desired.engine).completion(desired)
    assert request is not None
    check = CompletionCheck(proxy.client, timeout_s=30)
    assert check.check(START, request).state == "proved"
    check.close()


def test_an_engine_that_wants_a_key_is_reached_and_not_judged(
    serve: Callable[..., tuple[PodProxy, Server]],
) -> None:
    proxy, _ = serve("--api-key", "secret")
    check = CompletionCheck(proxy.client, timeout_s=30)
    chat = runtime_for(service().engine).completion(service())
    assert chat is not None
    proof = check.check(START, chat)
    assert (proof.state, proof.final) == ("unknown", True) and "key" in proof.message
    check.close()


def test_a_long_answer_shows_as_busy_and_as_progress(serve: Callable[..., tuple[PodProxy, Server]]) -> None:
    proxy, server = serve()
    desired = service()
    runtime = runtime_for(desired.engine)
    probe, metrics = runtime.idle_probe(desired), runtime.progress(desired)
    assert probe is not None and metrics is not None
    idle = IdleCheck(proxy.client)
    assert idle.check(START, probe).state == "idle"
    # Long enough for any machine: the client disconnects after the checks.
    body = json.dumps({"prompt": "Hi", "n_predict": 100_000, "ignore_eos": True, "stream": True})
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    client.request("POST", "/completion", body, {"Content-Type": "application/json"})
    eventually(lambda: idle.check(START, probe).state == "busy", what="a busy engine", timeout_s=60)

    def reading() -> Reading:
        answer = server.ask("GET", "/metrics")
        return read_metrics(bytes(answer.body).decode(), metrics)

    first = reading()
    assert first.running == 1 and first.tokens is not None
    eventually(
        lambda: (reading().tokens or 0) > (first.tokens or 0), what="a token while the answer is made", timeout_s=60
    )
    client.close()
    eventually(lambda: idle.check(START, probe).state == "idle", what="an idle engine", timeout_s=60)
    idle.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file lease of Linux, which holds the model's file back")
def test_a_replica_is_neither_ready_nor_replaced_while_its_engine_loads(
    llama_server: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """A container without a readiness probe is checked as soon as it runs."""
    model = Path(shutil.copyfile(tiny_model, tmp_path / "model.gguf"))
    key, now, minutes = ServiceKey("llmkube", "ns", "svc"), datetime(2026, 1, 1, tzinfo=UTC), iter(range(1000))
    cr = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "svc", "namespace": "ns", "uid": "u"}}
    answers: list[str] = []
    with PodProxy() as proxy:
        recorder = EventRecorder(proxy.client)
        check = CompletionCheck(
            proxy.client, timeout_s=30, on_answer=answers.append, clock=lambda: 60.0 * next(minutes)
        )
        nobody = lambda _key, _delay_s: None  # noqa: E731
        replicas = Replicas(check=check, stalls=None, requeue=nobody)
        actor = PodActor(proxy.client, replicas)

        def proved() -> str:
            """Run a pass, and another one after the engine's response; return the result of the check."""
            for _ in range(2):
                found = replicas.review(key, cr, service(), (remembered("p"),), now=now)
                failed = act_on_pods(actor, recorder, key, cr, found.actions, requeue=nobody, now=now)
                eventually(check.idle, what="an answer", timeout_s=30)
            assert found.proofs is not None and found.problem is None and failed is None
            return found.proofs["p"].state if found.proofs["p"] is not None else "awaited"

        try:
            with held(model):
                server = Server(llama_server, model)
                server.wait_for(503)
                proxy.engines["p"] = server.ask
                while len(answers) <= 2 * REPLACE_AFTER:
                    assert proved() == "awaited"
            server.wait_for(200)
            assert proved() == "proved"
            assert set(answers) == {"loading", "proved"}
            assert not [path for method, path, _ in proxy.others if method == "DELETE"]
        finally:
            server.stop()
            check.close()
            recorder.stop()
