"""The console for a team: tokens of the cluster, sessions, the limit of refused tokens, and missing rights in words."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from automation.web_console import refusals, token_entry
from automation.web_console.application import Console
from automation.web_console.proxies import TrustedProxies
from automation.web_console.token_entry import COOKIE, Attempts, SignInRefused, TokenEntry
from tests.support import event_loop
from tests.support.pod_proxy import api_status

Client = TestClient[web.Request, web.Application]
SERVICES = "/apis/inference.llmkube.dev/v1alpha1/inferenceservices"


@dataclass
class ApiOfTokens:
    """An API server that knows some tokens. A token may list the services of the namespaces beside it; "" is all."""

    users: dict[str, str] = field(default_factory=lambda: {"good": "alice"})
    namespaces: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"good": ("",)})
    asked: list[str] = field(default_factory=list)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append(token)
        if token not in self.users:
            return web.json_response(api_status(401, "Unauthorized").body, status=401)
        if request.path.endswith("/selfsubjectreviews"):
            return web.json_response({"status": {"userInfo": {"username": self.users[token]}}}, status=201)
        if request.path.endswith("/selfsubjectaccessreviews"):
            return web.json_response({"status": {"allowed": "" in self.namespaces[token]}}, status=201)
        found = re.search(r"/namespaces/([^/]+)/", request.path)
        namespace = found[1] if found else ""
        if "inferenceservices" not in request.path:
            return web.json_response({"items": []})
        if namespace not in self.namespaces[token]:
            told = (
                f'inferenceservices.inference.llmkube.dev is forbidden: User "{self.users[token]}" cannot list '
                f'resource "inferenceservices" in API group "inference.llmkube.dev" at the cluster scope'
            )
            return web.json_response(api_status(403, "Forbidden", told).body, status=403)
        item = {"metadata": {"name": f"of-{self.users[token]}", "namespace": namespace or "team"}, "spec": {}}
        return web.json_response({"items": [item]})


@pytest.fixture
def api() -> ApiOfTokens:
    return ApiOfTokens()


def browse(
    api: ApiOfTokens, visit: Callable[[Client, TokenEntry], Awaitable[None]], *, hosts: tuple[str, ...] = ()
) -> None:
    async def run() -> None:
        async with TestServer(api.application()) as cluster:
            entry = TokenEntry(str(cluster.make_url("/")), None, hosts)
            async with TestClient(TestServer(Console(entry).application())) as client:
                await visit(client, entry)

    event_loop.run(run())


async def signed_in(client: Client, token: str = "good") -> dict[str, str]:
    """Sign in; returns the header with the cookie, which the test's client would not send without TLS."""
    answer = await client.post("/login", data={"bearer": token}, allow_redirects=False)
    assert answer.status == 303, await answer.text()
    return {"Cookie": f"{COOKIE}={answer.cookies[COOKIE].value}"}


async def form_token(client: Client, cookie: dict[str, str]) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', await (await client.get("/", headers=cookie)).text())
    assert found is not None
    return found[1]


def test_nothing_is_shown_before_a_sign_in(api: ApiOfTokens) -> None:
    async def visit(client: Client, _: TokenEntry) -> None:
        for path in ("/", "/hosts", "/events", "/services/team/chat/log", "/open?token=x", "/static/console.js"):
            answer = await client.get(path, headers={"Cookie": f"{COOKIE}=guessed"})
            assert answer.status == 401
            assert "Sign in with a token" in await answer.text()
        assert await (await client.get("/health")).text() == "ok"

    browse(api, visit)
    assert api.asked == []


def test_a_session_reads_with_the_token_of_its_caller_and_the_browser_never_gets_it(api: ApiOfTokens) -> None:
    async def visit(client: Client, _: TokenEntry) -> None:
        answer = await client.post("/login", data={"bearer": " good\n"}, allow_redirects=False)
        told = answer.headers["Set-Cookie"]
        for word in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
            assert word in told
        assert "good" not in told
        cookie = {"Cookie": f"{COOKIE}={answer.cookies[COOKIE].value}"}
        text = await (await client.get("/", headers=cookie)).text()
        assert "of-alice" in text
        assert '<span class="user">alice</span>' in text
        assert "good" not in text

    browse(api, visit)
    assert set(api.asked) == {"good"}


def test_a_proxy_may_give_the_token_of_each_request(api: ApiOfTokens) -> None:
    async def visit(client: Client, _: TokenEntry) -> None:
        header = {"Authorization": "Bearer good"}
        text = await (await client.get("/", headers=header)).text()
        assert "of-alice" in text
        assert (await client.post("/logout", headers=header)).status == 403
        assert (await client.get("/", headers={"Authorization": "Bearer bad"})).status == 401

    browse(api, visit)


def test_the_hash_of_a_token_is_no_session(api: ApiOfTokens) -> None:
    async def visit(client: Client, _: TokenEntry) -> None:
        assert (await client.get("/", headers={"Authorization": "Bearer good"})).status == 200
        hashed = hashlib.sha256(b"good").hexdigest()
        for cookie in (f"header:{hashed}", hashed):
            assert (await client.get("/", headers={"Cookie": f"{COOKIE}={cookie}"})).status == 401

    browse(api, visit)


def test_a_session_ends_by_sign_out_and_when_the_cluster_refuses_its_token(api: ApiOfTokens) -> None:
    async def visit(client: Client, _: TokenEntry) -> None:
        cookie = await signed_in(client)
        token = await form_token(client, cookie)
        assert (await client.post("/logout", headers=cookie)).status == 403
        left = await client.post("/logout", headers=cookie, data={"token": token}, allow_redirects=False)
        assert left.status == 303
        assert (await client.get("/", headers=cookie)).status == 401
        cookie = await signed_in(client)
        del api.users["good"]
        answer = await client.get("/", headers=cookie)
        assert answer.status == 401
        assert "no longer accepts your token" in await answer.text()
        api.users["good"] = "alice"
        assert (await client.get("/", headers=cookie)).status == 401

    browse(api, visit)


def test_a_session_ends_after_its_time(api: ApiOfTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_entry, "LIFE_S", 0.0)

    async def visit(client: Client, _: TokenEntry) -> None:
        assert (await client.get("/", headers=await signed_in(client))).status == 401

    browse(api, visit)


def jwt(**claims: object) -> str:
    return f"x.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.y"


def test_a_session_is_not_longer_than_its_token() -> None:
    assert 0 < token_entry._life_of(jwt(exp=time.time() + 60)) <= 60
    assert token_entry._life_of(jwt(exp=1)) == 0
    for text in ("opaque", "a.b", "a.!!.c", jwt(), jwt(exp="soon"), jwt(exp=None)):
        assert token_entry._life_of(text) == float("inf")


def test_refused_tokens_are_limited_by_address(api: ApiOfTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_entry, "FAILURES", 2)

    async def visit(client: Client, _: TokenEntry) -> None:
        for _ in range(3):
            await signed_in(client)  # sign-ins that succeed do not count
        for _ in range(2):
            assert (await client.post("/login", data={"bearer": "bad"})).status == 401
        for token in ("bad", "good"):
            answer = await client.post("/login", data={"bearer": token})
            assert answer.status == 429
            assert answer.headers["Retry-After"] == "60"
        assert (await client.get("/", headers={"Authorization": "Bearer bad"})).status == 401

    browse(api, visit)
    assert api.asked.count("bad") == 2


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.7"], "203.0.113.7"),
        ("10.1.2.3", ["198.51.100.1, 203.0.113.7", "10.9.9.9"], "203.0.113.7"),
        ("::ffff:10.1.2.3", ["203.0.113.7"], "203.0.113.7"),
        ("10.1.2.3", ["203.0.113.7, unknown"], "10.1.2.3"),
        ("10.1.2.3", ["10.1.2.4"], "10.1.2.4"),
        ("fd00::1", ["[2001:db8::5]"], "2001:db8::5"),
        ("192.0.2.9", ["203.0.113.7"], "192.0.2.9"),
    ],
)
def test_only_a_trusted_proxy_tells_the_address_of_the_caller(peer: str, forwarded: list[str], caller: str) -> None:
    assert TrustedProxies.parse("10.0.0.0/8, fd00::1").caller(peer, forwarded) == caller


def test_behind_an_ingress_each_caller_has_an_own_limit(api: ApiOfTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_entry, "FAILURES", 2)

    async def visit(client: Client, entry: TokenEntry) -> None:
        entry.proxies = TrustedProxies.parse("127.0.0.1,::1")

        async def status(address: str) -> int:
            headers = {"X-Forwarded-For": address}
            return (await client.post("/login", data={"bearer": "bad"}, headers=headers)).status

        assert [await status("203.0.113.7") for _ in range(3)] == [401, 401, 429]
        assert await status("203.0.113.8") == 401

    browse(api, visit)


def test_the_limit_ends_and_forgets_addresses() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(token_entry.FAILURES):
        attempts.begin("a")
    with pytest.raises(SignInRefused):
        attempts.begin("a")
    attempts.begin("b")
    now[0] = token_entry.FAILURES_S
    attempts.begin("c")
    assert list(attempts._failed) == ["c"]
    attempts.begin("a")


@pytest.mark.parametrize("token", ["", "a\r\nX-Other: 1", "a b\x00", "ü", "x" * 20000])
def test_text_that_is_no_token_is_not_sent(api: ApiOfTokens, token: str) -> None:
    async def visit(client: Client, _: TokenEntry) -> None:
        assert (await client.post("/login", data={"bearer": token})).status == 401

    browse(api, visit)
    assert api.asked == []


def test_a_missing_right_is_named_and_a_namespace_can_be_chosen(api: ApiOfTokens) -> None:
    api.namespaces["good"] = ("team",)

    async def visit(client: Client, _: TokenEntry) -> None:
        cookie = await signed_in(client)
        answer = await client.get("/", headers=cookie)
        assert answer.status == 403
        text = await answer.text()
        assert (
            "The user alice lacks a right: list inferenceservices.inference.llmkube.dev in the whole cluster." in text
        )
        token = re.findall(r'name="token" value="([0-9a-f]+)"', text)[0]
        bad = await client.post("/namespace", headers=cookie, data={"token": token, "namespace": "a/../b"})
        assert bad.status == 422
        await client.post(
            "/namespace", headers=cookie, data={"token": token, "namespace": "team"}, allow_redirects=False
        )
        assert "of-alice" in await (await client.get("/", headers=cookie)).text()

    browse(api, visit)


def test_a_service_account_with_rights_in_its_namespace_begins_there(api: ApiOfTokens) -> None:
    api.users["good"] = "system:serviceaccount:team:ci"
    api.namespaces["good"] = ("team",)

    async def visit(client: Client, _: TokenEntry) -> None:
        text = await (await client.get("/", headers=await signed_in(client))).text()
        assert "of-system:serviceaccount:team:ci" in text
        assert 'name="namespace" value="team"' in text

    browse(api, visit)


def test_the_sessions_are_bounded(api: ApiOfTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_entry, "MOST_SESSIONS", 2)

    async def visit(client: Client, _: TokenEntry) -> None:
        cookies = [await signed_in(client) for _ in range(3)]
        assert [(await client.get("/", headers=cookie)).status for cookie in cookies] == [401, 200, 200]

    browse(api, visit)


def test_requests_for_another_name_or_of_another_site_are_refused(api: ApiOfTokens) -> None:
    async def visit(client: Client, _: TokenEntry) -> None:
        assert (await client.get("/login")).status == 421
        own = {"Host": "console.example.org"}
        assert (await client.get("/login", headers=own)).status == 200
        foreign = {**own, "Origin": "https://evil.example.org"}
        assert (await client.post("/login", data={"bearer": "good"}, headers=foreign)).status == 403
        assert (await client.get("/health")).status == 200

    browse(api, visit, hosts=("console.example.org",))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            'pods "c" is forbidden: User "bob" cannot get resource "pods/log" in API group "" in the namespace "team"',
            "The user bob lacks a right: get pods/log in namespace team. An administrator can grant it, for example by "
            "the ClusterRole view.",
        ),
        (
            'x is forbidden: User "bob" cannot patch resource "inferenceservices" in API group "inference.llmkube.dev" '
            'in the namespace "team"',
            "The user bob lacks a right: patch inferenceservices.inference.llmkube.dev in namespace team. An "
            "administrator can grant it, for example by the ClusterRole herdsman-edit.",
        ),
        ("admission webhook denied the request", "Admission webhook denied the request."),
    ],
)
def test_the_words_of_a_refusal(message: str, expected: str) -> None:
    assert refusals.words_of(message) == expected
