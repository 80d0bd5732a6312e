"""A key with a list of models opens a router only by the router's full name."""

from __future__ import annotations

import pytest

from gateway.access.caller import ANYONE, Caller
from gateway.clients import heads
from gateway.clients.request_body import RequestBody
from gateway.errors import GatewayError
from gateway.names import Model, Names, ServiceName
from gateway.routers import dispatching
from gateway.routers.forwarding import Routed
from gateway.routers.runtime import Routers, RouterState
from program.desired.router import Match, Router, RouterBackend, Rule

BODY = b'{"model": "best", "messages": []}'


@pytest.fixture
def routers() -> Routers:
    made = Routers()
    router = Router("prod", "r", (RouterBackend("a", "a", display_name="best"),), default="a", by_name=True)
    made.set([RouterState(router)])
    return made


@pytest.mark.parametrize(
    ("models", "opens"),
    [((), True), (("prod/r",), True), (("prod/*",), True), (("best",), False), (("be*",), False), (("prod/a",), False)],
)
def test_the_list_of_a_key(routers: Routers, models: tuple[str, ...], opens: bool) -> None:
    caller = Caller("id", "name", models=models)
    names = Names()
    head = heads.Head("POST", "/x", "/v1/chat/completions", b"", "")
    at_path = heads.Head("POST", "/x", "/routers/prod/r/v1/chat/completions", b"", "")
    found = (
        dispatching.by_name(head, RequestBody.read(BODY), caller, routers, names),
        dispatching.at_address(at_path, BODY, caller, routers),
    )
    for each in found:
        assert isinstance(each, Routed) if opens else isinstance(each, GatewayError) and each.status == 403
    assert bool(dispatching.entries(caller, routers, names)) is opens


def test_the_usage_of_a_stream_is_asked_for_so_that_it_can_be_counted(routers: Routers) -> None:
    head = heads.Head("POST", "/x", "/v1/chat/completions", b"", "")
    body = RequestBody.read(b'{"model": "best", "messages": [], "stream": true}')
    found = dispatching.by_name(head, body, ANYONE, routers, Names())
    assert isinstance(found, Routed)
    assert found.body.values["stream_options"] == {"include_usage": True}
    assert found.expected.drop_usage


def test_a_router_takes_no_requests_for_a_service_or_router_of_another_namespace(routers: Routers) -> None:
    taken = ("chat:sql", "prod/chat", "prod/r", "other/x")
    rule = Rule("all", ("a",), Match(models=(*taken, "free")))
    evil = Router("evil", "e", (RouterBackend("a", "a", display_name="prod/r"),), (rule,), by_name=True)
    routers.set([*routers.states(), RouterState(evil)])
    names = Names.of([Model(ServiceName("prod", "chat"), adapters=("sql",))])
    assert [each.router.name for each in routers.named("prod/r", names)] == ["r"]
    assert {name: router.name for name, router in routers.listed(names) if router == evil} == {
        "evil/e": "e",
        "e": "e",
        "free": "e",
    }
    for name in ("chat:sql", "prod/chat", "other/x"):
        assert routers.named(name, names) == ()
