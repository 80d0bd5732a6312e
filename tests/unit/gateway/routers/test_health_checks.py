"""A backend whose health path fails comes last, and first again when it answers."""

from __future__ import annotations

import socket
from collections.abc import Callable

from gateway.engines.backends import Route
from gateway.engines.waiting import Holding
from gateway.names import Model, ServiceName
from gateway.routers.runtime import RouterState
from program.desired.router import HealthCheck, Router, RouterBackend, Rule
from tests.support.gateways import Engine, Front, says
from tests.support.loop import eventually

CHECK = HealthCheck("/healthy?deep=1", interval_s=0.1, timeout_s=10)
Make = Callable[..., Engine]


def test_a_backend_that_fails_its_check_comes_last(front: Front, make_engine: Make) -> None:
    healthy = [True]

    def answer(connection: socket.socket, head: bytes, body: bytes) -> None:
        assert head.startswith(b"GET /healthy?deep=1 HTTP/1.1")
        says("200 OK" if healthy[0] else "503 Service Unavailable", b"{}")(connection, head, body)

    checked, other = make_engine(answer), make_engine(answer)
    front.serve(a=[checked], b=[other])
    router = Router(
        "prod",
        "r",
        (RouterBackend("a", "a", health_check=CHECK), RouterBackend("b", "b")),
        (Rule("all", ("a", "b")),),
    )
    state = RouterState(router)
    front.server.set_routers([state])
    eventually(lambda: len(checked.seen) >= 2, what="two checks")
    assert state.health("a").usable
    healthy[0] = False
    eventually(lambda: not state.health("a").usable, what="the failed check")
    healthy[0] = True
    eventually(lambda: state.health("a").usable, what="the next check")
    assert not other.seen


def test_a_sleeping_service_is_not_woken_by_a_check(front: Front, make_engine: Make) -> None:
    engine = make_engine()
    model = Model(ServiceName("prod", "a"), state="asleep")
    front.serve_routes(Route(model, (engine.target,)))
    missing = RouterBackend("b", "none", health_check=CHECK)
    state = RouterState(Router("prod", "r", (RouterBackend("a", "a", health_check=CHECK), missing)))
    front.server.set_routers([state])
    eventually(lambda: not state.health("b").usable, what="the check of a service that does not exist")
    assert state.health("a").usable
    assert not engine.seen


def test_a_service_that_requests_wait_for_is_healthy_until_its_start_fails(front: Front) -> None:
    waits, fails = Model(ServiceName("prod", "a")), Model(ServiceName("prod", "b"))
    front.serve_routes(Route(waits, holding=Holding()), Route(fails, holding=Holding(failure="CrashLooping")))
    backends = tuple(RouterBackend(name, name, health_check=CHECK) for name in ("a", "b"))
    state = RouterState(Router("prod", "r", backends))
    front.server.set_routers([state])
    eventually(lambda: not state.health("b").usable, what="the check of the service that fails")
    assert state.health("a").usable
    assert (front.server.reported_requests() or {})["llmkube/prod/a"].total == 0
