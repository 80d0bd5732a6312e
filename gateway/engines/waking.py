"""Wakes a sleeping service without a request of a client. Called by `connection`.

A request for an adapter cannot wait at the proxy of a sleeping service: a replica that has just started does not have
the adapter yet. So the client gets an answer at once, and the gateway itself sends a request that wakes the service.
"""

from __future__ import annotations

import asyncio

from agent.proxy.framing import ResponseHead
from gateway.engines.backends import Backend
from gateway.engines.exchange import Exchange
from gateway.errors import GatewayError
from gateway.limits import GatewayLimits

_HEAD = b"GET /v1/models HTTP/1.1\r\nAccept: */*\r\n"


def wake(backend: Backend, limits: GatewayLimits, loop: asyncio.AbstractEventLoop) -> None:
    """Send a request to a service that sleeps, unless one is under way."""
    if backend.is_waking:
        return
    backend.is_waking = True
    waking = _Waking(backend)
    exchange = Exchange(waking, backend, limits, loop)
    waking.timer = loop.call_later(limits.first_byte_s, waking.give_up, exchange)
    exchange.start(b"GET", _HEAD, b"", "")


class _Waking:
    """Receives the answer to the request, and drops it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.timer: asyncio.TimerHandle | None = None

    def give_up(self, exchange: Exchange) -> None:
        """End a request without an answer."""
        exchange.cancel()
        self._ended()

    def answer_begins(self, head: ResponseHead, data: bytes) -> None:
        """Drop the answer."""

    def answer_data(self, data: bytes) -> None:
        """Drop the answer."""

    def answer_ends(self) -> None:
        self._ended()

    def answer_breaks_off(self) -> None:
        self._ended()

    def no_answer(self, error: GatewayError) -> None:  # noqa: ARG002 - `Requester`'s signature
        self._ended()

    def _ended(self) -> None:
        self._backend.is_waking = False
        if self.timer is not None:
            self.timer.cancel()
