"""The parts of a request at a router: one for each backend that is tried and for each copy. `forwarding` makes them.

They stand between the router's request and the call of a backend, and run in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from agent.proxy.framing import ResponseHead
from gateway.errors import GatewayError
from gateway.routers.runtime import Routers, RouterState
from program.desired.router import RouterBackend

if TYPE_CHECKING:
    from gateway.routers.forwarding import RoutedExchange

COPY_S = 300.0
"""How long a copy may take."""


class Call(Protocol):
    """A request at one backend: an `Exchange` or a `ProviderCall`."""

    def cancel(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close_if_late(self, now: float) -> None: ...


class Leg:
    """The request at one backend. After its end it ignores everything that still arrives from there."""

    def __init__(
        self, exchange: RoutedExchange | None, backend: RouterBackend, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.backend = backend
        self.call: Call | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.began_at = loop.time()
        self._exchange = exchange

    def cancel(self) -> None:
        """Stop the work of the backend."""
        if self.call is not None:
            self.call.cancel()
        self._over()

    def gives_up(self) -> None:
        """Note that the work of the backend is stopped after it got the request and before it answered."""
        if self._exchange is not None:
            self._exchange.gives_up(self.backend)

    def _over(self) -> RoutedExchange | None:
        exchange, self._exchange = self._exchange, None
        self._stop_timer()
        return exchange

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # --- called by the backend ------------------------------------------------------------------------------------

    def answer_begins(self, head: ResponseHead, data: bytes) -> None:
        self._stop_timer()
        if self._exchange is not None:
            self._exchange.begins(self, head, data)

    def answer_data(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.continues(data)

    def answer_ends(self) -> None:
        if (exchange := self._over()) is not None:
            exchange.ends()

    def answer_breaks_off(self) -> None:
        if (exchange := self._over()) is not None:
            exchange.breaks_off(self)

    def no_answer(self, error: GatewayError) -> None:
        if (exchange := self._over()) is not None:
            exchange.failed(self, error)


class Copy(Leg):
    """A copy of a request. Its answer is dropped; only the time to its first byte and its failures are noted."""

    def __init__(
        self,
        state: RouterState,
        routers: Routers,
        size: int,
        siblings: set[Copy],
        backend: RouterBackend,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`size`: of the request's body, in bytes."""
        super().__init__(None, backend, loop)
        self._state = state
        self._routers = routers
        self._size = size
        self._siblings = siblings
        self._loop = loop
        self._is_over = False
        self.timer = loop.call_later(COPY_S, self.cancel)
        siblings.add(self)
        state.copies.number += 1
        routers.copied_bytes += size

    def _over(self) -> None:
        self._stop_timer()
        if not self._is_over:
            self._is_over = True
            self._siblings.discard(self)
            self._state.copies.number -= 1
            self._routers.copied_bytes -= self._size

    def answer_begins(self, head: ResponseHead, data: bytes) -> None:  # noqa: ARG002 - `Requester`'s signature
        if head.status < 500:
            self._state.succeeded(self.backend.name, self._loop.time() - self.began_at)
        else:
            self._state.failed(self.backend.name)

    def answer_data(self, data: bytes) -> None:
        """Drop the answer."""

    def answer_ends(self) -> None:
        self._over()

    def answer_breaks_off(self) -> None:
        self._over()

    def no_answer(self, error: GatewayError) -> None:
        if error.status >= 500:
            self._state.failed(self.backend.name)
        self._over()
