"""A proxy for each test, and engines that send what the test wants."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from agent.proxy.limits import Limits
from agent.proxy.server import Proxy, State
from agent.proxy.service import Callbacks
from tests.support.raw_engine import RawEngine

NAME = "prod/chat"


class Front:
    """One service behind a proxy, and the reports of the proxy."""

    def __init__(self, proxy: Proxy, limits: Limits) -> None:
        self.proxy = proxy
        self.said: queue.Queue[str] = queue.Queue()
        callbacks = Callbacks(
            wake=lambda name: self.said.put(f"wake {name}"), idle=lambda name: self.said.put(f"idle {name}")
        )
        self.port = proxy.open(NAME, "127.0.0.1", 0, limits, callbacks)

    def lead(self, *engines: RawEngine) -> None:
        self.proxy.set_targets(NAME, tuple(engine.target for engine in engines))

    def state(self) -> State:
        return next(state for state in self.proxy.states() if state.name == NAME)

    def eventually(self, holds: Callable[[State], bool], *, within_s: float = 5.0) -> State:
        deadline = time.monotonic() + within_s
        while not holds(state := self.state()):
            assert time.monotonic() < deadline, state
            time.sleep(0.01)
        return state


@pytest.fixture
def proxy(caplog: pytest.LogCaptureFixture) -> Iterator[Proxy]:
    made = Proxy()
    made.start()
    yield made
    made.stop()
    # An exception in a callback closes only its connection; asyncio logs it here.
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
def front(proxy: Proxy) -> Callable[..., Front]:
    return lambda **limits: Front(proxy, Limits(**limits))


@pytest.fixture
def engine() -> Iterator[Callable[[Callable[[socket.socket], None]], RawEngine]]:
    made: list[RawEngine] = []

    def make(script: Callable[[socket.socket], None]) -> RawEngine:
        made.append(RawEngine(script))
        return made[-1]

    yield make
    for each in made:
        each.close()
