"""The web console as a browser meets it: the link, the checks of each request, the pages, writes, the chat."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from automation.places.place import (
    Download,
    NoAccess,
    Reached,
    State,
)
from automation.web_console.entry import is_local
from automation.web_console.html import Html, tag
from automation.web_console.sessions import LIFE_S, Sessions
from tests.support.console_pages import Client, MemoryPlace, browse, state, token_of

# --- who may use it ---------------------------------------------------------------------------------------------------


def test_the_link_works_once() -> None:
    async def visit(client: Client, sessions: Sessions) -> None:
        link = f"/open?token={sessions.link_token}"
        opened = await client.get(link, allow_redirects=False)
        assert opened.status == 303
        assert "HttpOnly" in opened.headers["Set-Cookie"]
        assert "SameSite=Strict" in opened.headers["Set-Cookie"]
        client.session.cookie_jar.clear()
        assert (await client.get(link)).status == 401
        assert (await client.get("/")).status == 401

    browse(MemoryPlace(), visit, signed_in=False)


@pytest.mark.parametrize("path", ["/", "/events", "/hosts", "/services/team/chat", "/playground", "/static/console.js"])
def test_nothing_is_shown_without_a_session(path: str) -> None:
    async def visit(client: Client, _: Sessions) -> None:
        answer = await client.get(path, headers={"Cookie": "herdsman-console=guessed"})
        assert answer.status == 401
        assert "chat" not in await answer.text()

    browse(MemoryPlace([state()]), visit, signed_in=False)


def test_a_session_ends() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    session = sessions.redeem(sessions.link_token)
    assert session is not None
    assert sessions.is_valid(session)
    now[0] = LIFE_S
    assert not sessions.is_valid(session)
    assert sessions.redeem("") is None


def test_another_host_name_is_refused() -> None:
    async def visit(client: Client, _: Sessions) -> None:
        assert (await client.get("/", headers={"Host": "rebound.example.org:8090"})).status == 421

    browse(MemoryPlace(), visit)


@pytest.mark.parametrize(
    ("name", "expected"), [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("", False)]
)
def test_names_of_the_loopback(name: str, expected: bool) -> None:
    assert is_local(name) is expected


def test_a_write_needs_the_token_of_its_session_and_its_own_origin() -> None:
    place = MemoryPlace([state()])

    async def visit(client: Client, sessions: Sessions) -> None:
        path = "/services/team/chat/stop"
        assert (await client.post(path)).status == 403
        assert (await client.post(path, data={"token": "0" * 64})).status == 403
        token = await token_of(client, "/services/team/chat")
        foreign = {"Origin": "https://evil.example.org"}
        assert (await client.post(path, data={"token": token}, headers=foreign)).status == 403
        assert place.calls == []
        assert (await client.post(path, data={"token": token}, allow_redirects=False)).status == 303

    browse(place, visit)
    assert place.calls == [("stop", "chat")]


def test_every_page_allows_no_foreign_content() -> None:
    async def visit(client: Client, _: Sessions) -> None:
        for path in ("/", "/hosts", "/nothing"):
            headers = (await client.get(path)).headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "unsafe-inline" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"

    browse(MemoryPlace(), visit)


def test_a_browser_gets_a_page_for_a_refused_request_and_a_program_gets_text() -> None:
    async def visit(client: Client, _: Sessions) -> None:
        asked = {"Accept": "text/html,*/*;q=0.8"}
        missing = await client.get("/nothing", headers=asked)
        assert (missing.status, missing.content_type) == (404, "text/html")
        assert "<h1>Not Found</h1>" in await missing.text()
        assert "default-src 'none'" in missing.headers["Content-Security-Policy"]
        old_form = await client.post("/services/team/chat/stop", data={"token": "0" * 64}, headers=asked)
        assert old_form.status == 403
        assert "The form is of another session: load the page again." in await old_form.text()
        assert (await client.get("/nothing")).content_type == "text/plain"

    browse(MemoryPlace([state()]), visit)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_text_is_escaped() -> None:
    shown = tag("a", "<b>", Html("<i></i>"), ["&"], None, href='"><script>', hidden=True, id=None, for_="x")
    assert shown == '<a href="&quot;&gt;&lt;script&gt;" hidden for="x">&lt;b&gt;<i></i>&amp;</a>'


def test_the_services_are_listed_with_the_failed_ones_first() -> None:
    loading = state("big", state=State.STARTING, download=Download(2**30, 2**31), message="<script>alert(1)</script>")
    place = MemoryPlace([state(), loading, state("broken", state=State.FAILED), state("play", kind="Playground")])

    async def visit(client: Client, _: Sessions) -> None:
        text = await (await client.get("/")).text()
        assert [text.index(f">{name}</a>") for name in ("broken", "big", "chat")] == sorted(
            text.index(f">{name}</a>") for name in ("broken", "big", "chat")
        )
        assert "1.0 GiB of 2.0 GiB" in text
        assert "<script>alert" not in text
        assert 'href="/services/team/play?kind=Playground"' in text
        assert "cluster test" in text
        waiting = await (await client.get("/queue")).text()
        assert ">big</a>" in waiting
        assert ">chat</a>" not in waiting

    browse(place, visit)


def test_a_service_has_its_conditions_and_its_object() -> None:
    async def visit(client: Client, _: Sessions) -> None:
        text = await (await client.get("/services/team/chat")).text()
        assert "loads &lt;it&gt;" in text
        assert "managedFields" not in text

    browse(MemoryPlace([state()]), visit)


def test_an_unknown_service_names_near_ones() -> None:
    async def visit(client: Client, _: Sessions) -> None:
        answer = await client.get("/services/team/cat")
        assert answer.status == 404
        assert "Did you mean `chat`?" in await answer.text()

    browse(MemoryPlace([state()]), visit)


def test_an_unreachable_place_is_a_page() -> None:
    async def visit(client: Client, _: Sessions) -> None:
        answer = await client.get("/")
        assert answer.status == 502
        assert "no route" in await answer.text()

    browse(MemoryPlace(failure=NoAccess("no route")), visit)


def test_a_service_is_scaled_by_a_number_only() -> None:
    place = MemoryPlace([state()])

    async def visit(client: Client, _: Sessions) -> None:
        token = await token_of(client, "/services/team/chat")
        for text in ("-1", "two", "99999", ""):
            refused = await client.post("/services/team/chat/scale", data={"token": token, "replicas": text})
            assert refused.status == 422
        await client.post("/services/team/chat/scale", data={"token": token, "replicas": "3"})

    browse(place, visit)
    assert place.calls == [("scale", "chat", 3)]


def test_a_model_is_deployed_after_its_preview() -> None:
    place = MemoryPlace([state("qwen3-0-6b")])

    async def visit(client: Client, _: Sessions) -> None:
        listed = await (await client.get("/catalog")).text()
        token = await token_of(client, "/catalog")
        wanted = re.findall(r'name="id" value="([^"]+)"', listed)[-1]
        planned = await client.post("/catalog/plan", data={"token": token, "id": wanted})
        text = await planned.text()
        assert "creates 2 objects" in text
        assert "kind: InferenceService" in text
        assert place.calls == []
        deployed = await client.post(
            "/catalog/deploy", data={"token": token, "id": wanted, "name": "mine"}, allow_redirects=False
        )
        assert deployed.headers["Location"] == "/services/team/mine"
        unknown = await client.post("/catalog/plan", data={"token": token, "id": "no-such-model"})
        assert unknown.status == 422

    browse(place, visit)
    assert place.calls == [("apply", ["Model", "InferenceService"])]


# --- the chat ---------------------------------------------------------------------------------------------------------


def chat_with(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], body: object
) -> tuple[int, str, MemoryPlace]:
    """Send one request of the playground; `handler` is the model server. Returns status, text and the place."""
    place = MemoryPlace([state()])
    told: list[tuple[int, str]] = []

    async def visit(client: Client, _: Sessions) -> None:
        engine = web.Application()
        engine.router.add_post("/v1/chat/completions", handler)
        async with TestServer(engine) as server:
            place.way = Reached(f"http://127.0.0.1:{server.port}/v1", "served", "test", key="secret-of-engine")
            token = await token_of(client, "/playground")
            answer = await client.post("/playground/chat", data=json.dumps(body), headers={"X-Form-Token": token})
            told.append((answer.status, await answer.text()))

    browse(place, visit)
    return *told[0], place


MESSAGES = {"name": "chat", "namespace": "team", "messages": [{"role": "user", "content": "Hello"}]}


def test_the_pieces_of_an_answer_reach_the_browser() -> None:
    asked: list[tuple[object, str]] = []

    async def engine(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json(), request.headers["Authorization"]))
        lines = [f"data: {json.dumps({'choices': [{'delta': {'content': piece}}]})}\n\n" for piece in ("Hel", "lo\n")]
        return web.Response(text="".join(lines) + ": note\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    status, text, place = chat_with(engine, MESSAGES)
    assert status == 200
    assert text == 'data: {"text": "Hel"}\n\ndata: {"text": "lo\\n"}\n\nevent: end\ndata: {}\n\n'
    sent = {
        "model": "served",
        "messages": MESSAGES["messages"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert asked == [(sent, "Bearer secret-of-engine")]
    assert place.calls == [("closed", "chat")]


def test_the_error_of_a_model_server_is_shown_without_its_key() -> None:
    async def engine(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "the context is full"}}, status=400)

    _, text, place = chat_with(engine, MESSAGES)
    assert text.startswith("event: failed")
    assert "the context is full" in text
    assert "event: end" not in text
    assert "secret" not in text
    assert place.calls == [("closed", "chat")]


def test_an_answer_that_breaks_off_does_not_look_complete() -> None:
    async def engine(_: web.Request) -> web.StreamResponse:
        piece = json.dumps({"choices": [{"delta": {"content": "Hel"}}]})
        return web.Response(text=f"data: {piece}\n\n", content_type="text/event-stream")

    _, text, place = chat_with(engine, MESSAGES)
    assert text.startswith('data: {"text": "Hel"}\n\nevent: failed\n')
    assert "event: end" not in text
    assert place.calls == [("closed", "chat")]


@pytest.mark.parametrize("messages", [None, [], ["text"], [{"role": "tool", "content": "x"}], [{"role": "user"}]])
def test_a_conversation_in_another_form_is_refused(messages: object) -> None:
    async def engine(_: web.Request) -> web.StreamResponse:
        raise AssertionError

    status, _, _ = chat_with(engine, {**MESSAGES, "messages": messages})
    assert status == 422
    status, _, _ = chat_with(engine, [messages])
    assert status == 422
