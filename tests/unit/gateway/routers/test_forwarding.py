"""A gateway with routers: real sockets between client, gateway and engines."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.engines.backends import Route
from gateway.engines.waiting import Holding
from gateway.names import Model, ServiceName
from gateway.routers.runtime import RouterState
from program.desired.request_report import Counts
from program.desired.router import Classification, Match, Router, RouterBackend, Rule
from tests.support.gateways import CHAT, OK, Answer, Engine, Front, says
from tests.support.loop import eventually

AT_ROUTER = f"/routers/prod/r{CHAT}"
A, B = RouterBackend("a", "a"), RouterBackend("b", "b")
Make = Callable[..., Engine]


def answers(name: str) -> Answer:
    return says("200 OK", json.dumps({"from": name}).encode())


def route(front: Front, *rules: Rule, **fields: Any) -> RouterState:
    made = {"backends": (A, B), "rules": rules, "namespace": "prod", "name": "r"} | fields
    state = RouterState(Router(**made))
    front.server.set_routers([state])
    eventually(lambda: front.server.backends.routers.states() == (state,), what="the router")
    return state


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "r", "messages": [{"role": "user", "content": "Hi"}]} | fields


def test_a_request_goes_to_the_backend_of_its_rule_with_the_name_that_the_engine_expects(
    front: Front, make_engine: Make
) -> None:
    a, b = make_engine(answers("a")), make_engine(answers("b"))
    front.serve(a=[a], b=[b])
    route(front, Rule("code", ("b",), Match(models=("code-*",))), default="a")
    assert front.ask(body(model="code-x"), AT_ROUTER)[::2] == (200, {"from": "b"})
    assert front.ask(body(), AT_ROUTER)[::2] == (200, {"from": "a"})
    [(_, sent)] = b.seen
    assert json.loads(sent)["model"] == "b"


@pytest.mark.parametrize("failure", ["503 Service Unavailable", "500 Internal Server Error", "429 Too Many Requests"])
def test_the_next_backend_answers_after_a_failure_and_the_first_comes_last_for_some_time(
    front: Front, make_engine: Make, failure: str
) -> None:
    a, b = make_engine(says(failure, b"{}")), make_engine(answers("b"))
    front.serve(a=[a], b=[b])
    # Long enough for two requests on a loaded machine.
    route(front, Rule("all", ("a", "b")), quarantine_s=3.0)
    assert front.ask(body(), AT_ROUTER)[2] == {"from": "b"}
    assert front.ask(body(), AT_ROUTER)[2] == {"from": "b"}
    assert len(a.seen) == 1
    a.answer = answers("a")
    eventually(lambda: front.ask(body(), AT_ROUTER)[2] == {"from": "a"}, what="the trial after the quarantine")


def test_an_error_of_the_client_is_not_repeated_at_another_backend(front: Front, make_engine: Make) -> None:
    a, b = make_engine(says("400 Bad Request", b'{"error": 1}')), make_engine(answers("b"))
    front.serve(a=[a], b=[b])
    route(front, Rule("all", ("a", "b")))
    assert front.ask(body(), AT_ROUTER)[::2] == (400, {"error": 1})
    assert not b.seen


def test_a_missing_service_fails_over_and_a_request_without_any_backend_says_why(
    front: Front, make_engine: Make
) -> None:
    front.serve(b=[make_engine(answers("b"))])
    route(front, Rule("all", ("a", "b")))
    assert front.ask(body(), AT_ROUTER)[2] == {"from": "b"}
    front.serve()
    eventually(lambda: not front.server.backends.names.listed, what="the services to go")
    status, headers, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "all_backends_failed")
    assert "`a`" in answer["error"]["message"]
    assert "retry-after" in headers


def test_a_timeout_counts_until_the_head_of_an_answer_and_never_cuts_a_stream(front: Front, make_engine: Make) -> None:
    def hangs(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.settimeout(10)
        connection.recv(1)

    def streams(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (b'{"from"', b': "b"}'):
            connection.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            time.sleep(1.6)
        connection.sendall(b"0\r\n\r\n")

    a, b = make_engine(hangs), make_engine(streams)
    front.serve(a=[a], b=[b])
    route(front, Rule("all", ("a", "b")), backends=(replace(A, timeout_s=0.2), replace(B, timeout_s=3.0)))
    assert front.ask(body(), AT_ROUTER)[::2] == (200, {"from": "b"})
    assert a.seen


def sleeps(front: Front, *running: Engine) -> None:
    """Serve backend `a`, which requests wait for, and `b` with these replicas."""
    b = Route(Model(ServiceName("prod", "b")), tuple(each.target for each in running), prefix_hash=False)
    front.serve_routes(Route(Model(ServiceName("prod", "a")), holding=Holding(wake_timeout_s=1.0)), b)


def test_a_backend_that_sleeps_too_long_is_healthy_and_the_next_one_answers(front: Front, make_engine: Make) -> None:
    sleeps(front, make_engine(answers("b")))
    state = route(front, Rule("all", ("a", "b")), backends=(replace(A, timeout_s=0.1), B))
    assert front.ask(body(), AT_ROUTER)[::2] == (200, {"from": "b"})
    assert state.health("a").usable


def test_a_request_waits_for_the_last_backend_beyond_the_timeout_for_answers(front: Front) -> None:
    sleeps(front)
    route(front, Rule("all", ("a",), timeout_s=0.1))
    status, _, answer = front.ask(body(), AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "wake_timeout")
    assert "within 1 s" in answer["error"]["message"]


def test_copies_of_requests_neither_wake_a_service_nor_keep_it_awake(front: Front, make_engine: Make) -> None:
    sleeps(front, make_engine(answers("b")))
    route(front, Rule("all", ("b", "a"), strategy="shadow"))
    assert front.ask(body(), AT_ROUTER)[::2] == (200, {"from": "b"})
    assert (front.server.reported_requests() or {})["llmkube/prod/a"] == Counts()


def test_an_answer_that_becomes_invalid_is_not_asked_for_again(front: Front, make_engine: Make) -> None:
    passed = threading.Event()

    def becomes_invalid(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")
        passed.wait(10)
        connection.sendall(b"abXX")

    a, b = make_engine(becomes_invalid), make_engine(answers("b"))
    front.serve(a=[a], b=[b])
    route(front, Rule("all", ("a", "b")))
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    client.request("POST", AT_ROUTER, json.dumps(body()))
    answer = client.getresponse()
    assert answer.read(3) == b"abc"
    passed.set()
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    client.close()
    assert not b.seen


def test_copies_reach_the_shadow_and_their_answers_nobody(front: Front, make_engine: Make) -> None:
    a, b = make_engine(answers("a")), make_engine(answers("b"))
    front.serve(a=[a], b=[b])
    state = route(front, Rule("all", ("a", "b"), strategy="shadow"))
    for _ in range(3):
        assert front.ask(body(), AT_ROUTER)[2] == {"from": "a"}
    eventually(lambda: len(b.seen) == 3 and state.copies.number == 0, what="the copies to end")
    assert json.loads(b.seen[0][1])["model"] == "b"


def test_a_client_that_leaves_ends_the_copies_too(front: Front, make_engine: Make) -> None:
    def hangs(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.settimeout(10)
        if not connection.recv(1):
            left.append(connection)

    left: list[socket.socket] = []
    a, b = make_engine(hangs), make_engine(hangs)
    front.serve(a=[a], b=[b])
    state = route(front, Rule("all", ("a", "b"), strategy="shadow"))
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    client.request("POST", AT_ROUTER, json.dumps(body()))
    eventually(lambda: a.seen and b.seen, what="both requests")
    routers = front.server.backends.routers
    assert routers.copied_bytes > 0
    old, state = state, route(front, Rule("all", ("a", "b"), strategy="shadow"))
    assert old is not state
    assert state.copies.number == 1, "a change of a router keeps the count"
    client.close()
    eventually(lambda: len(left) == 2 and state.copies.number == 0, what="both engines to see the end")
    assert routers.copied_bytes == 0


def test_no_copies_are_made_beyond_the_bound_of_their_bytes(
    front: Front, make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.routers.forwarding.COPIED_MAX", 1000)
    a, b = make_engine(answers("a")), make_engine(answers("b"))
    front.serve(a=[a], b=[b])
    route(front, Rule("all", ("a", "b"), strategy="shadow"))
    assert front.ask(body(user="x" * 1000), AT_ROUTER)[2] == {"from": "a"}
    assert front.ask(body(), AT_ROUTER)[2] == {"from": "a"}
    eventually(lambda: len(b.seen) == 1, what="the copy of the short request")


def test_sensitive_requests_stay_local_and_are_refused_without_a_rule(front: Front, make_engine: Make) -> None:
    a = make_engine(answers("a"))
    front.serve(a=[a], b=[a])
    route(front, Rule("pii", ("a",), Match(classes=frozenset({"pii"})), fail_closed=True), default="b")
    named = {"x_llmkube_classification": "PII"}
    assert front.ask(body(), AT_ROUTER, **named)[0] == 200
    status, _, answer = front.ask(body(), AT_ROUTER, x_llmkube_classification="phi")
    assert (status, answer["error"]["code"]) == (403, "sensitive_data_refused")
    route(front, default="b", classification=Classification("detector"))
    assert front.ask(body(messages=[{"content": "jane@example.org"}]), AT_ROUTER)[0] == 403
    assert front.ask(body(), AT_ROUTER)[0] == 200


def test_names_of_routers_at_the_gateways_own_address(front: Front, make_engine: Make) -> None:
    a, b = make_engine(answers("a")), make_engine(answers("b"))
    front.serve(a=[a], b=[b])
    shown = (RouterBackend("x", "a", display_name="best"), RouterBackend("y", "b", display_name="b"))
    route(front, Rule("exact", ("y",), Match(models=("gpt-4o", "o*"))), backends=shown, default="x", by_name=True)
    status, listed = front.get("/v1/models")
    assert status == 200
    assert {"a", "b", "best", "gpt-4o", "r", "prod/r"} <= {each["id"] for each in listed["data"]}
    for name, answer in (("best", "a"), ("gpt-4o", "b"), ("r", "a"), ("prod/r", "a")):
        assert front.ask(body(model=name))[2] == {"from": answer}, name
    assert front.ask(body(model="b"))[2] == {"from": "b"}, "a service's own name is never a router's"
    assert front.ask(body(model="x"))[2]["error"]["code"] == "model_not_found"
    status, own = front.get("/routers/prod/r/v1/models")
    assert [each["id"] for each in own["data"]] == ["best", "b", "gpt-4o", "r"]
    assert front.get("/routers/prod/r/v1/models/best")[0] == 200
    assert front.get("/routers/prod/none/v1/models")[0] == 404


def test_a_name_of_two_routers_is_refused(front: Front, make_engine: Make) -> None:
    front.serve(a=[make_engine(OK)])
    rule = Rule("exact", ("a",), Match(models=("gpt-4o",)))
    states = [RouterState(Router(namespace, "r", (A,), (rule,))) for namespace in ("one", "two")]
    front.server.set_routers(states)
    eventually(lambda: len(front.server.backends.routers.states()) == 2, what="the routers")
    answer = front.ask(body(model="gpt-4o"))[2]
    assert answer["error"]["code"] == "model_ambiguous"
    assert "one/r or two/r" in answer["error"]["message"]


def test_the_path_of_a_router_is_its_own(front: Front, make_engine: Make) -> None:
    engine = make_engine(OK)
    front.serve(a=[engine], b=[engine])
    route(front, default="a", chat_path="/chat")
    assert front.ask(body(), "/routers/prod/r/chat")[0] == 200
    assert engine.seen[0][0].startswith(b"POST /v1/chat/completions HTTP/1.1")
    assert front.ask(body(), "/routers/prod/r/other")[0] == 404
    assert front.ask(b"{", "/routers/prod/r/chat")[0] == 400


def test_no_router_takes_a_request_while_the_services_are_not_known(front: Front) -> None:
    route(front, default="a")
    status, headers, answer = front.ask(body())
    assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "starting", "1")
