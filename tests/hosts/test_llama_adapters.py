"""LoRA adapters of a real llama-server: found and switched off by the loop's requests, applied by the gateway's."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
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
from program.desired.adapter import FOLDER, AdapterReason
from program.dialects.llmkube.parse.adapter import files_of
from tests.hosts.test_llama_server_arguments import ask, running
from tests.support.adapter_files import write_adapter
from tests.support.builders import service
from tests.support.gateways import Front
from tests.support.loop import http_folder
from tests.support.pod_proxy import PodProxy, Say
from tests.unit.components.views import container as engine_container
from tests.unit.components.views import init, plain_env

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
        send = ReplicaRequests(proxy.client).asking(START, ())
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
        send = ReplicaRequests(proxy.client).asking(START, ())
        for _ in range(2):
            assert load("llamacpp", "sql", path, send).state == "loaded"
    assert asked == ["GET", "POST", "GET"]


def test_a_pod_downloads_an_adapter_and_its_engine_starts_with_it(
    llama_server: Path, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "served").mkdir()
    written = write_adapter(tmp_path / "served" / "sql.gguf", seed=1)
    with http_folder(written.parent) as folder:
        spec = {"inferenceServiceRef": {"name": "svc"}, "name": "sql", "source": f"{folder}/sql.gguf"}
        spec["sha256"] = hashlib.sha256(written.read_bytes()).hexdigest()
        cr = {"metadata": {"name": "sql", "namespace": "ns", "uid": "u"}, "spec": spec}
        [file] = files_of({"metadata": {"name": "svc"}, "spec": {}}, [cr], on_host=False)
        desired = service(adapters=(file,))
        container = init(desired)[file.container]

        def here(path: str) -> str:
            return path.replace(FOLDER, str(tmp_path / "volume"))

        variables = {name: here(value) for name, value in plain_env(container).items()}
        told = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **variables}
        subprocess.run(container["command"], env=told, check=True, timeout=60, capture_output=True)
    arguments = [here(word) for word in engine_container(desired)["args"]]
    for flag, value in (("--model", str(tiny_model)), ("--port", "{port}"), ("--host", "127.0.0.1")):
        arguments[arguments.index(flag) + 1] = value
    with running(llama_server, [*arguments, "-c", "512"]) as url, PodProxy() as proxy:
        asked: list[str] = []

        def engine(method: str, path: str, body: Any) -> Say:
            asked.append(method)
            status, text = ask(f"{url}{path}", body)
            return Say(status, text.encode())

        proxy.engines["p"] = engine
        send = ReplicaRequests(proxy.client).asking(START, None)
        found = load("llamacpp", "sql", here(file.pod_path), send)
        assert (found.state, found.adapter_id, asked) == ("loaded", 0, ["GET"]), "its scale is 0 from the start"
        texts = []
        for lora in ([], [{"id": 0, "scale": 1.0}]):
            prompt = {"prompt": "Once upon", "max_tokens": 12, "temperature": 0, "seed": 1}
            _, answer = ask(f"{url}/v1/completions", {**prompt, **({"lora": lora} if lora else {})})
            texts.append(json.loads(answer)["choices"][0]["text"])
        assert texts[0] != texts[1]
