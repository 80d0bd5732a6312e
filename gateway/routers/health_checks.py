"""Requests the health paths of the routers' backends, so that those which fail come last. One task in the event loop.

A sleeping service is not checked, because a request would wake it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

from agent.proxy.framing import ResponseHead
from gateway.engines.backends import Backends
from gateway.engines.exchange import Exchange
from gateway.errors import GatewayError
from gateway.limits import GatewayLimits
from gateway.names import ServiceName
from gateway.routers.runtime import RouterState
from program.desired.router import HealthCheck, RouterBackend

PAUSE_S = 0.25
"""How often due checks are looked for."""
PARALLEL = 32
"""Most checks at a time."""

Due = tuple[str, str, str]
"""Namespace and name of a router, and name of a backend."""


class HealthChecks:
    """The checks of all routers. Belongs to the event loop's thread."""

    def __init__(self, backends: Backends, limits: GatewayLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._backends = backends
        self._limits = limits
        self._loop = loop
        self._next_at: dict[Due, float] = {}
        self._running: dict[Due, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to check."""
        self._look()

    def stop(self) -> None:
        """End all checks."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._running.values():
            task.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(PAUSE_S, self._look)
        wanted: set[Due] = set()
        for state in self._backends.routers.states():
            for backend in state.router.backends:
                if backend.health_check is not None:
                    due = (state.router.namespace, state.router.name, backend.name)
                    wanted.add(due)
                    self._begin(due, state, backend, backend.health_check)
        for gone in self._next_at.keys() - wanted:
            del self._next_at[gone]

    def _begin(self, due: Due, state: RouterState, backend: RouterBackend, check: HealthCheck) -> None:
        now = self._loop.time()
        if due in self._running or len(self._running) >= PARALLEL or self._next_at.get(due, 0.0) > now:
            return
        self._next_at[due] = now + check.interval_s
        task = self._running[due] = self._loop.create_task(self._check(state, backend, check))
        task.add_done_callback(lambda _: self._running.pop(due, None))

    async def _check(self, state: RouterState, backend: RouterBackend, check: HealthCheck) -> None:
        healthy = await self._answers(state, backend, check)
        if healthy is not None:
            # The router may have been replaced meanwhile; its successor has the same backend.
            current = self._backends.routers.get(state.router.namespace, state.router.name)
            if current is not None and current.router.backend(backend.name) == backend:
                current.checked(backend.name, healthy=healthy)

    async def _answers(self, state: RouterState, backend: RouterBackend, check: HealthCheck) -> bool | None:
        """Return whether a backend answers; None if it is not to be asked."""
        if backend.external is not None:
            return await self._provider_answers(backend.external.url, check)
        found = self._backends.of(ServiceName(state.router.namespace, backend.service))
        if found is None:
            return False
        if found.route.model.state == "asleep":
            return True
        if not found.route.targets:
            # Requests wait for it, and its wake has not failed.
            return found.route.holding is not None and not found.route.holding.failure
        probe = _Probe(self._loop.create_future())
        exchange = Exchange(probe, found, replace(self._limits, attempts=1), self._loop, counts=False)
        exchange.start(b"GET", f"GET {quote(check.path, safe='/?=&%')} HTTP/1.1\r\nAccept: */*\r\n".encode(), b"", "")
        try:
            async with asyncio.timeout(check.timeout_s):
                return await probe.status < 400
        except TimeoutError:
            return False
        finally:
            exchange.cancel()

    async def _provider_answers(self, url: str, check: HealthCheck) -> bool:
        import aiohttp

        parts = urlsplit(url)
        try:
            async with (
                asyncio.timeout(check.timeout_s),
                self._backends.routers.connections.checks().get(
                    f"{parts.scheme}://{parts.netloc}{check.path}", allow_redirects=False
                ) as answer,
            ):
                return answer.status < 400
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


@dataclass(frozen=True)
class _Probe:
    """Receives the answer to a check; only its status counts."""

    status: asyncio.Future[int]

    def answer_begins(self, head: ResponseHead, data: bytes) -> None:  # noqa: ARG002 - `Requester`'s signature
        self._says(head.status)

    def answer_data(self, data: bytes) -> None:
        """Drop the answer."""

    def answer_ends(self) -> None:
        """The status has come before."""

    def answer_breaks_off(self) -> None:
        """The status has come before."""

    def no_answer(self, error: GatewayError) -> None:
        self._says(error.status)

    def _says(self, status: int) -> None:
        if not self.status.done():
            self.status.set_result(status)
