"""Gateways and engines that end with their test."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.clients.cors import Cors
from gateway.limits import GatewayLimits
from gateway.server import GatewayServer
from tests.support.gateways import OK, Answer, Engine, Front


@pytest.fixture
def make_front(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[..., Front]]:
    made: list[GatewayServer] = []

    def make(
        *, tls: ssl.SSLContext | None = None, cors: Cors | None = None, checks_hosts: bool = False, **limits: Any
    ) -> Front:
        made.append(GatewayServer(GatewayLimits(**limits), cors, checks_hosts=checks_hosts))
        return Front(made[-1], tls)

    yield make
    for server in made:
        server.stop()
    # An exception in a callback closes only its connection; asyncio logs it here.
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
def front(make_front: Callable[..., Front]) -> Front:
    return make_front()


@pytest.fixture
def make_engine() -> Iterator[Callable[[Answer], Engine]]:
    made: list[Engine] = []

    def make(answer: Answer = OK) -> Engine:
        made.append(Engine(answer))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
