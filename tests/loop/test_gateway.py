"""One address for all services: a real loop, agent and llama-server behind `herdsman gateway`."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.server.host_facts import own_address as own_address_of_host
from automation.certificates.files import serving_files
from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import event_loop, needs
from tests.support.agents import REACHED, agent
from tests.support.controlplane import Api
from tests.support.gateway_rights import grant_gateway_rights, grant_secret
from tests.support.loop import (
    LoopProcess,
    await_condition,
    condition,
    edit,
    eventually,
    gateway_loop,
    http_folder,
    model,
    service,
    status,
)
from tests.support.supervising import free_port
from tests.support.tls_relay import TlsRelay
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model
from tools.toolchain import locate

pytestmark = pytest.mark.usefixtures("loop")
HOST = "gateway-tests"
CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
CALLS = Path(__file__).parents[1] / "support" / "langchain_calls.py"


@pytest.fixture(scope="module")
def own_address() -> str:
    """The address of the gateway in the loop's process."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def loop(
    loop_kubeconfig: Path, pulumi_cli: Path, own_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    """One loop over all namespaces, which is also a gateway. It has the rights of a loop only."""
    with gateway_loop(loop_kubeconfig, tmp_path_factory.mktemp("loop"), own_address) as running:
        yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a tiny model."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / "tiny.gguf")
    with http_folder(folder) as url:
        yield f"{url}/tiny.gguf"


@pytest.fixture(scope="module", autouse=True)
def host(
    client: KubeClient, control_plane: LocalCluster, llama_server: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """An agent on this machine."""
    arguments = ("--kubeconfig", str(control_plane.kubeconfig), "--allowed-remote-hosts", "127.0.0.0/8", *REACHED)
    with agent(tmp_path_factory.mktemp("store"), *arguments, host=HOST) as running:
        running.start()
        yield


@pytest.fixture(scope="module")
def gateway_kubeconfig(
    client: KubeClient, control_plane: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The kubeconfig of a user with the rights of an installed gateway only."""
    return grant_gateway_rights(client, control_plane, tmp_path_factory.mktemp("gateway") / "kubeconfig")


@pytest.fixture
def address(gateway_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[str]:
    """The address of a gateway for the namespace of the test."""
    port = free_port()
    command = [sys.executable, "-m", "automation.cli", "gateway", "--listen", f"127.0.0.1:{port}", "-n", namespace]
    with (tmp_path / "gateway.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--kubeconfig", str(gateway_kubeconfig)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HERDSMAN_GATEWAY_STORE": store_of(tmp_path)},
        )
    try:
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        print((tmp_path / "gateway.log").read_text())


def store_of(directory: Path) -> str:
    """The address of the store of the gateway's usage."""
    return f"sqlite://{directory}/gateway.db"


def usage_of(service: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """The prompt's tokens and the completion's that `herdsman usage` shows for a service."""
    capsys.readouterr()
    assert invoke(["usage", "--by", "model", "-o", "json"]) == 0
    rows = {each["model"]: each for each in json.loads(capsys.readouterr().out)}
    row = rows.get(service, {})
    return row.get("promptTokens", 0), row.get("completionTokens", 0)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def names(address: str) -> dict[str, str]:
    """The listed names with the states of their models."""
    try:
        return {each["id"]: each["status"] for each in get(f"{address}/v1/models")["data"]}
    except OSError:
        return {}


def has_been_ready(client: KubeClient, namespace: str, name: str) -> bool:
    """Return whether a service is ready, or asleep already: on a busy machine nobody may see it ready before."""
    ready = condition(client, namespace, name, "Ready")
    return ready.get("status") == "True" or ready.get("reason") == "Asleep"


def is_ready(address: str) -> bool:
    try:
        return get(f"{address}/ready") == {"status": "ok"}
    except OSError:
        return False


def chat(address: str, name: str, **fields: Any) -> bytes:
    asked = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4} | fields
    request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        content: bytes = answer.read()
    return content


def test_all_services_answer_at_one_address_also_one_that_sleeps(
    client: KubeClient,
    namespace: str,
    source: str,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model(client, namespace, source=source)
    service(client, namespace, "plain", annotations={"herdsman.dev/host": HOST}, contextSize=256)
    annotations = {"herdsman.dev/host": HOST, "herdsman.dev/idle-timeout": "2s"}
    annotations |= {"herdsman.dev/served-name": "tiny-instruct", "herdsman.dev/model-aliases": "gpt-4o"}
    service(client, namespace, "sleeper", annotations=annotations, contextSize=256)
    await_condition(client, namespace, "plain", "Ready", "True")
    eventually(lambda: has_been_ready(client, namespace, "sleeper"), what="the service that sleeps to have been ready")
    eventually(lambda: is_ready(address), what="the gateway to know the models")
    known = {"plain", "sleeper", "gpt-4o", "tiny-instruct"}
    eventually(lambda: known <= names(address).keys(), what="the names of both models")
    eventually(lambda: names(address).get("plain") == "ready", what="the model to be ready at the gateway")

    for name in ("gpt-4o", "tiny-instruct"):
        assert json.loads(chat(address, name))["usage"]["completion_tokens"] >= 1
    reported = [json.loads(chat(address, name))["usage"] for name in ("plain", f"{namespace}/plain")]
    # The model has random weights and may end an answer at any token, so that two answers would differ in length.
    streamed = chat(address, "plain", stream=True, ignore_eos=True, stream_options={"include_usage": True})
    assert streamed.endswith(b"data: [DONE]\n\n")
    reported.append(json.loads(streamed.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"])
    # The engine reports the usage of a stream only if it is asked, and the client gets it only if it has asked.
    silent = chat(address, "plain", stream=True, ignore_eos=True)
    assert silent.endswith(b"data: [DONE]\n\n")
    assert b'"completion_tokens"' not in silent
    reported.append(reported[-1])
    monkeypatch.setenv("HERDSMAN_GATEWAY_STORE", store_of(tmp_path))
    shown = tuple(sum(each[name] for each in reported) for name in ("prompt_tokens", "completion_tokens"))
    eventually(lambda: usage_of(f"{namespace}/plain", capsys) == shown, what="the usage that the engine reported")
    with pytest.raises(urllib.error.HTTPError) as refused:
        chat(address, "plane")
    assert refused.value.code == 404
    assert "plain" in json.load(refused.value)["error"]["message"]

    eventually(lambda: names(address).get("gpt-4o") == "asleep", what="the service to sleep")
    # The list of models has not woken it.
    assert status(client, namespace, "sleeper")["phase"] != "Failed"
    assert json.loads(chat(address, "gpt-4o"))["usage"]["completion_tokens"] >= 1

    client.delete(kinds.INFERENCE_SERVICES, namespace, "sleeper")
    eventually(lambda: "gpt-4o" not in names(address), what="the names of a deleted service to go")
    assert json.loads(chat(address, "plain"))["usage"]["completion_tokens"] >= 1


@pytest.fixture
def provider_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a certificate for this machine, which a gateway started from now on trusts."""
    for name, text in serving_files((), (own_address_of_host(),), now=datetime.datetime.now(datetime.UTC)).items():
        (tmp_path / name).write_bytes(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    return tmp_path


def test_a_router_chooses_among_services_and_a_provider(
    client: KubeClient, namespace: str, source: str, provider_files: Path, address: str
) -> None:
    model(client, namespace, source=source)
    service(client, namespace, "plain", annotations={"herdsman.dev/host": HOST}, contextSize=256)
    await_condition(client, namespace, "plain", "Ready", "True")
    [endpoints] = client.list(kinds.ENDPOINT_SLICES, namespace, label_selector="kubernetes.io/service-name=plain")[
        "items"
    ]
    engine = (endpoints["endpoints"][0]["addresses"][0], endpoints["ports"][0]["port"])
    host = own_address_of_host()
    relay = TlsRelay(engine, provider_files / "tls.crt", provider_files / "tls.key", address=host)
    external = {"provider": "openai", "model": "m", "url": f"https://{host}:{relay.port}/v1"}
    spec = {
        "backends": [
            {"name": "gone", "inferenceServiceRef": {"name": "gone"}},
            {"name": "small", "inferenceServiceRef": {"name": "plain"}, "displayName": "best"},
            {"name": "cloud", "external": {**external, "credentialsSecretRef": {"name": "provider"}}},
        ],
        "rules": [
            {"name": "away", "match": {"models": ["big-*"]}, "route": {"backends": ["cloud"]}},
            {"name": "rest", "match": {"models": ["any"]}, "route": {"backends": ["gone", "small"]}},
        ],
        "defaultRouteStrategy": "BackendNameMatch",
    }
    metadata = {"name": "r", "namespace": namespace}
    router = {"apiVersion": kinds.MODEL_ROUTERS.api_version, "kind": "ModelRouter", "metadata": metadata, "spec": spec}
    client.create(kinds.MODEL_ROUTERS, namespace, router)

    def router_status() -> Any:
        return client.get(kinds.MODEL_ROUTERS, namespace, "r").get("status") or {}

    def router_says() -> tuple[str | None, dict[str, str]]:
        told = router_status()
        return told.get("phase"), {each["type"]: each["reason"] for each in told.get("conditions", ())}

    reasons = {
        "Validated": "SpecValid",
        "BackendsReady": "BackendsUnresolved",
        "Available": "DeploymentReady",
        "SpecHonoured": "AllFieldsHonoured",
    }
    eventually(lambda: router_says() == ("Degraded", reasons), what=f"the router to be Degraded with {reasons}")
    own = f"{address}/routers/{namespace}/r"
    eventually(lambda: {"best", "any"} <= names(address).keys(), what="the router's names")
    eventually(lambda: names(address).get("plain") == "ready", what="the replica of the service")
    for at in (address, own):
        for name in ("best", "any"):
            assert json.loads(chat(at, name))["usage"]["completion_tokens"] >= 1
    assert b"data: [DONE]" in chat(own, "any", stream=True)

    def refusal(name: str, **headers: str) -> tuple[int, str]:
        asked = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"{own}/v1/chat/completions", asked, headers), timeout=60
            ) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)["error"]["code"]

    secret = {"metadata": {"name": "provider"}, "stringData": {"OPENAI_API_KEY": "sk-test"}}
    client.create(kinds.SECRETS, namespace, {"apiVersion": "v1", "kind": "Secret", **secret})
    assert refusal("big-one") == (503, "provider_not_accessible"), "the gateway may not read the Secret"
    grant_secret(client, namespace, "provider")
    eventually(lambda: refusal("big-one") == (200, ""), what="an answer of the provider")
    assert refusal("big-one", **{"X-Llmkube-Classification": "PII"}) == (403, "sensitive_data_refused")

    client.patch(kinds.MODEL_ROUTERS, namespace, "r", {"spec": {"defaultRoute": "none"}}, field_manager="tests")
    eventually(lambda: router_status().get("phase") == "Failed", what="the refusal of the spec")
    assert json.loads(chat(own, "any"))["usage"]["completion_tokens"] >= 1, "the last valid spec stays"
    relay.close()
    client.delete(kinds.MODEL_ROUTERS, namespace, "r")
    eventually(lambda: "any" not in names(address), what="the names of a deleted router to go")


@pytest.fixture(scope="module")
def served(
    loop: LoopProcess, client: KubeClient, control_plane: LocalCluster, source: str, own_address: str
) -> Iterator[str]:
    """A namespace with service `chat`, which the gateway of the loop serves."""
    with Api(control_plane).namespace("clients") as name:
        model(client, name, source=source)
        service(client, name, "chat", annotations={"herdsman.dev/host": HOST}, contextSize=256)
        await_condition(client, name, "chat", "Ready", "True")
        eventually(lambda: names(own_address).get("chat") == "ready", what="the model to be ready at the gateway")
        yield name


@pytest.fixture
def environment(served: str, own_address: str) -> Mapping[str, str]:
    """The environment of the examples of clients."""
    return {**os.environ, "OPENAI_BASE_URL": f"{own_address}/v1", "OPENAI_API_KEY": "none", "MODEL": "chat"}


@pytest.mark.parametrize("command", [["sh", "chat.sh"], [sys.executable, "openai_client.py"]], ids=["curl", "openai"])
def test_the_examples_of_clients_run(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=CLIENTS, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "chat" in done.stdout
    assert "data: [DONE]" in done.stdout or re.search(r"tokens: \d+ in, \d+ out", done.stdout)


@pytest.mark.soak
def test_langchain_understands_answers_streams_and_errors(environment: Mapping[str, str]) -> None:
    needs.require("LangChain")
    python = str(locate("langchain-openai"))

    def run(script: Path) -> str:
        done = subprocess.run([python, script], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(CLIENTS / "langchain_client.py").strip()
    found = json.loads(run(CALLS))
    assert (found["finish"], found["unknown"]) == ("length", "model_not_found"), found
    assert found["usage"]["output_tokens"] == found["streamed"]["output_tokens"] == found["async"] == 4
    assert found["batch"] == [4] * 4 and found["chunks"] > 2
    assert found["same"] and found["completion"]


def test_an_example_tells_when_there_is_no_such_model(environment: Mapping[str, str]) -> None:
    command = [sys.executable, "openai_client.py"]
    given = {**environment, "MODEL": "chatt"}
    done = subprocess.run(command, cwd=CLIENTS, env=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no such model" in done.stderr and "chat" in done.stderr


def test_the_client_of_openai_understands_answers_and_errors(served: str, own_address: str) -> None:
    import openai  # takes a second, so not in each test process

    with openai.OpenAI(base_url=f"{own_address}/v1", api_key="none", max_retries=0) as asked:
        assert asked.models.retrieve(f"{served}/chat").object == "model"
        ignoring = {"ignore_eos": True}
        completion = asked.completions.create(model="chat", prompt="Once", max_tokens=3, extra_body=ignoring)
        assert completion.usage is not None and completion.usage.completion_tokens == 3
        stream = list(
            asked.chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": "Hi"}],
                max_tokens=3,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert stream[-1].usage is not None and stream[-1].choices == []
        # LangChain reads whole answers this way.
        messages: Any = [{"content": "Hi", "role": "user"}]
        raw = asked.chat.completions.with_raw_response.create(
            model="chat", messages=messages, stream=False, max_tokens=3
        )
        assert raw.parse().choices[0].message.role == "assistant"
        with pytest.raises(openai.NotFoundError) as unknown:
            asked.chat.completions.create(model="chatt", messages=[{"role": "user", "content": "Hi"}])
        assert unknown.value.code == "model_not_found" and "chat" in unknown.value.message
        with pytest.raises(openai.BadRequestError) as nameless:
            asked.post("/chat/completions", body={"messages": []}, cast_to=object)
        assert nameless.value.param == "model"
        # An error of the engine: it was not started for embeddings.
        with pytest.raises(openai.APIStatusError) as refused:
            asked.embeddings.create(model="chat", input="Hi")
        assert refused.value.status_code >= 400 and refused.value.body is not None


def test_the_client_of_openai_repeats_a_request_until_a_replica_runs(
    client: KubeClient, served: str, own_address: str
) -> None:
    import openai  # takes a second, so not in each test process

    service(client, served, "later", annotations={"herdsman.dev/host": HOST}, contextSize=256, replicas=0)
    eventually(lambda: "later" in names(own_address), what="the name of the model")
    asking = openai.OpenAI(base_url=f"{own_address}/v1", api_key="none", max_retries=10)
    with asking, ThreadPoolExecutor(1) as pool:
        with pytest.raises(openai.InternalServerError) as refused:
            asking.with_options(max_retries=0).completions.create(model="later", prompt="Once", max_tokens=1)
        assert refused.value.code == "no_replica"
        answer = pool.submit(asking.completions.create, model="later", prompt="Once", max_tokens=1)
        edit(client, served, "later", replicas=1)
        assert answer.result(120).choices
    client.delete(kinds.INFERENCE_SERVICES, served, "later")


def test_open_webuis_backend_lists_models_and_streams(served: str, own_address: str) -> None:
    """Open WebUI's backend sends these requests, with aiohttp (all: tests/unit/gateway/test_known_clients.py)."""

    async def converse() -> tuple[list[str], list[str]]:
        headers = {"Authorization": "Bearer none", "Content-Type": "application/json"}
        headers |= {"X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-Chat-Id": "c"}
        asked: Any = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        asked |= {"max_tokens": 3, "temperature": 0.7, "stream_options": {"include_usage": True}}
        async with aiohttp.ClientSession(trust_env=True) as session:
            async with session.get(f"{own_address}/v1/models", headers=headers) as answer:
                listed = [each["id"] for each in (await answer.json())["data"]]
            url = f"{own_address}/v1/chat/completions"
            async with session.post(url, data=json.dumps(asked), headers=headers) as answer:
                assert "text/event-stream" in answer.headers["Content-Type"]
                return listed, [line.decode().strip() async for line in answer.content]

    listed, lines = event_loop.run(converse())
    assert "chat" in listed
    events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in events)


def test_the_gateway_of_the_loop_ends_after_the_answers_under_way(
    client: KubeClient, namespace: str, source: str, loop: LoopProcess, own_address: str
) -> None:
    """The last test of this module: it ends the loop."""
    model(client, namespace, source=source)
    service(client, namespace, "beside", annotations={"herdsman.dev/host": HOST}, contextSize=2048)
    await_condition(client, namespace, "beside", "Ready", "True")
    eventually(lambda: names(own_address).get("beside") == "ready", what="the model to be ready at the gateway")
    asked = {"model": "beside", "prompt": "Once", "max_tokens": 800, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(f"{own_address}/v1/completions", json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        began = answer.readline()
        loop.terminate()
        eventually(lambda: names(own_address) == {}, what="the gateway to refuse connections")
        rest = answer.read()
    assert began.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert loop.wait(120) == 0
