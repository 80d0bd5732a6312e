"""Requests as known clients send them: Open WebUI's backend (`routers/openai.py`) and `langchain-openai` 1.7.

Neither is a package of the tests' environment. Open WebUI's package needs PyTorch, some GB, and cannot be installed
without. `langchain-openai` calls the package `openai` with these arguments, as a record of its requests showed; the
client itself runs in tests/loop/test_gateway.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tests.support import event_loop
from tests.support.gateways import Engine, Front, says

USER_HEADERS = {
    "X-OpenWebUI-User-Name": quote("Jörg Sørensen", safe=" "),
    "X-OpenWebUI-User-Id": "5f2c",
    "X-OpenWebUI-User-Email": "jorg@example.org",
    "X-OpenWebUI-User-Role": "user",
}
"""With `ENABLE_FORWARD_USER_INFO_HEADERS=true`."""
CHAT_HEADERS = {"Content-Type": "application/json", **USER_HEADERS, "X-OpenWebUI-Chat-Id": "chat-1"}
COMPLETION = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "a",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Fine."}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    }
).encode()
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "a"}
STREAM = b"".join(
    b"data: " + part + b"\n\n"
    for part in (
        json.dumps({**CHUNK, "choices": [{"index": 0, "delta": {"content": "Fine."}}]}).encode(),
        json.dumps({**CHUNK, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}).encode(),
        b"[DONE]",
    )
)
EMBEDDINGS = b'{"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "model": "a"}'
Make = Callable[..., Engine]


def streamed(connection: Any, _head: bytes, _body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(STREAM), STREAM))


def headers_of(head: bytes) -> dict[str, str]:
    pairs = (line.partition(": ") for line in head.decode().strip().split("\r\n")[1:])
    return {name.lower(): value for name, _, value in pairs}


def web_ui(front: Front, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, bytes]:
    """Send a request as Open WebUI's backend does; return status, type and body of the answer."""

    async def send() -> tuple[int, str, bytes]:
        session = aiohttp.ClientSession(trust_env=True, read_bufsize=4 << 20)
        data = json.dumps(body) if body is not None else None
        sent = {**headers, "Authorization": "Bearer none"}
        async with (
            session,
            session.request(
                method, f"http://127.0.0.1:{front.port}/v1{path}", data=data, headers=sent, cookies={}
            ) as answer,
        ):
            return answer.status, answer.headers["Content-Type"], await answer.read()

    return event_loop.run(send())


def test_open_webui_lists_the_models(front: Front, make_engine: Make) -> None:
    front.serve(a=[make_engine()], b=[make_engine()])
    for headers in ({}, USER_HEADERS, {"Content-Type": "application/json"}):
        status, _, body = web_ui(front, "GET", "/models", **headers)
        assert status == 200
        listed = json.loads(body)["data"]
        assert sorted(each["id"] for each in listed) == ["a", "b"]
        assert all(each.get("name", each["id"]) for each in listed), "a name of None would be shown"


def test_a_chat_of_open_webui_is_a_stream_with_its_usage_and_the_engine_sees_its_user(
    front: Front, make_engine: Make
) -> None:
    engine = make_engine(streamed)
    front.serve(a=[engine])
    asked = {
        "stream": True,
        "model": "a",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "temperature": 0.7,
        "stream_options": {"include_usage": True},
    }
    status, kind, body = web_ui(front, "POST", "/chat/completions", asked, **CHAT_HEADERS)
    assert (status, body) == (200, STREAM)
    assert "text/event-stream" in kind
    head, sent = engine.seen[0]
    assert json.loads(sent) == asked
    seen = headers_of(head)
    assert {name: seen.get(name.lower()) for name in CHAT_HEADERS} == CHAT_HEADERS
    assert "authorization" not in seen


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_open_webui_asks_for_a_title_without_a_stream(front: Front, make_engine: Make, limit: str) -> None:
    engine = make_engine(says("200 OK", COMPLETION))
    front.serve(a=[engine])
    asked = {"model": "a", "messages": [{"role": "user", "content": "A title"}], "stream": False, limit: 1000}
    status, _, body = web_ui(front, "POST", "/chat/completions", asked, **CHAT_HEADERS)
    assert (status, body) == (200, COMPLETION)
    assert json.loads(engine.seen[0][1]) == asked


def test_open_webui_shows_the_error_of_an_unknown_model(front: Front, make_engine: Make) -> None:
    """It passes JSON of errors on to its page, whatever the request."""
    front.serve(a=[make_engine()])
    asked = {"stream": True, "model": "gone", "messages": [{"role": "user", "content": "Hi"}]}
    status, kind, body = web_ui(front, "POST", "/chat/completions", asked, **CHAT_HEADERS)
    assert (status, kind.partition(";")[0]) == (404, "application/json")
    assert json.loads(body)["error"]["message"]


def test_open_webui_gets_embeddings_for_its_documents(front: Front, make_engine: Make) -> None:
    engine = make_engine(says("200 OK", EMBEDDINGS))
    front.serve(a=[engine])
    asked = {"input": ["first part", "second part"], "model": "a"}
    assert web_ui(front, "POST", "/embeddings", asked, **CHAT_HEADERS)[::2] == (200, EMBEDDINGS)
    assert json.loads(engine.seen[0][1]) == asked


def test_langchain_reads_the_raw_answer_and_a_stream_with_its_usage(front: Front, make_engine: Make) -> None:
    import openai  # takes a second, so not in each test process

    whole, pieces = make_engine(says("200 OK", COMPLETION)), make_engine(streamed)
    front.serve(whole=[whole], pieces=[pieces])
    messages: Any = [{"content": "Hi", "role": "user"}]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", max_retries=2) as client:
        raw = client.chat.completions.with_raw_response.create(model="whole", messages=messages, stream=False)
        assert raw.parse().choices[0].message.content == "Fine."
        assert raw.headers["x-request-id"]
        usage: Any = {"include_usage": True}
        with client.chat.completions.create(
            model="pieces", messages=messages, stream=True, stream_options=usage
        ) as stream:
            chunks = list(stream)
    assert chunks[0].choices[0].delta.content == "Fine."
    assert chunks[-1].usage is not None
    assert json.loads(whole.seen[0][1]) == {"model": "whole", "messages": messages, "stream": False}
