"""LoRA adapters of a real llama-server: found and switched off by the loop's requests, applied by the gateway's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from automation.serving.adapters.engine_requests import load
from automation.serving.adapters.replica_requests import ReplicaRequests
from automation.serving.engine_start import EngineStart
from gateway.cluster.adapters import DeclaredAdapter, adapter_routes, model_fields
from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.server import GatewayServer
from program.desired.adapter import AdapterReason
from tests.hosts.test_llama_server_arguments import ask, running
from tests.support.adapter_files import write_adapter
from tests.support.gateways import Front
from tests.support.pod_proxy import PodProxy, Say

START = EngineStart("ns", "p", "u1", "c1", 8080, "llama-server")


def test_only_requests_that_name_an_adapter_get_it(llama_server: Path, tiny_model: Path, tmp_path: Path) -> None:
    files = {name: str(write_adapter(tmp_path / f"{name}.gguf", seed=n)) for n, name in enumerate(("legal", "sql"))}
    arguments = ["--model", str(tiny_model), "--host", "127.0.0.1", "--port", "{port}", "-c", "512"]
    with (
        running(llama_server, [*arguments, "--cache-ram", "0", "--lora", ",".join(files.values())]) as url,
        running(llama_server, arguments) as plain_url,
        PodProxy() as proxy,
    ):

        def engine(method: str, path: str, body: Any) -> Say:
            assert (method == "POST") == (body is not None)
            status, text = ask(f"{url}{path}", body)
            return Say(status, text.encode())

        proxy.engines["p"] = engine
        send = ReplicaRequests(proxy.client).asking(START, None)
        missing = load("llamacpp", "x", "/adapters/x.gguf", send)
        assert missing.reason == AdapterReason.NOT_IN_ARGUMENTS
        found = {name: load("llamacpp", name, path, send) for name, path in files.items()}
        assert {name: each.adapter_id for name, each in found.items()} == {"legal": 0, "sql": 1}

        at = urlsplit(url)
        target = (str(at.hostname), int(at.port or 0))
        declared = [DeclaredAdapter(name, {"p": each.adapter_id}) for name, each in found.items()]
        adapters = adapter_routes(declared, {target: "p"}, "llamacpp", "chat")
        server = GatewayServer()
        front = Front(server)
        try:
            model = Model(ServiceName("ns", "chat"), adapters=tuple(files))
            fields = model_fields(declared, "llamacpp")
            front.serve_routes(Route(model, (target,), adapters=adapters, model_fields=fields))
            asked = {"prompt": "Once upon", "max_tokens": 12, "temperature": 0, "seed": 1}

            def text(name: str) -> str:
                status, _, answer = front.ask({"model": name, **asked}, "/v1/completions")
                assert status == 200, answer
                return str(answer["choices"][0]["text"])

            answers = {name: text(name) for name in ("chat", "chat:legal", "chat:sql")}
            assert len(set(answers.values())) == 3, answers
            for _ in range(3):
                for name in ("chat", "chat:sql", "chat", "chat:legal"):
                    assert text(name) == answers[name], "an adapter stays with its request"
            of_model = {key: json.loads(value) for key, value in fields.items()}
            _, plain = ask(f"{plain_url}/v1/completions", {**asked, **of_model})
            assert json.loads(plain)["choices"][0]["text"] == answers["chat"], "the model itself has no adapter"
        finally:
            server.stop()


@pytest.mark.parametrize("flag", [(), ("--lora-init-without-apply",)])
def test_a_scale_of_zero_is_not_written_again(
    flag: tuple[str, ...], llama_server: Path, tiny_model: Path, tmp_path: Path
) -> None:
    path = str(write_adapter(tmp_path / "sql.gguf", seed=1))
    arguments = ["--model", str(tiny_model), "--host", "127.0.0.1", "--port", "{port}", "-c", "512", "--lora", path]
    asked: list[str] = []
    with running(llama_server, [*arguments, *flag]) as url, PodProxy() as proxy:

        def engine(method: str, path: str, body: Any) -> Say:
            asked.append(method)
            status, text = ask(f"{url}{path}", body)
            return Say(status, text.encode())

        proxy.engines["p"] = engine
        send = ReplicaRequests(proxy.client).asking(START, None)
        for _ in range(2):
            assert load("llamacpp", "sql", path, send).state == "loaded"
    assert asked == ["GET", "POST", "GET"]
