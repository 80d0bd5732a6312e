"""Requests to Vertex AI, with tokens for a service account. A local server is Google's for both."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.routers import google_tokens
from gateway.routers.google_tokens import AccountInvalid, service_account
from program.desired.router import ExternalModel, RouterBackend
from tests.support.gateways import Answer, Front, says
from tests.support.loop import eventually
from tests.support.openai_clients import client_of
from tests.support.routed_providers import AT_ROUTER, Make, body, events, route, streamed
from tests.support.tls_server import TlsServer

KEY = generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
EMAIL = "router@project.iam.gserviceaccount.com"
PATH = "/v1/projects/p/locations/europe-west4/endpoints/openapi"
NAME = "GOOGLE_APPLICATION_CREDENTIALS"


class Google:
    """Gives tokens at /token, and answers chat completions for the last one only."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.lasts_s = 3600
        self.token_answer: Answer | None = None
        self.chat_answer = says("200 OK", b'{"id": 1}')
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.may_chat = threading.Event()
        self.may_chat.set()

    def __call__(self, connection: socket.socket, head: bytes, data: bytes) -> None:
        if not head.startswith(b"POST /token "):
            self.may_chat.wait(10)
            if f"authorization: Bearer {self.tokens[-1]}\r\n".lower() in (head.decode() + "\r\n").lower():
                self.chat_answer(connection, head, data)
            else:
                says("401 Unauthorized", b"{}")(connection, head, data)
        elif self.token_answer is not None:
            self.token_answer(connection, head, data)
        else:
            self.may_answer.wait(10)
            self.tokens.append(f"token-{len(self.tokens)}")
            answer = {"access_token": self.tokens[-1], "expires_in": self.lasts_s, "token_type": "Bearer"}
            says("200 OK", json.dumps(answer).encode())(connection, head, data)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    # An address of this machine is refused; `test_what_is_no_service_account_is_refused` checks that.
    monkeypatch.setattr(google_tokens, "check_url", lambda *_: None)
    made = Google()
    yield made
    made.may_answer.set()
    made.may_chat.set()


def account(provider: TlsServer, **fields: Any) -> str:
    values = {"client_email": EMAIL, "private_key": PEM, "private_key_id": "k1", "token_uri": f"{provider.url}/token"}
    return json.dumps({"type": "service_account"} | values | fields)


def serve(front: Front, provider: TlsServer, text: str | None = None, model: str = "google/gemini-2.5-flash") -> None:
    external = ExternalModel("vertex_ai", provider.url + PATH, model, "gcp")
    secrets = {"gcp": {NAME: account(provider) if text is None else text}}
    route(front, provider, RouterBackend("x", external=external), secrets=secrets)


def decoded(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=="))


def test_a_request_carries_a_token_for_a_signed_assertion(front: Front, make_provider: Make, google: Google) -> None:
    provider = make_provider(google)
    serve(front, provider)
    for _ in range(2):
        assert front.ask(body(), AT_ROUTER, authorization="Bearer client")[::2] == (200, {"id": 1})
    (token_head, token_body), (head, sent), _ = provider.seen  # the second request uses the same token
    assert token_head.startswith(b"POST /token ")
    assert head.startswith(f"POST {PATH}/chat/completions ".encode())
    assert json.loads(sent) == body(model="google/gemini-2.5-flash")
    form = parse_qs(token_body.decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    first, second, signature = form["assertion"][0].split(".")
    assert decoded(first) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    claims = decoded(second)
    assert (claims["iss"], claims["aud"]) == (EMAIL, f"{provider.url}/token")
    assert (claims["scope"], claims["exp"] - claims["iat"]) == ("https://www.googleapis.com/auth/cloud-platform", 3600)
    given = base64.urlsafe_b64decode(signature + "==")
    KEY.public_key().verify(given, f"{first}.{second}".encode(), PKCS1v15(), SHA256())


def test_requests_that_come_together_share_one_token_and_a_client_that_leaves_does_not_end_it(
    front: Front, make_provider: Make, google: Google
) -> None:
    google.may_answer.clear()
    provider = make_provider(google)
    serve(front, provider)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(front.ask(body(), AT_ROUTER)[0])) for _ in range(3)]
    leaver = socket.create_connection(("127.0.0.1", front.port))
    data = json.dumps(body()).encode()
    leaver.sendall(f"POST {AT_ROUTER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    eventually(lambda: bool(provider.seen), what="the request for a token")
    for each in threads:
        each.start()
    leaver.close()
    google.may_answer.set()
    for each in threads:
        each.join(30)
    assert found == [200, 200, 200]
    assert len(google.tokens) == 1


def test_a_token_is_renewed_before_it_ends_while_requests_go_on(
    front: Front, make_provider: Make, google: Google
) -> None:
    google.lasts_s = 100
    provider = make_provider(google)
    serve(front, provider)
    assert front.ask(body(), AT_ROUTER)[0] == 200
    google.lasts_s = 3600
    assert front.ask(body(), AT_ROUTER)[0] in (200, 502)  # the renewed token may be the last one already
    eventually(lambda: len(google.tokens) == 2, what="the renewal")
    eventually(lambda: front.ask(body(), AT_ROUTER)[0] == 200, what="an answer for the new token")
    assert len(google.tokens) == 2


def test_a_refusal_of_an_old_token_does_not_drop_the_new_one(front: Front, make_provider: Make, google: Google) -> None:
    google.lasts_s = 100
    provider = make_provider(google)
    serve(front, provider)
    assert front.ask(body(), AT_ROUTER)[0] == 200
    google.lasts_s = 3600
    google.may_chat.clear()
    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(front.ask, body(), AT_ROUTER)
        kept = front.server.backends.routers.connections.google_tokens
        eventually(
            lambda: [each.text for each in tuple(kept._known.values())] == ["token-1"],
            what="the renewal, which the request with the old token began",
        )
        new = pool.submit(front.ask, body(), AT_ROUTER)
        eventually(lambda: any(b"Bearer token-1" in head for head, _ in provider.seen), what="the new token in use")
        google.may_chat.set()
        assert (old.result()[0], new.result()[0]) == (502, 200)
    assert front.ask(body(), AT_ROUTER)[0] == 200
    assert len(google.tokens) == 2


def test_a_refused_token_is_replaced_by_the_next_request(front: Front, make_provider: Make, google: Google) -> None:
    provider = make_provider(google)
    serve(front, provider)
    assert front.ask(body(), AT_ROUTER)[0] == 200
    google.tokens.append("another")
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (502, "provider_refused_key")
    assert front.ask(body(), AT_ROUTER)[0] == 200


def test_a_denied_right_keeps_the_token(front: Front, make_provider: Make, google: Google) -> None:
    google.chat_answer = says("403 Forbidden", b"{}")
    provider = make_provider(google)
    serve(front, provider)
    for _ in range(2):
        assert front.ask(body(), AT_ROUTER)[0] == 502
    assert len(google.tokens) == 1


@pytest.mark.parametrize(
    "answer",
    [
        says("400 Bad Request", b'{"error": "invalid_grant", "error_description": "raw text"}'),
        says("200 OK", b'{"raw text": 1}'),
        says("200 OK", b'{"access_token": "raw\\r\\ntext", "expires_in": 9}'),
    ],
)
def test_a_refused_account_is_an_error_without_googles_text(
    front: Front, make_provider: Make, google: Google, answer: Answer
) -> None:
    google.token_answer = answer
    provider = make_provider(google)
    serve(front, provider)
    status, _, found = front.ask(body(), AT_ROUTER)
    assert (status, found["error"]["code"]) == (502, "provider_refused_key")
    assert "raw" not in json.dumps(found)


def test_a_stream_passes_and_an_error_gets_openais_form(front: Front, make_provider: Make, google: Google) -> None:
    google.chat_answer = says("200 OK", b"data: [DONE]\n\n")
    provider = make_provider(google)
    serve(front, provider)
    assert streamed(front) == b"data: [DONE]\n\n"
    google.chat_answer = says("400 Bad Request", b'[{"error": {"code": 400, "message": "raw text"}}]')
    status, _, found = front.ask(body(), AT_ROUTER)
    assert (status, found["error"]["code"]) == (400, "invalid_request_error")
    assert "raw" not in json.dumps(found)


@pytest.mark.parametrize("text", ["/var/secrets/key.json", "[]", '{"client_email": "a"}', '{"client_email": 1}'])
def test_a_secret_without_an_account_is_named_and_nothing_is_sent(
    front: Front, make_provider: Make, google: Google, text: str
) -> None:
    provider = make_provider(google)
    serve(front, provider, text)
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "provider_not_accessible")
    assert NAME in answer["error"]["message"]
    assert "key.json" not in answer["error"]["message"]
    assert not provider.seen


def test_a_key_that_is_not_rsa_is_refused(front: Front, make_provider: Make, google: Google) -> None:
    provider = make_provider(google)
    serve(front, provider, account(provider, private_key="no key"))
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, "RSA" in answer["error"]["message"]) == (502, True)


@pytest.mark.parametrize(
    "url", ["http://oauth2.googleapis.com/token", "https://127.0.0.1/token", "https://a.b.svc/token"]
)
def test_what_is_no_service_account_is_refused(url: str) -> None:
    fields = {"client_email": EMAIL, "private_key": PEM, "token_uri": url}
    with pytest.raises(AccountInvalid, match="token_uri"):
        service_account(json.dumps(fields))
    assert "PRIVATE" not in repr(
        service_account(json.dumps(fields | {"token_uri": "https://oauth2.googleapis.com/token"}))
    )


# --- endpoints beside chat completions --------------------------------------------------------------------------------


def at(front: Front) -> Any:
    return client_of(f"http://127.0.0.1:{front.port}/routers/prod/r/v1")


def asked_of(provider: TlsServer) -> tuple[str, Any]:
    """Return path and body of the last request that is not for a token."""
    head, data = next(each for each in reversed(provider.seen) if b" /token " not in each[0])
    return head.split(b" ")[1].decode(), json.loads(data)


CHUNKS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hel"}}]},
    {"choices": [{"index": 0, "delta": {"content": "lo"}}]},
    {
        "choices": [
            {
                "index": 0,
                "delta": {"tool_calls": [{"index": 0, "id": "t1", "function": {"name": "look", "arguments": "{}"}}]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    },
)


def test_a_completion_of_vertex_is_a_chat(front: Front, make_provider: Make, google: Google) -> None:
    provider = make_provider(google)
    serve(front, provider)
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    google.chat_answer = says("200 OK", json.dumps({"id": "i", "choices": [choice], "usage": usage}).encode())
    found = at(front).completions.create(model="public", prompt="Once", max_tokens=9)
    assert (found.object, found.choices[0].text, found.usage.total_tokens) == ("text_completion", "Hello", 7)
    messages = [{"role": "user", "content": "Once"}]
    asked = {"messages": messages, "max_tokens": 9, "model": "google/gemini-2.5-flash"}
    assert asked_of(provider) == (f"{PATH}/chat/completions", asked)


def test_a_response_of_vertex_is_streamed(front: Front, make_provider: Make, google: Google) -> None:
    import openai  # takes a second, so not in each test process

    provider = make_provider(google)
    serve(front, provider)
    lines = [b"data: %b\n\n" % json.dumps(each).encode() for each in CHUNKS]
    google.chat_answer = events(*lines, b"data: [DONE]\n\n")
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    with at(front).responses.stream(model="public", input="Hi", tools=[tool]) as stream:
        kinds = [each.type for each in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert (final.output_text, final.output[1].call_id, final.usage.total_tokens) == ("Hello", "t1", 7)
    assert asked_of(provider)[1]["stream_options"] == {"include_usage": True}
    google.chat_answer = events(*lines[:2])
    with pytest.raises(openai.APIError):
        list(at(front).responses.create(model="public", input="Hi", stream=True))


def test_embeddings_of_vertex_are_predictions(front: Front, make_provider: Make, google: Google) -> None:
    provider = make_provider(google)
    serve(front, provider, model="google/text-embedding-005")
    vectors = [[0.5, 0.25], [0.0, 1.0]]
    made = [{"values": each, "statistics": {"truncated": False, "token_count": 3}} for each in vectors]
    said = {"predictions": [{"embeddings": each} for each in made], "metadata": {"billableCharacterCount": 2}}
    google.chat_answer = says("200 OK", json.dumps(said).encode())
    further = {"task_type": "RETRIEVAL_QUERY"}
    found = at(front).embeddings.create(model="public", input=["a", "b"], dimensions=2, extra_body=further)
    assert [each.embedding for each in found.data] == vectors
    assert found.usage.total_tokens == 6
    path, asked = asked_of(provider)
    assert path == "/v1/projects/p/locations/europe-west4/publishers/google/models/text-embedding-005:predict"
    assert asked == {
        "instances": [{"content": each, "task_type": "RETRIEVAL_QUERY"} for each in ("a", "b")],
        "parameters": {"autoTruncate": False, "outputDimensionality": 2},
    }
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (404, "unsupported_path")
