"""Requests while the service sleeps: they wait for a limited time, and the service is woken once."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from agent.proxy.answers import ErrorCode
from agent.proxy.server import Proxy
from tests.support.raw_engine import (
    RawEngine,
    connected,
    echo,
    exchange,
    ok,
    read_request,
    read_response,
    read_to_end,
    requests,
)
from tests.unit.proxy.conftest import NAME, Front

Make = Callable[[Callable[[socket.socket], None]], RawEngine]
MakeFront = Callable[..., Front]


def post(text: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def test_a_request_waits_and_is_answered_once_the_service_runs(engine: Make, front: MakeFront) -> None:
    before = front()
    with connected(before.port) as client:
        client.sendall(post(b"hello")[:-2])
        assert before.said.get(timeout=5) == f"wake {NAME}"
        client.sendall(b"lo")
        before.eventually(lambda state: state.held == 1)
        before.lead(engine(echo))
        assert read_response(client)[1] == b"POST / HTTP/1.1|hello"
    counts = before.state().counts
    assert (counts.wakes, counts.requests, counts.refused) == (1, 1, {})
    assert sum(counts.wake_buckets) == 1
    assert before.said.empty()


def test_waiting_requests_go_on_in_the_order_in_which_they_came(engine: Make, front: MakeFront) -> None:
    order: list[bytes] = []

    def script(connection: socket.socket) -> None:
        for _, body in requests(connection):
            order.append(body)
            connection.sendall(ok(body))

    before = front()
    clients = []
    for number in range(5):
        clients.append(connected(before.port))
        clients[-1].sendall(post(b"%d" % number))
        before.eventually(lambda state, n=number: state.held == n + 1)
    before.lead(engine(script))
    assert [read_response(client)[1] for client in clients] == [b"0", b"1", b"2", b"3", b"4"]
    for client in clients:
        client.close()
    assert len(order) == 5


def test_a_herd_wakes_the_service_once_and_only_so_many_wait(engine: Make, front: MakeFront) -> None:
    before = front(max_held=50)
    answers: Counter[bytes] = Counter()
    lock = threading.Lock()

    def ask() -> None:
        head, body = exchange(before.port, post(b"hi"))
        if b" 503 " in head:
            assert b"Retry-After: 5\r\n" in head and code_of(body) == ErrorCode.TOO_MANY_HELD
        with lock:
            answers[head[9:12]] += 1

    herd = [threading.Thread(target=ask) for _ in range(200)]
    for each in herd:
        each.start()
    before.eventually(lambda state: state.counts.refused.get(ErrorCode.TOO_MANY_HELD) == 150)
    assert before.state().held == 50
    before.lead(engine(echo))
    for each in herd:
        each.join(10)
    assert answers == {b"200": 50, b"503": 150}
    assert before.said.qsize() == 1


def test_a_wake_that_takes_too_long_is_a_503(front: MakeFront) -> None:
    before = front(wake_timeout_s=0.3)
    with connected(before.port) as client:
        for _ in range(2):
            asked = time.monotonic()
            client.sendall(post(b"hi"))
            head, body = read_response(client)
            assert time.monotonic() - asked > 0.25
            assert head.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5\r\n" in head
            assert code_of(body) == ErrorCode.WAKE_TIMEOUT
    assert before.said.qsize() == 1  # the first wake is still under way for the second request
    assert before.state().held == 0


def test_a_start_that_failed_is_told_to_all_who_wait_and_to_who_comes(front: MakeFront) -> None:
    before = front()
    with connected(before.port) as client:
        client.sendall(post(b"hi"))
        before.said.get(timeout=5)
        before.proxy.set_failed(NAME, "CrashLoop: exit code 1")
        head, body = read_response(client)
        assert head.startswith(b"HTTP/1.1 503 ") and b"CrashLoop" in body and code_of(body) == ErrorCode.START_FAILED
    assert code_of(exchange(before.port, post(b"hi"))[1]) == ErrorCode.START_FAILED


def test_a_client_that_goes_gives_its_place_back(engine: Make, front: MakeFront) -> None:
    before = front(max_held=1)
    gone = connected(before.port)
    gone.sendall(post(b"first"))
    before.eventually(lambda state: state.held == 1)
    gone.close()
    before.eventually(lambda state: state.held == 0 and state.in_flight == 0)
    with connected(before.port) as client:
        client.sendall(post(b"second"))
        before.eventually(lambda state: state.held == 1)
        before.lead(engine(echo))
        assert read_response(client)[1].endswith(b"second")


def test_a_body_that_is_too_long_to_keep_is_a_413_and_goes_through_while_the_service_runs(
    engine: Make, front: MakeFront
) -> None:
    before = front(held_body=100_000)
    long = post(b"x" * 500_000)
    with connected(before.port) as client:
        client.sendall(long)
        head, body = read_response(client)
        assert head.startswith(b"HTTP/1.1 413 ") and code_of(body) == ErrorCode.BODY_TOO_LARGE
        assert read_to_end(client) == b""
    before.eventually(lambda state: state.held == 0)
    before.lead(engine(echo))
    assert exchange(before.port, long)[1].endswith(b"x" * 500_000)


def test_all_that_is_kept_has_a_bound(front: MakeFront) -> None:
    before = front(held_bytes=100_000)
    with connected(before.port) as one, connected(before.port) as two:
        one.sendall(post(b"x" * 80_000))
        before.eventually(lambda state: state.held == 1)
        two.sendall(post(b"x" * 80_000))
        assert code_of(read_response(two)[1]) == ErrorCode.TOO_MANY_HELD
        assert before.state().held == 1


def test_a_service_that_is_idle_goes_to_sleep_and_the_next_request_wakes_it(engine: Make, front: MakeFront) -> None:
    behind, before = engine(echo), front(idle_timeout_s=3.0)
    before.lead(behind)
    for _ in range(8):  # together longer than the idle time
        time.sleep(0.4)
        exchange(before.port, post(b"busy"))
        assert before.said.empty()
    assert before.said.get(timeout=30) == f"idle {NAME}"
    with connected(before.port) as client:
        client.sendall(post(b"again"))
        assert before.said.get(timeout=30) == f"wake {NAME}"
        before.lead(behind)
        assert read_response(client)[1].endswith(b"again")
    assert before.state().counts.sleeps == 1


def test_a_long_silent_answer_is_no_idle_time(engine: Make, front: MakeFront) -> None:
    quiet: list[bool] = []

    def script(connection: socket.socket) -> None:
        read_request(connection)
        time.sleep(3.0)
        quiet.append(before.said.empty())
        connection.sendall(ok(b"thought"))

    before = front(idle_timeout_s=2.0)
    before.lead(engine(script))
    assert exchange(before.port, post(b"think"))[1] == b"thought"
    assert quiet == [True]
    assert before.said.get(timeout=30) == f"idle {NAME}"


def test_requests_of_a_service_that_starts_anyway_wake_nobody(engine: Make, front: MakeFront) -> None:
    before = front()
    before.proxy.set_starting(NAME)
    with connected(before.port) as client:
        client.sendall(post(b"early"))
        before.eventually(lambda state: state.held == 1)
        before.lead(engine(echo))
        assert read_response(client)[1].endswith(b"early")
    assert before.said.empty()


def test_who_was_led_here_in_the_meantime_is_sent_away_after_the_answer(engine: Make, front: MakeFront) -> None:
    before = front()
    before.lead(engine(echo))
    with connected(before.port) as idle, connected(before.port) as client:
        before.eventually(lambda state: state.connections == 2)
        client.sendall(post(b"one")[:-1])
        before.eventually(lambda state: state.in_flight == 1)
        before.proxy.close_after_answers(NAME)
        assert read_to_end(idle) == b""
        client.sendall(b"e")
        assert b"Connection: close\r\n" in read_response(client)[0]
        assert read_to_end(client) == b""


def test_a_listener_that_is_closed_answers_those_who_wait(front: MakeFront) -> None:
    before = front()
    with connected(before.port) as client:
        client.sendall(post(b"hi"))
        before.said.get(timeout=5)
        before.proxy.close(NAME)
        assert code_of(read_response(client)[1]) == ErrorCode.SHUTTING_DOWN
    with pytest.raises(ConnectionRefusedError):
        connected(before.port)


def test_a_proxy_that_was_killed_comes_back_on_its_port(engine: Make, front: MakeFront) -> None:
    """A waiting client gets an error of code SHUTTING_DOWN; the next proxy serves on the same port."""
    before = front()
    with connected(before.port) as client:
        client.sendall(post(b"hi"))
        before.said.get(timeout=5)
        before.proxy.stop()
        assert code_of(read_response(client)[1]) == ErrorCode.SHUTTING_DOWN
    from agent.proxy.limits import Limits
    from agent.proxy.service import Callbacks

    after = Proxy()
    after.start()
    try:
        assert after.open(NAME, "127.0.0.1", before.port, Limits(), Callbacks(wake=lambda _name: None)) == before.port
        after.set_targets(NAME, (engine(echo).target,))
        assert exchange(before.port, post(b"hi"))[1].endswith(b"hi")
    finally:
        after.stop()


def test_a_name_is_listened_for_once(front: MakeFront, proxy: Proxy) -> None:
    front()
    with pytest.raises(ValueError, match="has a listener already"):
        front()
