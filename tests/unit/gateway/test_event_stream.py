"""Streams of events: their headers, and how a client notices a break."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from tests.support.gateways import Engine, Front
from tests.support.raw_engine import connected, read_head, read_to_end

REQUEST = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}'
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: max-age=5\r\n"
CHUNKED = EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
Make = Callable[..., Engine]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def sends(*parts: bytes) -> Callable[[socket.socket, bytes, bytes], None]:
    """Return an engine's answer that breaks off after these bytes."""

    def answer(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        for part in parts:
            connection.sendall(part)
        connection.close()

    return answer


def received(front: Front) -> tuple[bytes, bool]:
    """Return the bytes of the answer, and whether the connection was reset after them."""
    seen = b""
    with connected(front.port) as client:
        client.sendall(REQUEST)
        try:
            while part := client.recv(65536):
                seen += part
        except ConnectionResetError:
            return seen, True
    return seen, False


def test_proxies_in_front_neither_keep_nor_delay_events(front: Front, make_engine: Make) -> None:
    front.serve(chat=[make_engine(sends(CHUNKED, chunk(b"data: 1\n\n"), b"0\r\n\r\n"))])
    with connected(front.port) as client:
        client.sendall(REQUEST)
        head = read_head(client)[0].lower()
    assert head.count(b"cache-control") == 1
    assert b"\r\ncache-control: no-cache\r\n" in head
    assert b"\r\nx-accel-buffering: no\r\n" in head


@pytest.mark.parametrize(
    "parts",
    [
        (chunk(b"data: 1\n\n"),),
        (chunk(b"data: 1\r\n\r\n"),),
        (chunk(b"data: 1"), chunk(b"\n\n")),
        (b"9\r\ndata:", b" 1\n\n\r", b"\n"),
        (),
    ],
)
def test_a_break_between_events_is_an_error_event_and_no_end(
    front: Front, make_engine: Make, parts: tuple[bytes, ...]
) -> None:
    front.serve(chat=[make_engine(sends(CHUNKED, *parts))])
    body = received(front)[0].partition(b"\r\n\r\n")[2]
    assert body.startswith(b"".join(parts))
    size, _, rest = body[len(b"".join(parts)) :].partition(b"\r\n")
    event = rest[: int(size, 16)]
    kind, data = event.decode().rstrip("\n").split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "upstream_broke_off"
    assert rest[int(size, 16) :] == b"\r\n", "no last chunk follows, so the answer is not whole"
    assert b"[DONE]" not in body


@pytest.mark.parametrize(
    "parts",
    [
        (chunk(b"data: 1"),),
        (b"ff\r\ndata: 1\n\n",),
        (chunk(b"data: 1\n\n"), b"5"),
        (chunk(b"data: 1"), chunk(b"\n")),
        (chunk(b"data: 1"), chunk(b"\r\n")),
    ],
)
def test_a_break_inside_of_an_event_or_a_chunk_adds_nothing(
    front: Front, make_engine: Make, parts: tuple[bytes, ...]
) -> None:
    front.serve(chat=[make_engine(sends(CHUNKED, *parts))])
    assert received(front)[0].endswith(b"\r\n\r\n" + b"".join(parts))


def test_an_answer_of_another_type_gets_no_event(front: Front, make_engine: Make) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    front.serve(chat=[make_engine(sends(head, chunk(b"[1,\n\n")))])
    assert received(front)[0].endswith(chunk(b"[1,\n\n"))


def test_a_stream_without_an_announced_end_is_reset_after_the_event(front: Front, make_engine: Make) -> None:
    def answer(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(EVENTS + b"\r\ndata: 1\n\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()

    front.serve(chat=[make_engine(answer)])
    seen, was_reset = received(front)
    assert was_reset
    assert b"data: 1\n\nevent: error\n" in seen


def test_a_whole_stream_stays_as_it_is(front: Front, make_engine: Make) -> None:
    whole = (chunk(b"data: 1\n\n"), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n")
    front.serve(chat=[make_engine(sends(CHUNKED, *whole))])
    with connected(front.port) as client:
        client.sendall(REQUEST.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        assert read_to_end(client).endswith(b"\r\n\r\n" + b"".join(whole))
