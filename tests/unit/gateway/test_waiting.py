"""Requests that wait for a service that sleeps or starts, and what the gateway reports of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import generate_latest

from gateway.engines.backends import AdapterRoute, Route
from gateway.engines.waiting import Holding
from gateway.names import Model, ServiceName
from program.desired.request_report import Counts
from tests.support.gateways import OK, Answer, Engine, Front, says
from tests.support.raw_engine import connected, read_head

Make = Callable[[Answer], Engine]
CHAT = ServiceName("prod", "chat")
KEY = "llmkube/prod/chat"
REQUEST = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "chat"}'


def route(*engines: Engine, **holding: Any) -> Route:
    """A service that requests wait for."""
    targets = tuple(engine.target for engine in engines)
    return Route(Model(CHAT, state="asleep"), targets, prefix_hash=False, holding=Holding(**holding))


def counts(front: Front) -> Counts:
    return (front.server.reported_requests() or {}).get(KEY, Counts())


def until(front: Front, **wanted: int) -> None:
    """Wait until the gateway counts these requests."""
    deadline = time.monotonic() + 30
    while any(getattr(counts(front), name) != number for name, number in wanted.items()):
        assert time.monotonic() < deadline, counts(front)
        time.sleep(0.01)


def error_of(told: tuple[int, dict[str, str], Any]) -> tuple[int, str, bool]:
    status, headers, body = told
    return status, body["error"]["code"], "retry-after" in headers


def test_requests_wait_and_go_to_the_replica_in_the_order_of_their_arrival(front: Front, make_engine: Make) -> None:
    engine, begins = make_engine(OK), threading.Event()
    front.server.backends.on_waits = begins.set
    front.serve_routes(route())
    with ThreadPoolExecutor(3) as pool:
        asked = []
        for number in range(3):
            asked.append(pool.submit(front.ask, {"model": "chat", "n": number}))
            until(front, held=number + 1)
        assert begins.is_set()
        assert counts(front) == Counts(active=0, held=3, total=3)
        metrics = generate_latest(front.server.book.metrics.registry).decode()
        assert 'herdsman_gateway_waiting_requests{model="prod/chat"} 3.0' in metrics
        front.serve_routes(route(engine))
        assert [each.result()[0] for each in asked] == [200, 200, 200]
    assert sorted(json.loads(body)["n"] for _, body in engine.seen) == [0, 1, 2]
    until(front, held=0, active=0, total=3)


def test_a_busy_model_is_served_while_requests_wait_for_another_one(front: Front, make_engine: Make) -> None:
    busy, woken = make_engine(OK), make_engine(OK)
    hot = Route(Model(ServiceName("prod", "hot")), (busy.target,), prefix_hash=False)
    front.serve_routes(route(), hot)
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(front.ask, {"model": "chat"}) for _ in range(8)]
        until(front, held=8)
        answered = list(pool.map(lambda _: front.ask({"model": "hot"})[0], range(100)))
        assert answered == [200] * 100
        until(front, held=8)
        front.serve_routes(route(woken), hot)
        assert [each.result()[0] for each in waiting] == [200] * 8
    assert (len(busy.seen), len(woken.seen)) == (100, 8)


def test_a_service_that_does_not_wake_refuses_at_once(front: Front) -> None:
    front.serve(chat=[])
    assert error_of(front.ask({"model": "chat"})) == (503, "no_replica", True)
    assert front.server.reported_requests() == {}


def test_a_request_that_waited_too_long_gets_the_reason(front: Front) -> None:
    front.serve_routes(route(wake_timeout_s=0.2, why="ModelDownloading: pod chat-0 fetches the model"))
    told = front.ask({"model": "chat"})
    assert error_of(told) == (503, "wake_timeout", True)
    assert told[2]["error"]["message"] == (
        "`prod/chat` did not start within 0.2 s: ModelDownloading: pod chat-0 fetches the model"
    )
    assert counts(front) == Counts(0, 0, 1)


def test_no_more_requests_wait_than_the_service_allows(front: Front) -> None:
    front.serve_routes(route(max_held=1))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(front.ask, {"model": "chat"})
        until(front, held=1)
        assert error_of(front.ask({"model": "chat"})) == (503, "too_many_held_requests", True)
        front.serve()
        assert error_of(first.result()) == (503, "no_replica", True)


def test_a_start_that_fails_answers_all_and_a_new_sleep_lets_requests_wait_again(front: Front) -> None:
    front.serve_routes(route())
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(front.ask, {"model": "chat"})
        until(front, held=1)
        front.serve_routes(route(failure="ImagePullFailed: no such image"))
        told = waits.result()
        assert error_of(told) == (503, "start_failed", True)
        assert "ImagePullFailed: no such image" in told[2]["error"]["message"]
        assert error_of(front.ask({"model": "chat"}))[1] == "start_failed"
        front.serve_routes(route())
        again = pool.submit(front.ask, {"model": "chat"})
        until(front, held=1)
        front.serve()
        again.result()


def test_a_client_that_leaves_frees_its_place(front: Front) -> None:
    front.serve_routes(route())
    with connected(front.port) as client:
        client.sendall(REQUEST)
        until(front, held=1)
    until(front, held=0, active=0)


def test_a_request_counts_until_its_answer_ends(front: Front, make_engine: Make) -> None:
    ends = threading.Event()

    def slowly(connection: Any, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{")
        ends.wait(30)
        connection.sendall(b"}")

    front.serve_routes(route(make_engine(slowly)))
    with connected(front.port) as client:
        client.sendall(REQUEST)
        read_head(client)
        assert counts(front) == Counts(1, 0, 1)
        ends.set()
        until(front, active=0, total=1)


@pytest.mark.parametrize("answer", ["closes", "breaks off"])
def test_a_request_that_fails_counts_no_longer(front: Front, make_engine: Make, answer: str) -> None:
    def fails(connection: Any, _head: bytes, _body: bytes) -> None:
        if answer == "breaks off":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        connection.close()

    front.serve_routes(route(make_engine(fails)))
    with connected(front.port) as client:
        client.sendall(REQUEST)
        read_head(client)
        until(front, active=0, total=1)


def test_a_request_for_an_adapter_that_the_engine_lost_counts_no_longer(front: Front, make_engine: Make) -> None:
    engine = make_engine(says("404 Not Found", b"{}"))
    adapters = {"sql": AdapterRoute(frozenset({engine.target}), "sql")}
    model = Model(CHAT, adapters=("sql",))
    front.serve_routes(Route(model, (engine.target,), prefix_hash=False, holding=Holding(), adapters=adapters))
    assert error_of(front.ask({"model": "chat:sql"})) == (503, "adapter_not_loaded", True)
    until(front, active=0, total=1)


def test_questions_about_the_models_wake_nothing(front: Front) -> None:
    front.serve_routes(route())
    assert front.get("/v1/models")[0] == 200
    assert front.get("/v1/models/chat")[0] == 200
    assert counts(front) == Counts()
