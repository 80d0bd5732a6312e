"""Requests through the gateway, to engines that send what the test wants."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from gateway.access.authentication import Access
from gateway.access.caller import Caller
from gateway.access.key_limits import KeyLimits
from gateway.access.keys import Key, KeyRing, digest, new_key
from gateway.accounting.stores import SqliteStore
from gateway.clients.connection import Connection
from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.server import GatewayServer
from tests.support.gateways import CHAT, OK, Answer, Engine, Front, says
from tests.support.raw_engine import connected, read_head, read_to_end

Make = Callable[..., Engine]
COMPLETION = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}'
HEAD_OF_800 = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 800\r\n\r\n"


def test_a_request_goes_to_its_model_and_the_answer_comes_back(front: Front, make_engine: Make) -> None:
    chat, code = make_engine(says("200 OK", b'{"from": "chat"}')), make_engine(says("200 OK", b'{"from": "code"}'))
    front.serve(chat=[chat], code=[code])
    assert front.ask({"model": "code"})[2] == {"from": "code"}
    assert front.ask({"model": "prod/chat", "n": 1})[2] == {"from": "chat"}
    (head, body), *_ = chat.seen
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert json.loads(body) == {"model": "prod/chat", "n": 1}


def test_the_engine_gets_the_name_that_it_expects(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    model = Model(ServiceName("prod", "chat"), ("org/chat-8b",), ("sql",), ("gpt-4o",))
    front.serve_routes(Route(model, (engine.target,)))
    for name in ("gpt-4o", "org/chat-8b", "chat:sql"):
        assert front.ask({"model": name})[0] == 200
    assert [json.loads(body)["model"] for _, body in engine.seen] == ["org/chat-8b", "org/chat-8b", "sql"]


def test_keys_and_cookies_of_clients_do_not_reach_engines(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    front.serve(chat=[engine])
    front.ask({"model": "chat"}, Authorization="Bearer secret", Cookie="a=secret", x_api_key="secret", X_Kept="yes")
    (head, _), *_ = engine.seen
    assert b"secret" not in head
    assert b"X-Kept: yes" in head
    assert head.lower().count(b"host:") == 1


def test_a_request_keeps_its_id_or_gets_one(front: Front, make_engine: Make) -> None:
    engine = make_engine(says("200 OK", b"{}", b"X-Request-ID: of-the-engine"))
    front.serve(chat=[engine])
    assert front.ask({"model": "chat"}, X_Request_Id="mine-1")[1]["x-request-id"] == "mine-1"
    made = front.ask({"model": "chat"}, X_Request_Id="two words")[1]["x-request-id"]
    assert len(made) == 32
    assert [b"x-request-id: mine-1" in head for head, _ in engine.seen] == [True, False]


@pytest.mark.parametrize(
    ("body", "path", "status", "code"),
    [
        ({"model": "nothing"}, CHAT, 404, "model_not_found"),
        (b"{", CHAT, 400, "invalid_request"),
        ({}, CHAT, 400, "invalid_request"),
        ({"model": "chat"}, "/v1/load_lora_adapter", 404, "unknown_url"),
        ({"model": "empty"}, CHAT, 503, "no_replica"),
    ],
)
def test_errors_are_those_of_openai(
    front: Front, make_engine: Make, body: Any, path: str, status: int, code: str
) -> None:
    engine = make_engine()
    front.serve(chat=[engine], empty=[])
    told = front.ask(body, path)
    assert (told[0], told[2]["error"]["code"]) == (status, code)
    assert set(told[2]["error"]) == {"message", "type", "param", "code"}
    assert "x-request-id" in told[1]
    assert ("retry-after" in told[1]) == (status == 503)
    assert not engine.seen


def test_the_models_are_listed(front: Front) -> None:
    model = Model(ServiceName("prod", "org/x"), created_s=5, context_length=4096, state="asleep", aliases=("gpt",))
    front.serve_routes(Route(model))
    status, told = front.get("/v1/models")
    assert (status, [each["id"] for each in told["data"]]) == (200, ["org/x", "gpt"])
    entry = {"object": "model", "created": 5, "owned_by": "herdsman", "root": "prod/org/x", "parent": None}
    entry |= {"status": "asleep", "max_model_len": 4096}
    assert told["data"][0] == {"id": "org/x", **entry}
    assert front.get("/v1/models/org/x") == (200, {"id": "org/x", **entry})
    assert front.get("/v1/models/other")[0] == 404
    assert front.get("/health") == (200, {"status": "ok"})
    assert front.get("/metrics")[0] == 404


def test_a_stream_is_passed_on_byte_for_byte_as_it_comes(front: Front, make_engine: Make) -> None:
    step = threading.Semaphore(0)
    events = [b'data: {"n": %d}\n\n' % number for number in range(3)] + [b"data: [DONE]\n\n"]

    def stream(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            step.acquire(timeout=5)
        connection.sendall(b"0\r\n\r\n")

    front.serve(chat=[make_engine(stream)])
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    connection.request("POST", CHAT, b'{"model": "chat", "stream": true}')
    answer = connection.getresponse()
    for event in events:
        assert answer.read(len(event)) == event
        step.release()
    assert answer.read() == b""
    connection.close()


def test_a_chunked_request_is_understood(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    front.serve(chat=[engine])
    body = b'{"model": "chat"}'
    with connected(front.port) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 5):
            part = body[at : at + 5]
            client.sendall(b"%x;name=value\r\n%s\r\n" % (len(part), part))
        client.sendall(b"0\r\n\r\n")
        assert b" 200 " in read_head(client)[0]
    assert engine.seen[0][1] == body
    assert b"chunked" not in engine.seen[0][0].lower()


def test_requests_of_one_connection_are_answered_in_their_order(front: Front, make_engine: Make) -> None:
    front.serve(a=[make_engine(says("200 OK", b'"a"'))], b=[make_engine(says("200 OK", b'"b"'))])
    both = b"".join(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n" + b'{"model": "%s"}' % name
        for name in (b"a", b"b")
    )
    with connected(front.port) as client:
        client.sendall(both)
        seen = b""
        while seen.count(b"HTTP/1.1 200") < 2 or not seen.endswith(b'"b"'):
            seen += client.recv(65536)
    assert seen.index(b'"a"') < seen.index(b'"b"')


def test_expect_continue_is_answered(front: Front, make_engine: Make) -> None:
    front.serve(chat=[make_engine()])
    with connected(front.port) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\nExpect: 100-continue\r\n\r\n"
        client.sendall(head)
        assert read_head(client)[0].startswith(b"HTTP/1.1 100")
        client.sendall(b'{"model": "chat"}')
        assert read_head(client)[0].startswith(b"HTTP/1.1 200")


# --- replicas -------------------------------------------------------------------------------------------------------


def hangs_up(connection: socket.socket, _head: bytes, _body: bytes) -> None:
    connection.close()


@pytest.mark.parametrize(
    "bad", [hangs_up, says("503 Service Unavailable", b"{}"), says("429 Too Many Requests", b"{}")]
)
def test_another_replica_answers_when_the_first_one_does_not(front: Front, make_engine: Make, bad: Answer) -> None:
    first, second = make_engine(bad), make_engine()
    front.serve(chat=[first, second])
    for _ in range(30):
        assert front.ask({"model": "chat"})[0] == 200
    assert first.seen
    assert len(second.seen) == 30


def test_a_replica_that_is_gone_is_left_out(front: Front, make_engine: Make) -> None:
    gone, lives = make_engine(), make_engine()
    gone.close()
    front.serve(chat=[gone, lives])
    for _ in range(10):
        assert front.ask({"model": "chat"})[0] == 200


def test_without_any_reachable_replica_the_client_is_told_when_to_come_back(front: Front, make_engine: Make) -> None:
    gone = make_engine()
    gone.close()
    front.serve(chat=[gone])
    status, headers, told = front.ask({"model": "chat"})
    assert (status, told["error"]["code"], headers["retry-after"]) == (503, "upstream_unreachable", "5")


def test_an_error_of_the_engine_is_passed_on(front: Front, make_engine: Make) -> None:
    engine = make_engine(says("400 Bad Request", b'{"error": "too long"}', b"X-Own: 1"))
    front.serve(chat=[engine, make_engine(says("400 Bad Request", b'{"error": "too long"}', b"X-Own: 1"))])
    status, headers, told = front.ask({"model": "chat"})
    assert (status, headers["x-own"], told) == (400, "1", {"error": "too long"})


def test_an_answer_that_breaks_off_does_not_look_whole_and_is_not_repeated(front: Front, make_engine: Make) -> None:
    def breaks(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n")
        connection.close()

    engines = [make_engine(breaks), make_engine(breaks)]
    front.serve(chat=engines)
    with connected(front.port) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}')
        seen = read_to_end(client)
    assert seen.endswith(b"data:\r\n")
    assert sum(len(each.seen) for each in engines) == 1


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("bad", [b"abXX", b"ab\r\nZZ\r\n"])
def test_an_answer_that_becomes_invalid_breaks_off_and_is_not_repeated(
    front: Front, make_engine: Make, replicas: int, bad: bytes
) -> None:
    passed = threading.Event()

    def becomes_invalid(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")
        passed.wait(10)
        connection.sendall(bad)

    engines = [make_engine(becomes_invalid) for _ in range(replicas)]
    front.serve(chat=engines)
    with connected(front.port) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}')
        seen = b""
        while not seen.endswith(b"5\r\nabc"):
            more = client.recv(65536)
            assert more, seen
            seen += more
        passed.set()
        seen += read_to_end(client)
    assert seen.endswith(b"5\r\nabc")
    assert sum(len(each.seen) for each in engines) == 1


def test_a_client_that_leaves_cancels_its_request_at_the_engine(front: Front, make_engine: Make) -> None:
    left = threading.Event()

    def waits(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            if connection.recv(1) == b"":
                left.set()
            return
        left.set()

    engine = make_engine(waits)
    front.serve(chat=[engine])
    with connected(front.port) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}')
        read_head(client)
    assert left.wait(5)


def test_requests_in_progress_survive_a_change_of_the_routes(front: Front, make_engine: Make) -> None:
    step = threading.Event()

    def slow(connection: socket.socket, head: bytes, body: bytes) -> None:
        step.wait(5)
        OK(connection, head, body)

    engine = make_engine(slow)
    front.serve(chat=[engine])
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(front.ask({"model": "chat"})[0]))
    asking.start()
    until(lambda: bool(engine.seen))
    front.serve(other=[])
    step.set()
    asking.join(10)
    assert answers == [200]


def test_an_answer_under_way_ends_before_the_gateway_does(front: Front, make_engine: Make) -> None:
    step = threading.Event()

    def slow(connection: socket.socket, head: bytes, body: bytes) -> None:
        step.wait(5)
        OK(connection, head, body)

    engine = make_engine(slow)
    front.serve(chat=[engine])
    with connected(front.port) as idle, connected(front.port) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}')
        until(lambda: bool(engine.seen))
        stopping = threading.Thread(target=lambda: front.server.stop(grace_s=5))
        stopping.start()
        assert idle.recv(1) == b"", "a connection without a request is closed at once"
        with pytest.raises(OSError):
            connected(front.port, timeout_s=1).close()
        step.set()
        assert read_to_end(client).endswith(b'{"ok": true}')
        stopping.join(5)
        assert not stopping.is_alive()


def test_an_answer_that_ends_with_its_connection_does_not_look_whole_at_the_end_of_the_gateway(
    front: Front, make_engine: Make
) -> None:
    def endless(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc")
        connection.settimeout(10)
        connection.recv(1)

    front.serve(chat=[make_engine(endless)])
    with connected(front.port) as client:
        client.sendall(COMPLETION)
        assert b" 200 " in read_head(client)[0]
        front.server.stop()
        with pytest.raises(ConnectionResetError):
            read_to_end(client)


@pytest.mark.parametrize("broken", [False, True])
def test_a_client_of_http_1_0_gets_no_chunks(front: Front, make_engine: Make, broken: bool) -> None:
    front.serve(chat=[make_engine(streaming(b"data: 1\n\n", b"data: 2\n\n", broken=broken))])
    with connected(front.port) as client:
        client.sendall(COMPLETION.replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: keep-alive"))
        seen = b""
        with pytest.raises(ConnectionResetError) if broken else contextlib.nullcontext():
            while more := client.recv(65536):
                seen += more
    head, _, body = seen.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"Connection: close" in head
    data, error, _ = body.partition(b"event: error")
    assert data == b"data: 1\n\ndata: 2\n\n"
    assert bool(error) == broken


# --- limits ---------------------------------------------------------------------------------------------------------


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_body_beyond_the_limit_is_refused_while_it_comes(make_front: Callable[..., Front], make_engine: Make) -> None:
    front, engine = make_front(max_body=1000), make_engine()
    front.serve(chat=[engine])
    with connected(front.port) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 2000)
        head, body = read_head(client)
        assert b" 413 " in head
        assert b"request_too_large" in body + read_to_end(client)
    assert front.server.body_bytes == 0
    assert not engine.seen


def test_a_body_counts_until_its_answer_begins(make_front: Callable[..., Front], make_engine: Make) -> None:
    step = threading.Event()

    def slow(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{")
        step.wait(5)
        connection.sendall(b"}")

    front = make_front()
    front.serve(chat=[make_engine(slow)])
    with connected(front.port) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}')
        read_head(client)
        assert front.server.body_bytes == 0
        step.set()


def test_bodies_of_all_clients_have_a_limit(make_front: Callable[..., Front]) -> None:
    front = make_front(max_bodies=1000)
    front.serve(chat=[])
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 800\r\n\r\n"
    with connected(front.port) as first, connected(front.port) as second:
        first.sendall(head + b"x" * 700)
        until(lambda: front.server.body_bytes == 700)
        second.sendall(head + b"x" * 700)
        assert b" 503 " in read_head(second)[0]
    until(lambda: front.server.body_bytes == 0)


def test_too_many_connections_are_refused(make_front: Callable[..., Front]) -> None:
    front = make_front(max_connections=1)
    with connected(front.port) as first:
        until(lambda: len(front.server.connections) == 1)
        with connected(front.port) as second:
            assert b"too_many_connections" in read_to_end(second)
        first.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in read_head(first)[0]


def test_a_client_that_sends_too_slowly_is_cut_off(make_front: Callable[..., Front]) -> None:
    front = make_front(client_idle_s=0.2)
    with connected(front.port, timeout_s=10) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 800\r\n\r\nx")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


@pytest.mark.parametrize("start", [b"POST /v1/completions HTTP/1.1\r\nX: ", b"", HEAD_OF_800])
def test_a_client_that_sends_byte_by_byte_is_cut_off(make_front: Callable[..., Front], start: bytes) -> None:
    front = make_front(head_s=0.5, client_idle_s=2.0, body_rate=1000.0)
    with connected(front.port, timeout_s=10) as client:
        client.sendall(start)
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 20:
                client.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < 20
    until(lambda: not front.server.connections)


def test_a_path_without_a_key_takes_no_body(front: Front) -> None:
    """Bodies of requests without a key could fill the memory that all requests share."""
    with connected(front.port) as client:
        client.sendall(b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")
        assert read_head(client)[0].startswith(b"HTTP/1.1 400")
    assert front.server.body_bytes == 0


def test_a_body_may_take_long_if_it_goes_on(make_front: Callable[..., Front], make_engine: Make) -> None:
    front = make_front(head_s=5.0, client_idle_s=2.0, body_rate=20.0)
    front.serve(chat=[make_engine()])
    body = b'{"model": "chat", "padding": "%s"}' % (b"x" * 100)
    with connected(front.port, timeout_s=10) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 10):
            client.sendall(body[at : at + 10])
            time.sleep(0.2)
        assert b" 200 " in read_head(client)[0]


def test_a_fault_of_the_gateway_is_answered_and_logged(
    front: Front, make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> None:
        raise RecursionError

    front.serve(chat=[make_engine()])
    with connected(front.port) as client:
        client.sendall(COMPLETION)
        read_head(client)
        monkeypatch.setattr("gateway.clients.connection.dispatch", faulty)
        client.sendall(COMPLETION)
        seen = read_to_end(client)
    assert b"HTTP/1.1 500 " in seen
    assert b'"code": "internal_error"' in seen
    monkeypatch.undo()
    assert front.ask({"model": "chat"})[0] == 200


def test_one_connection_at_fault_does_not_end_the_limits_of_the_others(
    make_front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = make_front(client_idle_s=0.2)
    checked = Connection.close_if_late
    faults = [RecursionError()]

    def close_if_late(connection: Connection, now: float) -> None:
        if faults:
            raise faults.pop()
        checked(connection, now)

    monkeypatch.setattr(Connection, "close_if_late", close_if_late)
    with connected(front.port, timeout_s=10) as first, connected(front.port, timeout_s=10) as second:
        assert first.recv(1) == second.recv(1) == b""
    assert not faults


LIST = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("asked", [COMPLETION, (LIST + b"\r\n") * 20, LIST + b"Connection: close\r\n\r\n"])
def test_a_client_that_does_not_read_its_answer_is_cut_off(
    make_front: Callable[..., Front], make_engine: Make, asked: bytes
) -> None:
    front = make_front(gap_s=0.5)
    engine = make_engine(says("200 OK", b"x" * 30_000_000))
    front.serve_routes(Route(Model(ServiceName("prod", "chat"), aliases=("x" * 20_000_000,)), (engine.target,)))
    with connected(front.port) as client:
        until(lambda: len(front.server.connections) == 1)
        client.sendall(asked)
        until(lambda: not front.server.connections)
        with pytest.raises(ConnectionResetError):
            read_to_end(client)


def test_an_engine_that_does_not_begin_to_answer_is_given_up(
    make_front: Callable[..., Front], make_engine: Make
) -> None:
    left = threading.Event()

    def silent(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        left.set()

    front = make_front(first_byte_s=0.2)
    front.serve(chat=[make_engine(silent)])
    status, _, told = front.ask({"model": "chat"})
    assert (status, told["error"]["code"]) == (504, "upstream_timeout")
    assert left.wait(5)


def test_an_answer_that_stops_is_broken_off(make_front: Callable[..., Front], make_engine: Make) -> None:
    def stops(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n")
        with contextlib.suppress(OSError):
            connection.recv(1)

    front = make_front(gap_s=0.2)
    front.serve(chat=[make_engine(stops)])
    with connected(front.port, timeout_s=10) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}')
        assert read_to_end(client).endswith(b"data:\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000,
    ],
)
def test_what_is_not_http_is_answered_and_closed(front: Front, data: bytes) -> None:
    with connected(front.port) as client:
        client.sendall(data)
        seen = read_to_end(client)
    assert seen.startswith(b"HTTP/1.1 4")
    assert b'"invalid_request"' in seen


# --- keys -----------------------------------------------------------------------------------------------------------


def key_for(*models: str) -> tuple[str, Key]:
    key_id, text = new_key()
    return text, Key(Caller(key_id, "ci", models=models), digest(text))


def test_a_request_without_a_valid_key_reaches_no_engine(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    front.serve(chat=[engine])
    text, key = key_for()
    front.server.set_keys(KeyRing.of([key]))
    status, headers, told = front.ask({"model": "chat"})
    assert (status, told["error"]["code"], told["error"]["type"]) == (401, "missing_api_key", "authentication_error")
    assert headers["www-authenticate"] == 'Bearer realm="herdsman"'
    assert front.ask({"model": "chat"}, Authorization="Bearer hd-wrong")[2]["error"]["code"] == "invalid_api_key"
    assert front.get("/v1/models")[0] == 401
    assert front.get("/health")[0] == 200
    assert not engine.seen
    assert front.ask({"model": "chat"}, Authorization=f"Bearer {text}")[0] == 200
    front.server.set_keys(KeyRing.of([], unreadable=1))
    assert front.ask({"model": "chat"}, Authorization=f"Bearer {text}")[0] == 401


def test_a_body_without_a_valid_key_is_not_held(front: Front) -> None:
    front.server.set_keys(KeyRing.of([key_for()[1]]))
    with connected(front.port) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n" + b"x" * 1000)
        assert b" 401 " in read_to_end(client)
    assert front.server.body_bytes == 0


def test_a_key_opens_and_lists_only_its_models(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    front.serve(chat=[engine], code=[engine])
    text, key = key_for("code")
    front.server.set_keys(KeyRing.of([key]))
    assert front.ask({"model": "code"}, api_key=text)[0] == 200
    status, _, told = front.ask({"model": "chat"}, api_key=text)
    assert (status, told["error"]["code"], told["error"]["param"]) == (403, "model_not_allowed", "model")
    told = front.ask({"model": "chatt"}, api_key=text)[2]
    assert "similar" not in told["error"]["message"]
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    connection.request("GET", "/v1/models", headers={"x-api-key": text})
    assert [each["id"] for each in json.load(connection.getresponse())["data"]] == ["code"]
    connection.close()


# --- accounts -------------------------------------------------------------------------------------------------------


def metrics(front: Front) -> dict[str, float]:
    """All samples of the gateway, with their labels."""
    text = generate_latest(front.server.book.metrics.registry).decode()
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs if "_created" not in name}


def streaming(*events: bytes, broken: bool = False) -> Answer:
    def answer(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        if broken:
            connection.close()
        else:
            connection.sendall(b"0\r\n\r\n")

    return answer


def test_the_tokens_of_answers_are_counted_for_their_model(front: Front, make_engine: Make) -> None:
    body = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}'
    engines = [make_engine(says("200 OK", body, b"Content-Encoding: identity"))]
    front.serve(chat=engines)
    for _ in range(2):
        assert front.ask({"model": "chat"}, Accept_Encoding="gzip")[0] == 200
    assert front.ask({"model": "made-up-by-a-client"})[0] == 404
    seen = metrics(front)
    assert seen['herdsman_gateway_tokens_total{kind="prompt",model="prod/chat"}'] == 14
    assert seen['herdsman_gateway_tokens_total{kind="completion",model="prod/chat"}'] == 6
    assert seen['herdsman_gateway_requests_total{model="prod/chat",status="200"}'] == 2
    assert seen['herdsman_gateway_refused_requests_total{reason="model_not_found"}'] == 1
    assert seen['herdsman_gateway_first_byte_seconds_count{model="prod/chat"}'] == 2
    assert seen['herdsman_gateway_ejected_replicas{model="prod/chat"}'] == 0
    assert "made-up" not in str(seen)
    assert all(b"encoding" not in head.lower() for engine in engines for head, _ in engine.seen), "it could not be read"
    front.serve()
    until(lambda: "prod/chat" not in str(metrics(front)))


def test_a_stream_is_counted_without_the_client_noticing(front: Front, make_engine: Make) -> None:
    word = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
    engine = make_engine(streaming(word, usage, b"data: [DONE]\n\n"))
    front.serve(chat=[engine])

    def asked(**fields: Any) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
        connection.request("POST", CHAT, json.dumps({"model": "chat", "stream": True, **fields}))
        try:
            return connection.getresponse().read()
        finally:
            connection.close()

    assert asked() == word + b"data: [DONE]\n\n"
    assert asked(stream_options={"include_usage": True}) == word + usage + b"data: [DONE]\n\n"
    assert [json.loads(body)["stream_options"] for _, body in engine.seen] == [{"include_usage": True}] * 2
    until(lambda: metrics(front)['herdsman_gateway_tokens_total{kind="prompt",model="prod/chat"}'] == 14)


def test_an_answer_that_breaks_off_is_estimated(front: Front, make_engine: Make) -> None:
    words = [b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'] * 5
    front.serve(chat=[make_engine(streaming(*words, broken=True))])
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    connection.request("POST", CHAT, json.dumps({"model": "chat", "stream": True, "prompt": "x" * 40}))
    with pytest.raises(http.client.IncompleteRead):
        connection.getresponse().read()
    connection.close()
    until(lambda: metrics(front).get('herdsman_gateway_incomplete_answers_total{model="prod/chat"}') == 1)
    seen = metrics(front)
    assert seen['herdsman_gateway_tokens_total{kind="prompt",model="prod/chat"}'] == 10
    assert seen['herdsman_gateway_tokens_total{kind="completion",model="prod/chat"}'] == 5
    assert seen['herdsman_gateway_active_requests{model="prod/chat"}'] == 0


def test_limits_are_reported_and_enforced(make_engine: Make, tmp_path: Path) -> None:
    engine = make_engine(says("200 OK", b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}'))
    key_id, text = new_key()
    limits = KeyLimits(tokens_per_minute=10_000, budget_tokens=25).limits(key_id)
    key = Key(Caller(key_id, "ci", limits=limits), digest(text))
    store = SqliteStore(str(tmp_path / "gateway.db"))
    front = Front(GatewayServer(access=Access(required=True, ring=KeyRing.of([key])), store=store))
    try:
        front.serve(chat=[engine])
        asked = [front.ask({"model": "chat", "max_tokens": 5}, api_key=text) for _ in range(4)]
        # Each reserves 5 tokens, and is charged 10: the third begins at 20.
        assert [status for status, *_ in asked] == [200, 200, 200, 429]
        assert asked[0][1]["x-ratelimit-limit-tokens"] == "10000"
        assert asked[0][1]["x-ratelimit-remaining-tokens"] == "9995"
        assert asked[3][2]["error"]["code"] == "insufficient_quota"
        assert asked[3][1]["x-should-retry"] == "false"
        assert len(engine.seen) == 3
    finally:
        front.server.stop()
    assert sum(store.spent(f"key/{key_id}/budget/tokens").values()) == 30
