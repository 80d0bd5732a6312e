"""Traffic while the service runs: forwarded byte for byte, without delay, and never with a false success."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.raw_engine import (
    RawEngine,
    connected,
    echo,
    exchange,
    ok,
    read_head,
    read_request,
    read_response,
    read_to_end,
    requests,
)
from tests.unit.proxy.conftest import Front

Make = Callable[[Callable[[socket.socket], None]], RawEngine]
MakeFront = Callable[..., Front]

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sse(text: bytes) -> bytes:
    event = b"data: " + text + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


_fronts: dict[MakeFront, Front] = {}
"""One listener for all examples of a property."""
UNHURRIED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=40, deadline=None, suppress_health_check=UNHURRIED)
@given(
    st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5),
    st.lists(st.integers(0, 1500), max_size=8),
    st.booleans(),
)
def test_bodies_pass_unchanged_however_they_are_cut(
    engine: Make, front: MakeFront, proxy: object, parts: list[bytes], cuts: list[int], chunked: bool
) -> None:
    """In both directions: the engine returns the raw bytes of the request's body as the body of its response."""
    body = (
        b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n" if chunked else b"".join(parts)
    )
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    request = b"POST /x HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n" + body
    response = b"HTTP/1.1 200 OK\r\nX-Case: KeptRequest\r\n" + framing + b"\r\n\r\n" + body
    got: list[bytes] = []

    def script(connection: socket.socket) -> None:
        received = b""
        while len(received) < len(request):
            received += connection.recv(65536)
        got.append(received)
        send_cut(connection, response, cuts)

    behind = engine(script)
    before = _fronts.get(front) or _fronts.setdefault(front, front())
    before.lead(behind)
    with connected(before.port) as client:
        send_cut(client, request, cuts)
        answer = b""
        while len(answer) < len(response):
            more = client.recv(65536)
            assert more, answer
            answer += more
    behind.close()
    assert answer == response
    assert got == [request]


def each(connection: socket.socket, answer: bytes) -> None:
    """Send the same response to each request."""
    for _ in requests(connection):
        connection.sendall(answer)


def send_cut(connection: socket.socket, data: bytes, cuts: list[int]) -> None:
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(edges):
        connection.sendall(data[start:end])
        time.sleep(0.0005)


def test_connections_are_used_again_on_both_sides(engine: Make, front: MakeFront) -> None:
    behind, before = engine(echo), front()
    before.lead(behind)
    with connected(before.port) as client:
        for number in range(5):
            client.sendall(b"POST /%d HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi" % number)
            assert read_response(client)[1] == b"POST /%d HTTP/1.1|hi" % number
    assert behind.connections == 1


def test_pipelined_requests_are_answered_in_order(engine: Make, front: MakeFront) -> None:
    def script(connection: socket.socket) -> None:
        for number, (head, _) in enumerate(requests(connection)):
            time.sleep(0.05 if number == 0 else 0)
            connection.sendall(ok(head.split()[1]))

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.sendall(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % n for n in range(20)))
        data = b""
        while data.count(b"HTTP/1.1") < 20 or not data.endswith(b"/19"):
            data += client.recv(65536)
    assert [part.split(b"\r\n\r\n")[1] for part in data.split(b"HTTP/1.1")[1:]] == [b"/%d" % n for n in range(20)]


def test_each_event_of_a_stream_comes_when_it_was_sent(engine: Make, front: MakeFront) -> None:
    step = threading.Event()

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(CHUNKED + sse(b"one"))
        step.wait(5)
        connection.sendall(sse(b"two") + b"0\r\n\r\n")

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.sendall(GET)
        head, rest = read_head(client)
        while sse(b"one") not in rest:
            rest += client.recv(65536)
        step.set()
        while not rest.endswith(b"0\r\n\r\n"):
            rest += client.recv(65536)
    assert head == CHUNKED
    assert rest == sse(b"one") + sse(b"two") + b"0\r\n\r\n"


def test_a_head_without_a_body_ends_at_once(engine: Make, front: MakeFront) -> None:
    before = front()
    before.lead(engine(lambda c: each(c, ok(b"abc")[:-3])))
    with connected(before.port) as client:
        for _ in range(2):
            client.sendall(b"HEAD / HTTP/1.1\r\n\r\n")
            assert read_head(client)[0].startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n")


def test_continue_is_asked_of_the_engine(engine: Make, front: MakeFront) -> None:
    def script(connection: socket.socket) -> None:
        head, body = read_head(connection)
        assert b"Expect: 100-continue" in head and body == b""
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(ok(connection.recv(100)))

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert read_head(client)[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert read_response(client)[1] == b"body"


def test_a_body_without_a_length_lasts_until_the_engine_ends(engine: Make, front: MakeFront) -> None:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.sendall(GET)
        assert read_to_end(client).endswith(b"Connection: close\r\n\r\nall of it")


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart", CHUNKED + sse(b"part")])
def test_an_engine_that_dies_while_it_answers_leaves_an_incomplete_answer(
    engine: Make, front: MakeFront, begun: bytes
) -> None:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(begun)

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.sendall(GET)
        answer = read_to_end(client)
    assert answer == begun
    before.eventually(lambda state: state.in_flight == 0)


def test_an_unframed_answer_that_breaks_off_ends_with_an_error(engine: Make, front: MakeFront) -> None:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\npart")
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.sendall(GET)
        with pytest.raises(ConnectionResetError):
            read_to_end(client)


def test_an_engine_that_dies_before_it_answers_is_a_502(engine: Make, front: MakeFront) -> None:
    before = front()

    def script(connection: socket.socket) -> None:
        read_request(connection)

    before.lead(engine(script))
    head, body = exchange(before.port, b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
    assert head.startswith(b"HTTP/1.1 502 ")
    assert json.loads(body)["error"]["code"] == "upstream_failed"


def test_an_engine_that_is_not_there_is_a_503(engine: Make, front: MakeFront) -> None:
    behind, before = engine(echo), front()
    behind.close()
    before.lead(behind)
    head, body = exchange(before.port, GET)
    assert head.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5\r\n" in head
    assert json.loads(body)["error"]["code"] == "upstream_unreachable"


def closes_when_used_again(connection: socket.socket) -> None:
    """Respond once; then read the next request and return without a response, as a server whose idle timeout just
    ended.
    """
    read_request(connection)
    connection.sendall(ok(b"first"))
    read_request(connection)


def test_a_stale_connection_costs_a_get_nothing(engine: Make, front: MakeFront) -> None:
    behind, before = engine(closes_when_used_again), front()
    before.lead(behind)
    assert exchange(before.port, GET)[1] == b"first"
    assert exchange(before.port, GET)[1] == b"first"
    assert behind.connections == 2


def test_what_was_answered_in_part_is_not_sent_again(engine: Make, front: MakeFront) -> None:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(ok(b"first"))
        read_request(connection)
        connection.sendall(b"HTTP/1.1 20")

    behind, before = engine(script), front()
    before.lead(behind)
    assert exchange(before.port, GET)[1] == b"first"
    assert exchange(before.port, GET)[0].startswith(b"HTTP/1.1 502 ")
    assert behind.connections == 1


def test_a_post_is_never_sent_twice(engine: Make, front: MakeFront) -> None:
    behind, before = engine(closes_when_used_again), front()
    before.lead(behind)
    post = b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
    assert exchange(before.port, post)[1] == b"first"
    assert exchange(before.port, post)[0].startswith(b"HTTP/1.1 502 ")
    assert behind.connections == 1


def test_a_client_that_goes_ends_the_request_at_the_engine_at_once(engine: Make, front: MakeFront) -> None:
    ended: list[float] = []

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(CHUNKED + sse(b"one"))
        connection.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        ended.append(time.monotonic())

    before = front()
    before.lead(engine(script))
    client = connected(before.port)
    client.sendall(GET)
    read_head(client)
    gone = time.monotonic()
    client.close()
    before.eventually(lambda state: bool(ended) and state.in_flight == 0, within_s=30)
    assert ended[0] - gone < 20


def test_a_reader_that_is_slow_holds_up_the_engine_and_not_the_memory(engine: Make, front: MakeFront) -> None:
    sent = 0

    def script(connection: socket.socket) -> None:
        nonlocal sent
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while sent < 100_000_000:
            sent += connection.send(b"x" * 65536)

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.sendall(GET)
        read_head(client)
        stuck = -1
        while sent != stuck:
            stuck = sent
            time.sleep(0.5)
        assert stuck < 20_000_000  # what the kernel's buffers take


def test_the_next_answer_waits_until_the_last_one_was_read(engine: Make, front: MakeFront) -> None:
    served = 0

    def script(connection: socket.socket) -> None:
        nonlocal served
        for _ in requests(connection):
            served += 1
            connection.sendall(ok(b"x" * 1_000_000))

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.sendall(GET * 100)
        time.sleep(0.7)
        assert served < 20
        received = 0
        while received < 100 * 1_000_000:
            received += len(client.recv(1_000_000))
    assert served == 100


def test_an_early_answer_to_a_long_body_arrives(engine: Make, front: MakeFront) -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno!")
        time.sleep(0.2)

    before = front()
    before.lead(engine(script))
    with connected(before.port) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 1000)
        head, body = read_response(client)
        assert head.startswith(b"HTTP/1.1 413 ") and b"Connection: close\r\n" in head and body == b"no!"
        assert read_to_end(client) == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nBad header\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000, b"431"),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"501"),
    ],
)
def test_what_is_not_valid_is_refused_and_ends_the_connection(
    engine: Make, front: MakeFront, request_: bytes, status: bytes
) -> None:
    before = front()
    before.lead(engine(echo))
    with connected(before.port) as client:
        client.sendall(request_)
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert before.state().in_flight == 0


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"])
def test_an_engine_that_speaks_no_http_is_a_502(engine: Make, front: MakeFront, said: bytes) -> None:
    before = front()

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(said)
        time.sleep(1)

    before.lead(engine(script))
    assert exchange(before.port, GET)[0].startswith(b"HTTP/1.1 502 ")


def test_requests_go_to_all_engines_in_turn(engine: Make, front: MakeFront) -> None:
    one, two = (
        engine(lambda c: each(c, ok(b"1"))),
        engine(lambda c: each(c, ok(b"2"))),
    )
    before = front(pooled_s=0.0, max_pooled=0)
    before.lead(one, two)
    assert {exchange(before.port, GET)[1] for _ in range(4)} == {b"1", b"2"}


def test_a_connection_that_says_nothing_is_closed(
    engine: Make, front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.proxy.server.SWEEP_S", 0.1)
    before = front(client_idle_s=3.0)
    before.lead(engine(echo))
    with connected(before.port) as client:
        before.eventually(lambda state: state.connections == 1)
        client.sendall(b"GET / HT")
        before.eventually(lambda state: state.connections == 0, within_s=30)


def test_too_many_connections_are_told_so(engine: Make, front: MakeFront) -> None:
    before = front(max_connections=1)
    before.lead(engine(echo))
    with connected(before.port) as first:
        first.sendall(GET)
        read_response(first)
        with connected(before.port) as second:
            assert read_to_end(second).startswith(b"HTTP/1.1 503 ")


_PIECES = st.sampled_from(
    [
        *(b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n"),
        *(
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n",
            b"Expect: 100-continue\r\n",
        ),
        *(
            b"\r\n",
            b"\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
            b"hello",
            b"\x00",
            b"x" * 5000,
            b": ",
            b"HEAD / HTTP/1.0\r\n",
        ),
    ]
)
_NONSENSE = st.lists(_PIECES | st.binary(max_size=30), max_size=12).map(b"".join)


@settings(max_examples=60, deadline=None, suppress_health_check=UNHURRIED)
@given(_NONSENSE, _NONSENSE, st.booleans())
def test_nonsense_on_either_side_harms_nobody_else(
    engine: Make, front: MakeFront, proxy: object, asked: bytes, said: bytes, hangs_up: bool
) -> None:
    def script(connection: socket.socket) -> None:
        if b"sane" in connection.recv(65536):
            connection.sendall(ok(b"sane"))
        else:
            connection.sendall(said)
        time.sleep(0.005)

    behind = engine(script)
    before = _fronts.get(front) or _fronts.setdefault(front, front())
    before.lead(behind)
    with connected(before.port) as client, contextlib.suppress(OSError):
        client.sendall(asked)
        if not hangs_up:
            client.settimeout(0.02)
            client.recv(65536)
    before.eventually(lambda state: state.in_flight == 0 and state.connections == 0)
    assert exchange(before.port, b"GET /sane HTTP/1.1\r\n\r\n")[1] == b"sane"
    behind.close()
