"""The web console in the test's process, in front of services that are in memory."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from automation.places.place import NoSuchService, PlaceError, PlannedChange, Reached, ServiceState, State
from automation.web_console.application import Console
from automation.web_console.entry import LinkEntry
from automation.web_console.reading import Reading
from automation.web_console.sessions import Sessions
from kubeapi.json_types import Json
from tests.support import event_loop

Client = TestClient[web.Request, web.Application]


def state(name: str = "chat", **changes: object) -> ServiceState:
    document = {
        "metadata": {"name": name, "namespace": "team", "uid": "1", "managedFields": ["long"]},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Loading", "message": "loads <it>"}]},
    }
    made = ServiceState("team", name, State.READY, "Ready", model="qwen", desired_replicas=2, document=document)
    return replace(made, **changes)  # type: ignore[arg-type]


@dataclass
class MemoryPlace:
    """A place whose services are in memory."""

    found: list[ServiceState] = field(default_factory=list)
    calls: list[tuple[object, ...]] = field(default_factory=list)
    way: Reached | None = None
    failure: PlaceError | None = None
    title: str = "cluster test"
    default_namespace: str = "team"

    def services(self, namespace: str | None) -> list[ServiceState]:
        if self.failure is not None:
            raise self.failure
        return [each for each in self.found if namespace in (None, each.namespace)]

    def find(self, name: str, namespace: str | None = None) -> ServiceState:
        for each in self.services(namespace):
            if name in (each.name, f"{each.kind}/{each.name}"):
                return each
        raise NoSuchService(f"no service `{name}`", hint="did you mean `chat`?")

    def document(self, kind: str, name: str, namespace: str) -> Json | None:
        return None

    def plan(self, documents: Sequence[Json]) -> PlannedChange:
        return PlannedChange("creates 2 objects", has_changes=True)

    def apply(self, documents: Sequence[Json]) -> None:
        self.calls.append(("apply", [each["kind"] for each in documents]))

    def scale(self, service: ServiceState, replicas: int) -> str:
        self.calls.append(("scale", service.name, replicas))
        return ""

    def stop(self, service: ServiceState) -> None:
        self.calls.append(("stop", service.name))

    def start(self, service: ServiceState) -> None:
        self.calls.append(("start", service.name))

    def delete(self, service: ServiceState, *, purge: bool = False) -> str:
        raise AssertionError

    @contextmanager
    def reach(self, service: ServiceState) -> Iterator[Reached]:
        assert self.way is not None
        try:
            yield self.way
        finally:
            self.calls.append(("closed", service.name))

    def watch(self, service: ServiceState, *, pause_s: float) -> ServiceState:
        return service


def browse(
    place: MemoryPlace,
    visit: Callable[[Client, Sessions], Awaitable[None]],
    *,
    signed_in: bool = True,
    store: Path | None = None,
) -> None:
    """Visit a console of a place; `store` is the directory of an agent with logs."""

    async def run() -> None:
        sessions = Sessions()
        server = TestServer(Console(LinkEntry(Reading(place, store=store), sessions)).application())
        async with TestClient(server, cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            if signed_in:
                await client.get(f"/open?token={sessions.link_token}")
            await visit(client, sessions)

    event_loop.run(run())


async def token_of(client: Client, path: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', await (await client.get(path)).text())
    assert found is not None
    return found[1]
