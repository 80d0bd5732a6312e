"""Tokens of clients are checked by the keys that their issuer publishes at a real HTTPS address."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from gateway.routers import tokens
from gateway.routers.runtime import RouterState
from program.desired.router import Router, RouterBackend, TokenIssuer
from tests.support.gateways import CHAT, Answer, Engine, Front, says
from tests.support.loop import eventually
from tests.support.tls_server import TlsServer

AT_ROUTER = f"/routers/prod/r{CHAT}"
BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def published(**keys: PrivateKeyTypes) -> bytes:
    found = []
    for name, key in keys.items():
        algorithm: Any = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        found.append(json.loads(algorithm.to_jwk(key.public_key())) | {"kid": name, "use": "sig"})
    return json.dumps({"keys": found}).encode()


def token(key: Any = RSA, kid: str = "one", algorithm: str = "RS256", **claims: Any) -> str:
    given = {"iss": "https://issuer", "exp": time.time() + 300, "org": {"team": "blue"}} | claims
    return jwt.encode(given, key, algorithm, headers={"kid": kid})


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[TlsServer]:
    server = TlsServer(says("200 OK", published(one=RSA, two=EC)), tmp_path)
    yield server
    server.close()


@pytest.fixture
def engine(front: Front, make_engine: Callable[..., Engine], issuer: TlsServer) -> Engine:
    """The engine behind a router that checks tokens, for which the keys of the issuer were read."""
    engine = make_engine()
    front.serve(a=[engine])
    front.server.backends.routers.connections.tls = issuer.trusted
    trusted = TokenIssuer("idp", "https://issuer", f"{issuer.url}/keys", ("org", "team"))
    router = Router(
        "prod",
        "r",
        (RouterBackend("a", "a", display_name="gpt-4o"),),
        by_name=True,
        default="a",
        issuer=trusted,
        allowed=(("blue", ("gpt-*",)), ("green", ())),
    )
    front.server.set_routers([RouterState(router)])
    eventually(lambda: asked(front, token())[0] != 503 and asked(front, token())[0] != 404, what="the keys")
    engine.seen.clear()
    return engine


def asked(front: Front, bearer: str | None, **fields: Any) -> tuple[int, str]:
    headers = {"authorization": f"Bearer {bearer}", "x_llmkube_team": "forged"} if bearer is not None else {}
    status, _, answer = front.ask(BODY | fields, AT_ROUTER, **headers)
    return status, answer.get("error", {}).get("code", "")


def test_a_valid_token_opens_the_router_and_its_team_reaches_the_engine(front: Front, engine: Engine) -> None:
    assert asked(front, token())[0] == 200
    assert asked(front, token(EC, "two", "ES256"))[0] == 200
    head = engine.seen[0][0].lower()
    assert b"x-llmkube-team: blue\r\n" in head
    assert b"forged" not in head
    assert b"authorization" not in head


@pytest.mark.parametrize(
    ("bearer", "code"),
    [
        (None, "missing_token"),
        ("no.token.here", "invalid_token"),
        (token(iss="https://other"), "invalid_token"),
        (token(exp=time.time() - 3600), "invalid_token"),
        (token(nbf=time.time() + 3600), "invalid_token"),
        (token(kid="three"), "invalid_token"),
        (token(EC, "one", "ES256"), "invalid_token"),
        (token(rsa.generate_private_key(public_exponent=65537, key_size=2048)), "invalid_token"),
        (jwt.encode({"iss": "https://issuer", "exp": time.time() + 60}, "", "none", {"kid": "one"}), "invalid_token"),
        (
            jwt.encode({"iss": "https://issuer", "exp": time.time() + 60}, "k" * 64, "HS256", {"kid": "one"}),
            "invalid_token",
        ),
    ],
)
def test_other_tokens_are_refused(front: Front, engine: Engine, bearer: str | None, code: str) -> None:
    assert asked(front, bearer) == (401, code)
    assert not engine.seen


def test_the_clocks_of_issuer_and_gateway_may_differ_by_a_minute(front: Front, engine: Engine) -> None:
    assert asked(front, token(exp=time.time() - 30, nbf=time.time() + 30))[0] == 200
    assert asked(front, token(exp=time.time() - 90))[0] == 401


def test_a_team_may_name_the_models_of_its_list(front: Front, engine: Engine) -> None:
    assert asked(front, token(), model="claude") == (403, "model_not_allowed")
    assert asked(front, token(org={"team": "green"}), model="claude")[0] == 200
    assert asked(front, token(org={"team": "red"})) == (403, "model_not_allowed")
    assert asked(front, token(org={})) == (403, "team_unknown")


def test_names_of_the_router_do_not_pass_the_tokens_by(front: Front, engine: Engine) -> None:
    for name in ("gpt-4o", "r", "prod/r"):
        status, _, answer = front.ask(BODY | {"model": name})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert front.get("/routers/prod/r/v1/models")[0] == 401


def test_a_new_key_of_the_issuer_is_read(
    front: Front, engine: Engine, issuer: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "AGAIN_S", 0.1)
    new = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issuer.answer = says("200 OK", published(new=new))
    eventually(lambda: asked(front, token(new, "new"))[0] == 200, what="the new key")
    assert asked(front, token())[0] == 401
    issuer.answer = says("500 Internal Server Error", b"{}")
    assert asked(front, token(new, "new"))[0] == 200
    assert asked(front, token(new, "other"))[0] == 401
    assert asked(front, token(new, "new"))[0] == 200, "the last keys stay"


def test_the_keys_of_an_issuer_that_is_away_for_ten_minutes_stay(
    front: Front, engine: Engine, issuer: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = int(600 / tokens.AGAIN_S)
    monkeypatch.setattr(tokens, "AGAIN_S", 0.005)
    monkeypatch.setattr(tokens, "READ_EVERY_S", 0.005)
    issuer.answer = says("503 Service Unavailable", b"")
    seen = len(issuer.seen)
    # The timer that was set before still has its old time. A token with an unknown key reads, too.
    eventually(lambda: asked(front, token(kid="other"))[0] == 401 and len(issuer.seen) >= seen + tries, what="reads")
    assert asked(front, token())[0] == 200
    issuer.answer = says("200 OK", published(later=RSA))
    eventually(lambda: asked(front, token(kid="later"))[0] == 200, what="the new key")


def test_keys_that_arrive_in_pieces_are_read_to_their_end_and_an_answer_without_end_is_not(
    front: Front, engine: Engine, issuer: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_pieces(data: bytes) -> Answer:
        def answer(connection: socket.socket, _head: bytes, _body: bytes) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(data), len(data) // 4):
                part = data[at : at + len(data) // 4]
                connection.sendall(b"%x\r\n%b\r\n" % (len(part), part))
                time.sleep(0.05)
            connection.sendall(b"0\r\n\r\n")

        return answer

    monkeypatch.setattr(tokens, "AGAIN_S", 0.1)
    new = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys = json.loads(published(new=new))
    issuer.answer = in_pieces(json.dumps(keys | {"padding": "x" * 30_000}).encode())
    eventually(lambda: asked(front, token(new, "new"))[0] == 200, what="the new key")
    newer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issuer.answer = in_pieces(json.dumps(json.loads(published(newer=newer)) | {"padding": "x" * (1 << 20)}).encode())
    reads = len(issuer.seen)
    eventually(lambda: [asked(front, token(newer, "newer"))] and len(issuer.seen) >= reads + 2, what="two reads")
    assert asked(front, token(newer, "newer"))[0] == 401


def begun(front: Front, *lines: bytes) -> socket.socket:
    """Send the head of a request with a long body, and the begin of the body."""
    client = socket.create_connection(("127.0.0.1", front.port), 10)
    head = (b"POST " + AT_ROUTER.encode() + b" HTTP/1.1", b"Host: h", b"Content-Length: 1000", *lines, b"", b"")
    client.sendall(b"\r\n".join(head) + b"{")
    return client


def test_the_body_of_a_client_without_a_token_is_not_awaited(front: Front, engine: Engine) -> None:
    with begun(front) as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 401 ")
    assert front.server.body_bytes == 0


@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_request_is_refused_if_the_policy_changes_while_its_body_comes(
    front: Front, engine: Engine, *, has_tokens: bool
) -> None:
    routers = front.server.backends.routers
    state = routers.get("prod", "r")
    assert state is not None
    assert state.router.issuer is not None
    with begun(front, b"Authorization: Bearer " + token().encode()) as client:
        eventually(lambda: front.server.body_bytes == 1, what="the begin of the body")
        issuer = replace(state.router.issuer, issuer="https://other") if has_tokens else None
        changed = RouterState(replace(state.router, issuer=issuer))
        front.server.set_routers([changed])
        eventually(lambda: routers.states() == (changed,), what="the change")
        client.sendall(b" " * 998 + b"}")
        answer = client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"router_changed" in answer
    assert not engine.seen
