"""Requests to engines about adapters, answered by real HTTP servers that keep the state of an engine."""

from __future__ import annotations

import base64
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.server.api import self_signed
from automation.serving.adapters.engine_requests import Ask, RequestFailed, load, unload
from automation.serving.adapters.replica_requests import ReplicaRequests
from automation.serving.engine_start import EngineStart
from program.desired.adapter import AdapterOutcome, AdapterReason
from program.dialects.engine_access import Requirements, requirements_of
from tests.support.adapter_engines import BASE, AdapterEngine, EngineServer
from tests.support.pod_proxy import PodProxy, Say, api_status

START = EngineStart("prod", "p", "uid-p", "c1", 8000, "vllm")
KEY = "sk-of-the-engine"


def asking(proxy: PodProxy, engine: AdapterEngine) -> Ask:
    proxy.engines["p"] = engine.answer
    return ReplicaRequests(proxy.client).asking(START, ())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_adapter_is_loaded_once_and_unloaded(kind: Any) -> None:
    engine = AdapterEngine(kind)
    with PodProxy() as proxy:
        ask = asking(proxy, engine)
        for _ in range(3):
            assert load(kind, "sql", "/adapters/sql", ask).state == "loaded"
        assert engine.adapters == {"sql": "/adapters/sql"}
        assert engine.changes() == ["load_lora_adapter"]
        for _ in range(2):
            assert unload(kind, "sql", ask).state == "absent"
        assert engine.adapters == {}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_adapter_that_another_client_loads_meanwhile_counts_as_loaded(kind: Any) -> None:
    engine = AdapterEngine(kind)

    def late(method: str, path: str, body: Any) -> Say:
        listed = engine.answer(method, path, body) if method == "GET" else None
        if listed is not None:
            engine.adapters["sql"] = "/adapters/sql"  # after the list was made
            return listed
        return engine.answer(method, path, body)

    with PodProxy() as proxy:
        proxy.engines["p"] = late
        outcome = load(kind, "sql", "/adapters/sql", ReplicaRequests(proxy.client).asking(START, ()))
    assert outcome.state == "loaded"
    assert engine.changes() == ["load_lora_adapter"]


def test_another_path_replaces_the_adapter() -> None:
    engine = AdapterEngine()
    with PodProxy() as proxy:
        ask = asking(proxy, engine)
        load("vllm", "sql", "/adapters/sql-1", ask)
        assert load("vllm", "sql", "/adapters/sql-2", ask).state == "loaded"
    assert engine.adapters == {"sql": "/adapters/sql-2"}
    assert engine.changes() == ["load_lora_adapter", "unload_lora_adapter", "load_lora_adapter"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_engines_reason_is_told(kind: Any) -> None:
    with PodProxy() as proxy:
        outcome = load(kind, "sql", "/adapters/missing", asking(proxy, AdapterEngine(kind, files=("/adapters/sql",))))
    assert (outcome.state, outcome.reason) == ("failed", AdapterReason.LOAD_UNSUCCESSFUL)
    assert "No adapter found for /adapters/missing" in outcome.message


@pytest.mark.parametrize(
    ("kind", "remedy"), [("vllm", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"), ("sglang", "--enable-lora")]
)
def test_an_engine_without_the_endpoint_says_how_to_enable_it(kind: Any, remedy: str) -> None:
    with PodProxy() as proxy:
        ask = asking(proxy, AdapterEngine(kind, loads_at_runtime=False))
        outcome = load(kind, "sql", "/adapters/sql", ask)
        assert unload(kind, "sql", ask).state == "absent", "there is nothing to unload"
    assert outcome.reason == AdapterReason.RUNTIME_LOADING_DISABLED
    assert remedy in outcome.message


def test_the_name_of_the_engines_own_model_is_refused() -> None:
    engine = AdapterEngine()
    with PodProxy() as proxy:
        outcome = load("vllm", BASE, "/adapters/sql", asking(proxy, engine))
    assert outcome.reason == AdapterReason.NAME_TAKEN
    assert engine.changes() == []


def test_llama_server_applies_an_adapter_to_no_request_that_does_not_name_it() -> None:
    engine = AdapterEngine("llamacpp", files=("/a/legal.gguf", "/a/sql.gguf"))
    with PodProxy() as proxy:
        ask = asking(proxy, engine)
        outcome = load("llamacpp", "sql", "/a/sql.gguf", ask)
        assert (outcome.state, outcome.adapter_id) == ("loaded", 1)
        assert engine.scales == {"/a/legal.gguf": 1.0, "/a/sql.gguf": 0.0}, "the other adapter stays as it is"
        load("llamacpp", "sql", "/a/sql.gguf", ask)
        assert engine.changes() == ["lora-adapters"]


def test_llama_server_without_the_argument_says_what_to_add() -> None:
    with PodProxy() as proxy:
        outcome = load("llamacpp", "sql", "/a/sql.gguf", asking(proxy, AdapterEngine("llamacpp")))
    assert outcome.reason == AdapterReason.NOT_IN_ARGUMENTS
    assert "--lora /a/sql.gguf" in outcome.message


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (api_status(503, "ServiceUnavailable", "dial tcp 10.0.0.1:8000: connect: refused"), "ReplicaUnreachable"),
        (api_status(403, "Forbidden", "no right to pods/proxy"), "ReplicaUnreachable"),
        (Say(401, {"error": "Unauthorized"}), "EngineKeyRefused"),
        (Say(500, b"\xff<html>"), "LoadUnsuccessful"),
        (Say(200, b"[" * 100_000), "LoadUnsuccessful"),
        (Say(200, {"data": "none"}), "LoadUnsuccessful"),
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_any_answer_becomes_a_reason(kind: Any, said: Say, reason: str) -> None:
    with PodProxy() as proxy:
        proxy.engines["p"] = lambda *_: said
        outcome = load(kind, "sql", "/a", ReplicaRequests(proxy.client).asking(START, ()))
    assert (outcome.state, outcome.reason) == ("failed", reason)
    assert len(outcome.message) <= 300


# --- engines with an API key ------------------------------------------------------------------------------------------


def api(secret: Say, address: str = "127.0.0.1", uid: str = "uid-p") -> Any:
    pod = {"metadata": {"name": "p", "uid": uid}, "status": {"podIP": address}}

    def answer(method: str, path: str, _body: Any) -> Say:
        return secret if path.endswith("/secrets/keys") else Say(body=pod)

    return answer


def secret_of(value: bytes) -> Say:
    return Say(body={"kind": "Secret", "data": {"api-key": base64.b64encode(value).decode()}})


def test_an_engine_with_a_key_is_asked_directly_with_the_key_of_the_secret() -> None:
    engine = AdapterEngine()
    with EngineServer(engine, key=KEY) as server, PodProxy() as proxy:
        proxy.other = api(secret_of(KEY.encode() + b"\n"))
        start = START._replace(port=server.port)
        ask = ReplicaRequests(proxy.client).asking(start, [("keys", "api-key")])
        assert load("vllm", "sql", "/adapters/sql", ask).state == "loaded"
        assert proxy.asked == [], "the API server would drop the key"
        proxy.other = api(secret_of(b"another"))
        ask = ReplicaRequests(proxy.client).asking(start, [("keys", "api-key")])
        refused = load("vllm", "sql", "/adapters/sql", ask)
    assert refused.reason == AdapterReason.ENGINE_KEY_REFUSED
    assert "another" not in refused.message


@pytest.mark.parametrize("earlier", [KEY, "yet another"])
def test_a_replica_that_is_not_replaced_yet_gets_the_key_before(earlier: str) -> None:
    with EngineServer(AdapterEngine(), key=KEY) as server, PodProxy() as proxy:
        present = api(secret_of(b"another"))

        def answer(method: str, path: str, body: Any) -> Say:
            return secret_of(earlier.encode()) if path.endswith("/secrets/before") else present(method, path, body)

        proxy.other = answer
        secrets = [("keys", "api-key"), ("gone", "api-key"), ("before", "api-key")]
        ask = ReplicaRequests(proxy.client).asking(START._replace(port=server.port), secrets)
        outcome = load("vllm", "sql", "/adapters/sql", ask)
    assert (outcome.state == "loaded") == (earlier == KEY)


@pytest.mark.parametrize(
    "secret",
    [
        api_status(403, "Forbidden"),
        api_status(404, "NotFound", 'secrets "keys" not found'),
        secret_of(b"two words"),
        Say(body={"kind": "Secret", "data": {"api-key": "%"}}),
        Say(body={"kind": "Secret"}),
    ],
)
def test_a_key_that_cannot_be_read_is_a_reason(secret: Say) -> None:
    with PodProxy() as proxy:
        proxy.other = api(secret)
        with pytest.raises(RequestFailed) as failed:
            ReplicaRequests(proxy.client).asking(START, [("keys", "api-key")])
    assert failed.value.outcome.reason == AdapterReason.ENGINE_KEY_NOT_READABLE


CERTIFIED = requirements_of("kserve", "prod", "chat", ())


def test_a_key_is_sent_by_tls_only_to_an_engine_with_the_certificate_of_its_secret(tmp_path: Path) -> None:
    certificates = [self_signed.make([CERTIFIED.server_name]) for _ in range(2)]
    for path, content in zip(("tls.crt", "tls.key"), certificates[0], strict=True):
        (tmp_path / path).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    engine = AdapterEngine()
    with EngineServer(engine, key=KEY, tls=context) as server, PodProxy() as proxy:
        start = START._replace(port=server.port, tls=True)
        of_key = api(secret_of(KEY.encode()))

        def outcome(secret: Say, certified: Requirements = CERTIFIED) -> AdapterOutcome:
            proxy.other = lambda *asked: secret if asked[1].endswith("-certs") else of_key(*asked)
            try:
                ask = ReplicaRequests(proxy.client).asking(start, [("keys", "api-key")], certified)
                return load("vllm", "sql", "/adapters/sql", ask)
            except RequestFailed as failed:
                return failed.outcome

        good, wrong = (
            Say(body={"kind": "Secret", "data": {"tls.crt": base64.b64encode(each).decode()}})
            for each, _ in certificates
        )
        for said, words in (
            (outcome(wrong), "not valid"),
            (outcome(good, replace(CERTIFIED, server_name="another.prod.svc")), "not valid for `another.prod.svc`"),
            (outcome(api_status(403, "Forbidden")), "may not be read"),
            (outcome(api_status(404, "NotFound")), "does not exist"),
            (outcome(Say(body={"kind": "Secret"})), "no valid certificate"),
            (outcome(good, Requirements()), "no authority is known"),
        ):
            assert said.reason == AdapterReason.KEY_OVER_TLS
            assert words in said.message, said
        assert engine.adapters == {}
        assert outcome(good).state == "loaded"
        assert engine.adapters == {"sql": "/adapters/sql"}


def test_the_key_is_not_sent_to_another_pod_of_the_same_name() -> None:
    with PodProxy() as proxy:
        proxy.other = api(secret_of(KEY.encode()), uid="uid-of-another")
        with pytest.raises(RequestFailed) as failed:
            ReplicaRequests(proxy.client).asking(START, [("keys", "api-key")])
    assert failed.value.outcome.reason == AdapterReason.REPLICA_UNREACHABLE
