"""Replicas with different keys during a rotation: the gateway sends each the one that it demands."""

from __future__ import annotations

import socket
from collections.abc import Callable

from gateway.engines.backends import Route
from gateway.engines.questions import models_of
from gateway.names import Model, ServiceName
from program.dialects.engine_access import EngineAccess
from tests.support.gateways import OK, Answer, Engine, Front, says

Make = Callable[..., Engine]
REFUSED = says("401 Unauthorized", b"{}")


def demanding(key: str, answer: Answer = OK) -> Answer:
    def choose(connection: socket.socket, head: bytes, body: bytes) -> None:
        (answer if f"Authorization: Bearer {key}\r\n".encode() in head else REFUSED)(connection, head, body)

    return choose


def route(*engines: Engine, keys: tuple[str, ...], told: list[str] | None = None) -> Route:
    refused = None if told is None else lambda: told.append("refused")
    targets = tuple(each.target for each in engines)
    access = EngineAccess(keys=keys)
    return Route(Model(ServiceName("prod", "chat")), targets, prefix_hash=False, access=access, on_refused=refused)


def test_a_replica_with_the_old_key_answers_and_its_key_is_remembered(front: Front, make_engine: Make) -> None:
    old = make_engine(demanding("k1"))
    told: list[str] = []
    front.serve_routes(route(old, keys=("k2", "k1"), told=told))
    assert [front.ask({"model": "chat"})[0] for _ in range(3)] == [200] * 3
    assert len(old.seen) == 4, "the new key was refused once, and not tried again"
    assert not told
    old.answer = demanding("k2")  # it was replaced, at the same address
    assert [front.ask({"model": "chat"})[0] for _ in range(2)] == [200] * 2
    front.serve_routes(route(old, keys=("k2",)))
    assert front.ask({"model": "chat"})[0] == 200
    assert len(old.seen) == 8


def test_no_request_fails_while_replicas_are_replaced_one_by_one(front: Front, make_engine: Make) -> None:
    engines = [make_engine(demanding("k1")) for _ in range(3)]
    keys: tuple[str, ...] = ("k1",)
    statuses = []
    for step in range(4):
        front.serve_routes(route(*engines, keys=keys))
        statuses += [front.ask({"model": "chat"})[0] for _ in range(6)]
        keys = ("k2", "k1")
        for each in engines[:step]:
            each.answer = demanding("k2")
    assert statuses == [200] * 24


def test_a_replica_whose_key_is_not_known_yet_leaves_the_request_to_another(front: Front, make_engine: Make) -> None:
    new, old = make_engine(demanding("k2")), make_engine(demanding("k1"))
    told: list[str] = []
    front.serve_routes(route(new, old, keys=("k1",), told=told))
    assert {front.ask({"model": "chat"})[0] for _ in range(6)} == {200}
    assert told, "the keys are read again"


def test_only_a_replica_that_refuses_all_keys_is_an_error(front: Front, make_engine: Make) -> None:
    engine = make_engine(demanding("k3"))
    told: list[str] = []
    front.serve_routes(route(engine, keys=("k2", "k1"), told=told))
    status, _, answer = front.ask({"model": "chat"})
    assert (status, answer["error"]["code"], told) == (502, "engine_refused_key", ["refused"])
    assert len(engine.seen) == 2


def test_a_client_never_chooses_the_key(front: Front, make_engine: Make) -> None:
    engine = make_engine(demanding("k1"))
    front.serve_routes(route(engine, keys=("k2", "k1")))
    assert front.ask({"model": "chat"}, Authorization="Bearer k3")[0] == 200
    assert all(b"k3" not in head for head, _ in engine.seen)


def test_the_models_of_an_engine_with_the_old_key_are_read(make_engine: Make) -> None:
    engine = make_engine(demanding("k1", says("200 OK", b'{"data": [{"id": "org/chat"}]}')))
    said = models_of(engine.target, EngineAccess(keys=("k2", "k1")), tls=False)
    assert said is not None
    assert said.names == ("org/chat",)
