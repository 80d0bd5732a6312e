"""Requests to providers outside the cluster. A local server with TLS stands in for the providers."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.routers.runtime import RouterState
from program.desired.router import ExternalModel, HealthCheck, RouterBackend
from tests.support import routed_providers
from tests.support.gateways import OK, Engine, Front, says
from tests.support.loop import eventually
from tests.support.routed_providers import AT_ROUTER, Make, body, events, streamed
from tests.support.tls_server import TlsServer

SECRETS = {
    "one": {"OPENAI_API_KEY": "sk-one", "ANTHROPIC_API_KEY": "ant-one"},
    "two": {"OPENAI_API_KEY": "sk-two"},
}


def external(provider: TlsServer, kind: Any = "openai", secret: str = "one", name: str = "x") -> RouterBackend:
    return RouterBackend(name, external=ExternalModel(kind, provider.url, "real-model", secret))


def route(
    front: Front, provider: TlsServer, *backends: RouterBackend, secrets: Mapping[str, Any] | None = None
) -> RouterState:
    return routed_providers.route(front, provider, *backends, secrets=SECRETS if secrets is None else secrets)


def test_an_openai_provider_gets_its_own_key_and_model_and_nothing_else_of_the_client(
    front: Front, make_provider: Make
) -> None:
    answer = says("200 OK", b'{"id": 1}', b"Set-Cookie: a=b", b"x-ratelimit-remaining-requests: 9")
    provider = make_provider(answer)
    route(front, provider, external(provider))
    sent = {
        "authorization": "Bearer client-key",
        "cookie": "c=d",
        "x_api_key": "k",
        "x_secret": "s",
        "traceparent": "t",
    }
    status, headers, found = front.ask(body(temperature=0.5), AT_ROUTER, **sent)
    assert (status, found) == (200, {"id": 1})
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert "set-cookie" not in headers
    assert provider.seen[0][0].startswith(b"POST /v1/chat/completions HTTP/1.1")
    assert json.loads(provider.seen[0][1]) == body(temperature=0.5, model="real-model")
    got = provider.headers()
    assert got["authorization"] == "Bearer sk-one"
    assert not {"cookie", "x-api-key", "x-secret", "traceparent"} & got.keys()


def test_two_secrets_of_one_provider_do_not_collide_and_a_new_key_counts_at_once(
    front: Front, make_provider: Make
) -> None:
    provider = make_provider()
    for secret, key in (("one", "sk-one"), ("two", "sk-two")):
        route(front, provider, external(provider, secret=secret))
        front.ask(body(), AT_ROUTER)
        assert provider.headers()["authorization"] == f"Bearer {key}"
    route(front, provider, external(provider, secret="two"), secrets={"two": {"OPENAI_API_KEY": "sk-new"}})
    front.ask(body(), AT_ROUTER)
    assert provider.headers()["authorization"] == "Bearer sk-new"


def test_a_stream_passes_byte_for_byte_and_a_broken_one_is_seen_as_broken(front: Front, make_provider: Make) -> None:
    provider = make_provider(events(b'data: {"a": 1}\n\n', b"data: [DONE]\n\n"))
    route(front, provider, external(provider))
    assert streamed(front) == b'data: {"a": 1}\n\ndata: [DONE]\n\n'
    provider.answer = events(b'data: {"a": 1}\n\n', ends=False)
    with pytest.raises(http.client.IncompleteRead):
        streamed(front)


def test_a_certificate_that_is_not_trusted_ends_the_request(front: Front, make_provider: Make, tmp_path: Path) -> None:
    provider = make_provider(host="127.0.0.2")
    route(front, provider, external(provider))
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "upstream_unreachable")
    assert "certificate" in answer["error"]["message"].lower()
    assert not provider.seen


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_a_refused_key_is_not_shown_as_the_clients(front: Front, make_provider: Make, status: str) -> None:
    provider = make_provider(says(status, b'{"error": "sk-one"}'))
    route(front, provider, external(provider))
    found, _, answer = front.ask(body(), AT_ROUTER)
    assert (found, answer["error"]["code"]) == (502, "provider_refused_key")
    assert "sk-one" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("secrets", "words"),
    [({}, "has not read"), ({"one": {}}, "OPENAI_API_KEY"), ({"one": "may not read Secret `one`"}, "may not read")],
)
def test_a_secret_that_is_missing_is_named(
    front: Front, make_provider: Make, secrets: Mapping[str, Any], words: str
) -> None:
    provider = make_provider()
    route(front, provider, external(provider), secrets=secrets)
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "provider_not_accessible")
    assert words in answer["error"]["message"]
    assert not provider.seen


def test_the_next_backend_answers_when_a_provider_fails(front: Front, make_provider: Make) -> None:
    broken = make_provider(says("529 Overloaded", b"{}"))
    local = Engine(says("200 OK", b'{"from": "local"}'))
    front.serve(llama=[local])
    route(front, broken, external(broken), RouterBackend("local", "llama"))
    assert front.ask(body(), AT_ROUTER)[::2] == (200, {"from": "local"})
    local.close()


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 2},
}


def test_anthropic_gets_a_message_and_the_client_a_completion(front: Front, make_provider: Make) -> None:
    provider = make_provider(says("200 OK", json.dumps(MESSAGE).encode()))
    route(front, provider, external(provider, "anthropic"))
    status, _, found = front.ask(body(max_tokens=9), AT_ROUTER)
    assert status == 200
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert found["usage"]["total_tokens"] == 7
    assert found["model"] == "public"
    assert provider.seen[0][0].startswith(b"POST /v1/messages HTTP/1.1")
    got = provider.headers()
    assert (got["x-api-key"], got["anthropic-version"]) == ("ant-one", "2023-06-01")
    assert "authorization" not in got
    sent = json.loads(provider.seen[0][1])
    assert (sent["model"], sent["max_tokens"]) == ("real-model", 9)


def test_a_stream_of_anthropic_arrives_as_chunks(front: Front, make_provider: Make) -> None:
    parts: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    whole = b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in parts)
    pieces = [whole[at : at + 50] for at in range(0, len(whole), 50)]
    provider = make_provider(events(*pieces))
    route(front, provider, external(provider, "anthropic"))
    *lines, last = streamed(front, stream_options={"include_usage": True}).decode().split("\n\n")[:-1]
    assert last == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks[:-1]) == "Hello"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 7
    provider.answer = events(*pieces[:-3])
    with pytest.raises(http.client.IncompleteRead):
        streamed(front)


def test_an_error_of_anthropic_has_openais_form(front: Front, make_provider: Make) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    provider = make_provider(says("400 Bad Request", json.dumps(error).encode()))
    route(front, provider, external(provider, "anthropic"))
    status, _, found = front.ask(body(), AT_ROUTER)
    assert (status, found["error"]["message"], found["error"]["type"]) == (400, "too long", "invalid_request_error")
    status, _, found = front.ask(body(n=2), AT_ROUTER)
    assert (status, found["error"]["code"], found["error"]["param"]) == (400, "unsupported_parameter", "n")
    assert front.ask(body(), "/routers/prod/r/v1/embeddings")[0] == 404


@pytest.mark.parametrize(
    "answer", [{"content": "Hello"}, {"content": [{"type": "tool_use"}]}, {"content": [], "usage": 1}]
)
def test_a_malformed_answer_of_a_provider_is_a_fault_of_the_provider(
    front: Front, make_provider: Make, answer: Any
) -> None:
    provider = make_provider(says("200 OK", json.dumps(answer).encode()))
    route(front, provider, external(provider, "anthropic"))
    status, _, found = front.ask(body(), AT_ROUTER)
    assert (status, found["error"]["code"]) == (502, "upstream_failed")
    provider.answer = events(b"data: []\n\n")
    with pytest.raises(http.client.IncompleteRead):
        streamed(front)


def test_a_malformed_request_for_anthropic_is_refused_with_its_field(front: Front, make_provider: Make) -> None:
    provider = make_provider()
    route(front, provider, external(provider, "anthropic"))
    status, _, found = front.ask(body(temperature="hot"), AT_ROUTER)
    assert (status, found["error"]["param"]) == (400, "temperature")
    assert not provider.seen


def test_a_fault_of_the_gateway_ends_its_request_with_an_error(
    front: Front, make_provider: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: Any) -> None:
        raise TypeError("a fault")

    provider = make_provider()
    route(front, provider, external(provider))
    with monkeypatch.context() as patch:
        patch.setattr("gateway.routers.forwarding.provider_request", faulty)
        assert front.ask(body(), AT_ROUTER)[0] == 500
    monkeypatch.setattr("gateway.clients.connection.RoutedExchange.start", faulty)
    assert front.ask(body(), AT_ROUTER)[0] == 500


def test_what_a_provider_sends_has_a_bound(front: Front, make_provider: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routers.provider_call.ANSWER_MAX", 1000)
    monkeypatch.setattr("gateway.routers.answers.LINE_MAX", 1000)
    provider = make_provider(says("200 OK", json.dumps("x" * 1000).encode()))
    for kind in ("openai", "anthropic"):
        route(front, provider, external(provider, kind))
        status, _, found = front.ask(body(), AT_ROUTER)
        assert (status, found["error"]["code"]) == (502, "upstream_failed")
        assert "more than 1000 bytes" in found["error"]["message"]
    provider.answer = events(b"data: " + b"x" * 600, b"x" * 600)
    with pytest.raises(http.client.IncompleteRead):
        streamed(front)


def test_a_compressed_answer_is_refused(front: Front, make_provider: Make) -> None:
    provider = make_provider(says("200 OK", gzip.compress(b"{}"), b"Content-Encoding: gzip"))
    route(front, provider, external(provider))
    status, _, found = front.ask(body(), AT_ROUTER)
    assert (status, found["error"]["code"]) == (502, "upstream_failed")
    assert "gzip" in found["error"]["message"]
    assert provider.headers()["accept-encoding"] == "identity"


def test_requests_that_hang_at_a_provider_do_not_keep_its_health_checks_back(
    front: Front, make_provider: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: socket.socket, head: bytes, data: bytes) -> None:
        if head.startswith(b"GET"):
            OK(connection, head, data)
        else:
            connection.settimeout(60)
            connection.recv(1)

    monkeypatch.setattr("gateway.routers.connections.MOST", 1)
    provider = make_provider(answer)
    check = HealthCheck("/health", interval_s=0.1, timeout_s=10)
    state = route(front, provider, replace(external(provider), health_check=check))
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    client.request("POST", AT_ROUTER, json.dumps(body()))
    eventually(lambda: any(head.startswith(b"POST") for head, _ in provider.seen), what="the request")
    checks = len(provider.seen)
    eventually(lambda: len(provider.seen) >= checks + 3, what="more checks", timeout_s=30)
    assert state.health("x").usable
    client.close()
