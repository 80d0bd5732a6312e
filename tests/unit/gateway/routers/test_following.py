"""Routers are known when all were listed, and no request is refused for want of a router before that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from gateway.access.authentication import Access
from gateway.access.keys import KeyRing
from gateway.cluster.cluster_routes import ClusterRoutes
from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.routers.following import GATHER_S, RouterFollower
from gateway.routers.runtime import RouterState
from gateway.server import GatewayServer
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeError, NotFound, ServerError, Unreachable
from tests.support.gateways import CHAT, Front
from tests.support.loop import eventually

ROUTER: dict[str, Any] = {
    "metadata": {"name": "r", "namespace": "prod", "uid": "1", "resourceVersion": "1"},
    "spec": {"backends": [{"name": "a", "inferenceServiceRef": {"name": "a"}}], "defaultRoute": "a"},
}


class Api:
    """An API server whose lists the test lets through."""

    def __init__(self, *items: dict[str, Any], error: KubeError | None = None) -> None:
        self.items = items
        self.error = error
        self.asked = threading.Event()
        self.answers = threading.Event()

    def list(self, *_: object, **__: object) -> dict[str, Any]:
        self.asked.set()
        self.answers.wait(10)
        if self.error is not None:
            raise self.error
        return {"items": list(self.items), "metadata": {"resourceVersion": "1"}}

    def watch(self, *_: object, **__: object) -> None:
        raise Unreachable("there is no watch")


@pytest.fixture
def follow() -> Iterator[Callable[[Api], list[list[RouterState]]]]:
    made: list[tuple[Api, RouterFollower]] = []

    def start(api: Api) -> list[list[RouterState]]:
        published: list[list[RouterState]] = []
        follower = RouterFollower(cast(KubeClient, api), publish=lambda states: published.append(list(states)))
        follower.start()
        made.append((api, follower))
        return published

    yield start
    for api, follower in made:
        api.answers.set()
        follower.stop()


@pytest.mark.parametrize(
    ("api", "names"),
    [
        (Api(ROUTER), ["r"]),
        (Api(), []),
        (Api(error=NotFound(404, "NotFound", "no such kind")), []),
        (Api(error=Forbidden(403, "Forbidden", "no")), []),
    ],
)
def test_routers_are_published_when_all_were_listed_or_none_can_be(
    follow: Callable[[Api], list[list[RouterState]]], api: Api, names: list[str]
) -> None:
    published = follow(api)
    assert api.asked.wait(5)
    time.sleep(3 * GATHER_S)
    assert published == []
    api.answers.set()
    eventually(lambda: bool(published), what="the routers")
    assert [state.router.name for state in published[0]] == names


def test_routers_are_not_known_after_an_error_of_the_api_server(
    follow: Callable[[Api], list[list[RouterState]]],
) -> None:
    api = Api(error=ServerError(500, "InternalError", "no"))
    published = follow(api)
    api.answers.set()
    time.sleep(5 * GATHER_S)
    assert published == []


def test_a_cluster_without_services_is_known_when_its_empty_lists_were_read() -> None:
    api, published = Api(), threading.Event()
    routes = ClusterRoutes(cast(KubeClient, api), publish=lambda _: published.set())
    routes.start()
    assert api.asked.wait(5)
    assert not published.is_set()
    api.answers.set()
    assert published.wait(5)
    routes.stop()


@pytest.fixture
def starting() -> Iterator[Front]:
    """A gateway that demands keys, and knows its services but not its routers."""
    server = GatewayServer(access=Access(required=True, ring=KeyRing()))
    front = Front(server, routers=None)
    front.serve_routes(Route(Model(ServiceName("prod", "chat"))))
    eventually(lambda: server.backends.are_known, what="the services")
    yield front
    server.stop()


def test_a_gateway_that_does_not_know_its_routers_is_not_ready(starting: Front) -> None:
    body = {"model": "r", "messages": []}
    for path in (f"/routers/prod/r{CHAT}", f"/routers/prod/other{CHAT}"):
        status, headers, answer = starting.ask(body, path, authorization="Bearer a.token.of-an-issuer")
        assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "starting", "1")
    assert starting.get("/ready")[0] == 503
    starting.server.set_routers(())
    eventually(lambda: starting.get("/ready")[0] == 200, what="the routers")
    assert starting.ask(body, f"/routers/prod/r{CHAT}")[0] == 401


def test_a_service_answers_and_other_names_wait_while_routers_are_not_known(starting: Front) -> None:
    starting.server.access = Access.open()
    assert starting.ask({"model": "r", "messages": []})[2]["error"]["code"] == "starting"
    assert starting.ask({"model": "chat", "messages": []})[2]["error"]["code"] == "no_replica"
