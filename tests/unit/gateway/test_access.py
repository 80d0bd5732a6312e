"""Keys of clients: what they look like, what the cluster keeps of them, and which requests they open."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import replace

import pytest

from agent.proxy.framing import read_request
from gateway.access.authentication import Access, keys_required
from gateway.access.caller import ANYONE, Caller
from gateway.access.key_limits import KeyLimits
from gateway.access.key_secrets import SecretUnreadable, key_of, secret_of
from gateway.access.keys import Key, KeyRing, digest, new_key
from gateway.clients.heads import Head
from gateway.dispatch import dispatch
from gateway.engines.backends import Backends, Route
from gateway.errors import GatewayError
from gateway.names import Match, Model, Names, ServiceName
from gateway.price import FREE, Price, usd

NOW = 1_000_000.0
CHAT = Model(ServiceName("prod", "chat"), ("org/chat-8b",), ("sql", "law"), ("gpt-4o",))
CODE = Model(ServiceName("dev", "code"))
NAMES = Names.of([CHAT, CODE])


def head(*lines: bytes, path: bytes = b"/v1/models") -> Head:
    return Head.read(read_request(b"\r\n".join((b"GET " + path + b" HTTP/1.1", *lines, b"", b""))))


def made(**settings: object) -> tuple[str, Key]:
    """A key and what the gateway knows of it."""
    key_id, text = new_key()
    expires_s = settings.pop("expires_s", None)
    caller = Caller(key_id, "ci", **settings)  # type: ignore[arg-type]
    return text, Key(caller, digest(text), expires_s)  # type: ignore[arg-type]


def refusal(access: Access, given: Head) -> GatewayError:
    found = access.authenticate(given)
    assert isinstance(found, GatewayError)
    return found


def test_a_key_has_160_random_bits_and_an_id() -> None:
    made_keys = {new_key()[1] for _ in range(100)}
    assert len(made_keys) == 100
    key_id, text = new_key()
    assert text.startswith(f"hd-{key_id}-")
    assert len(bytes.fromhex(text.rpartition("-")[2])) * 8 == 160


def test_a_secret_holds_the_hash_and_not_the_key() -> None:
    given = KeyLimits(60, 9000, budget_nano_usd=5, budget_window_s=3600, budget_origin_s=7)
    text, key = made(team="ml", models=("prod/*",), expires_s=NOW)
    key = replace(key, caller=replace(key.caller, limits=given.limits(key.caller.key_id)))
    secret = secret_of(text, key.caller, NOW, given)
    shown = json.dumps(secret) + "".join(base64.b64decode(value).decode() for value in secret["data"].values())
    assert text.rpartition("-")[2] not in shown
    assert key_of(secret) == key
    assert key.digest not in repr(key)


@pytest.mark.parametrize(
    "data", [{}, {"sha256": "!"}, {"sha256": "YQ==", "key.json": "W10="}, {"sha256": "YQ==", "key.json": "e30="}]
)
def test_a_secret_that_is_no_key_opens_nothing(data: dict[str, str]) -> None:
    with pytest.raises(SecretUnreadable):
        key_of({"metadata": {"name": "herdsman-key-abc"}, "data": data})
    access = Access(required=False, ring=KeyRing.of([], unreadable=1))
    assert refusal(access, head()).status == 401


@pytest.mark.parametrize(
    "line", [b"Authorization: Bearer %s", b"authorization: bearer %s", b"X-API-Key: %s", b"api-key: %s"]
)
def test_a_client_sends_its_key_in_any_usual_header(line: bytes) -> None:
    text, key = made()
    access = Access(required=True, ring=KeyRing.of([key]))
    given = head(line % text.encode())
    assert access.authenticate(given) is key.caller
    assert text.encode() not in given.fields
    assert text not in repr(given)


def test_without_any_key_no_request_needs_one_unless_keys_are_required() -> None:
    assert Access(required=False, ring=KeyRing()).authenticate(head(b"api-key: none")) is ANYONE
    assert refusal(Access(required=True, ring=KeyRing()), head()).code == "missing_api_key"
    _, key = made()
    assert refusal(Access(required=False, ring=KeyRing.of([key])), head()).code == "missing_api_key"


def test_nothing_is_served_before_the_keys_are_known() -> None:
    refused = refusal(Access(required=False), head())
    assert (refused.status, refused.code, refused.retry_after_s) == (503, "keys_unknown", 1.0)
    assert Access(required=True).authenticate(head(path=b"/health")) is ANYONE
    assert refusal(Access(required=True), head(path=b"/ready")).code == "keys_unknown"
    assert Access(required=True, ring=KeyRing()).authenticate(head(path=b"/ready")) is ANYONE


def test_a_wrong_key_and_an_expired_one_are_refused() -> None:
    text, key = made(expires_s=NOW)
    ring = KeyRing.of([key])
    access = Access(required=True, ring=ring, clock=lambda: NOW - 1)
    assert access.authenticate(head(b"api-key: " + text.encode())) is key.caller
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    for other in (wrong, "hd-", text.upper(), new_key()[1]):
        refused = refusal(access, head(b"api-key: " + other.encode()))
        assert (refused.status, refused.code) == (401, "invalid_api_key")
        assert dict(refused.headers)["WWW-Authenticate"].startswith("Bearer ")
        assert other not in refused.message or other == "hd-"
    late = Access(required=True, ring=ring, clock=lambda: NOW)
    assert refusal(late, head(b"api-key: " + text.encode())).code == "expired_api_key"


def test_beyond_loopback_a_key_is_always_required() -> None:
    assert keys_required(loopback=False, asked=False)
    assert keys_required(loopback=True, asked=True)
    assert not keys_required(loopback=True, asked=False)


@pytest.mark.parametrize(
    ("allowed", "name", "result"),
    [
        ((), "code", True),
        (("chat",), "chat", True),
        (("chat",), "gpt-4o", True),
        (("gpt-4o",), "prod/chat", True),
        (("chat",), "chat:sql", True),
        (("chat:sql",), "sql", True),
        (("chat:sql",), "chat:law", False),
        (("chat:sql",), "chat", False),
        (("prod/*",), "org/chat-8b", True),
        (("prod/*",), "code", False),
        (("gone", "code"), "code", True),
        (("gone",), "code", False),
    ],
)
def test_a_key_opens_the_models_that_it_lists(allowed: tuple[str, ...], name: str, result: bool) -> None:
    match = NAMES.find(name)
    assert isinstance(match, Match)
    assert Caller("id", models=allowed).may_use(name, match, NAMES) is result


def test_the_list_of_models_has_those_of_the_key() -> None:
    assert {each.name for each in Caller("id", models=("dev/*",)).listed(NAMES)} == {"code"}
    assert len(ANYONE.listed(NAMES)) == len(NAMES.listed)


@pytest.mark.parametrize(
    "wrong", [{"requests_per_minute": "many"}, {"unknown": 1}, {"budget_window_s": 0}, {"tokens_per_minute": -1}]
)
def test_limits_that_cannot_be_read_are_not_left_out(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        KeyLimits.of_settings(wrong)


@pytest.mark.parametrize(
    ("text", "price"),
    [("0.15/0.60", Price(150, 600)), ("2", Price(2000, 2000)), ("0", FREE), (" 0.0005/1 ", Price(0, 1000))],
)
def test_a_price_is_read_from_dollars_for_a_million_tokens(text: str, price: Price) -> None:
    assert Price.read(text) == price
    assert Price(150, 600).of(1_000_000, 1_000_000) == usd("0.75")


@pytest.mark.parametrize("text", ["", "free", "-1", "nan", "inf", "1/x", "1e99"])
def test_a_wrong_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Price.read(text)


def test_a_key_for_models_that_are_gone_has_no_similar_names_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller("id", models=("gone", "chat:gone", "prod/gone", "code"))
    monkeypatch.setattr("difflib.get_close_matches", None)
    assert [each.name for each in caller.listed(NAMES)] == ["code"]
    found = NAMES.meaning("code")
    assert isinstance(found, Match)
    assert caller.may_use("code", found, NAMES)
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        backends = Backends(loop)
        backends.set_routes([Route(CHAT), Route(CODE)])
        refused = dispatch(head(path=b"/v1/models/gone"), b"", caller, backends)
    assert isinstance(refused, GatewayError) and refused.code == "model_not_found"
