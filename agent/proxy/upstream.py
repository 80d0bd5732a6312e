"""Connections to an engine: forwards its responses and keeps idle connections for later requests.

Called by `client` through its service's `Pool`; calls `framing`. Runs in the event loop's thread. For an upstream, a
client is only the `Receiver` of one response.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Protocol, cast

from agent.proxy.connections import enable_keepalive
from agent.proxy.framing import HEAD_END, MAX_HEAD, Body, Malformed, ResponseHead, UntilClose, read_response
from agent.proxy.limits import Limits

Target = tuple[str, int]
"""Address and port of an engine."""


class Receiver(Protocol):
    """Receives the response to a request, piece by piece."""

    @property
    def method(self) -> bytes:
        """The method of the request."""

    @property
    def request_is_whole(self) -> bool:
        """Whether the whole request was sent to the engine."""

    def upstream_is_full(self, full: bool) -> None:
        """Called when the engine stops (True) or resumes (False) accepting more of the request."""

    def interim_response(self, head: bytes) -> None:
        """Called with a 1xx response, which precedes the final one."""

    def response_begins(self, head: ResponseHead, data: bytes) -> None:
        """Called with the head of the response and the first bytes of its body."""

    def response_data(self, data: bytes) -> None:
        """Called with the next bytes of the body."""

    def response_ends(self) -> None:
        """Called when the response is complete."""

    def response_failed(self, why: str, *, stale: bool = False) -> None:
        """Called when there is no response.

        `stale`: the engine may have closed the connection before it read the request.
        """

    def response_breaks_off(self) -> None:
        """Called when the response remains incomplete."""


class Upstream(asyncio.Protocol):
    """One connection to an engine, used by at most one client at a time."""

    __slots__ = ("_body", "_keep_alive", "_partial", "client", "pool", "since", "target", "transport", "used")

    def __init__(self, pool: Pool, target: Target) -> None:
        self.pool = pool
        self.target = target
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.client: Receiver | None = None
        self.used = False
        """It has carried an earlier request, and the engine has not answered the current one yet."""
        self.since = 0.0
        """When it was put into the pool."""
        self._partial = b""
        self._body: Body | None = None
        self._keep_alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        enable_keepalive(self.transport)

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            # No request is pending. These bytes must not become the response to a later request.
            self.transport.abort()
            return
        # The engine answers, so the connection was not stale, and the request must not be sent again.
        self.used = False
        try:
            if self._body is not None:
                self._pass_body(client, data, self._body)
            else:
                self._pass_head(client, self._partial + data if self._partial else data)
        except Malformed as error:
            begun = self._body is not None
            self.abandon()
            if begun:
                client.response_breaks_off()
            else:
                client.response_failed(f"the engine's answer is not valid HTTP: {error.why}")

    def _pass_head(self, client: Receiver, data: bytes) -> None:
        while True:
            end = data.find(HEAD_END)
            if end < 0:
                if len(data) > MAX_HEAD:
                    raise Malformed("its head is too long")
                self._partial = data
                return
            self._partial = b""
            end += len(HEAD_END)
            if end > MAX_HEAD:
                raise Malformed("its head is too long")
            head = read_response(data[:end], client.method)
            if head.status >= 200:
                break
            if head.status == 101:
                raise Malformed("it changes the protocol")
            client.interim_response(head.lines + b"\r\n")
            data = data[end:]
            if not data:
                return
        self._keep_alive = head.keep_alive
        body = head.body
        if body is None:
            client.response_begins(head, b"")
            self._finish(client, clean=end == len(data))
            return
        upto = body.consume(data, end)
        client.response_begins(head, data[end:upto])
        if body.done:
            self._finish(client, clean=upto == len(data))
        else:
            self._body = body

    def _pass_body(self, client: Receiver, data: bytes, body: Body) -> None:
        upto = body.consume(data)
        client.response_data(data if upto == len(data) else data[:upto])
        if body.done:
            self._finish(client, clean=upto == len(data))

    def _finish(self, client: Receiver, *, clean: bool) -> None:
        """Finish a complete response, and return the connection to the pool if it can be reused."""
        self.client = None
        self._body = None
        if clean and self._keep_alive and client.request_is_whole:
            self.transport.resume_reading()
            self.pool.put(self)
        else:
            self.transport.abort()
        client.response_ends()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.drop(self)
        client, self.client = self.client, None
        if client is None:
            return
        body, self._body = self._body, None
        if body is None:
            client.response_failed("the engine ended the connection before it answered", stale=self.used)
        elif exc is None and isinstance(body, UntilClose):
            client.response_ends()
        else:
            client.response_breaks_off()

    def pause_writing(self) -> None:
        if self.client is not None:
            self.client.upstream_is_full(True)

    def resume_writing(self) -> None:
        if self.client is not None:
            self.client.upstream_is_full(False)

    def abandon(self) -> None:
        """Close the connection immediately, so that the engine stops its work for it."""
        self.client = None
        self.transport.abort()


class Pool:
    """The idle connections to a service's engines."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
    ) -> None:
        """With `tls` the connections use TLS. It verifies the engine's certificate, which is for `server_name`."""
        self.limits = limits
        self._loop = loop
        self._tls = tls
        self._server_name = server_name if tls is not None else None
        self._targets: tuple[Target, ...] = ()
        self._idle: deque[Upstream] = deque()
        self._sweep: asyncio.TimerHandle | None = None

    def pop_idle(self) -> Upstream | None:
        """Return the connection that was used last, or None if the pool is empty."""
        return self._idle.pop() if self._idle else None

    async def connect(self, target: Target) -> Upstream:
        """Open a new connection. Raises OSError, TimeoutError."""
        async with asyncio.timeout(self.limits.connect_timeout_s):
            _, upstream = await self._loop.create_connection(
                lambda: Upstream(self, target), *target, ssl=self._tls, server_hostname=self._server_name
            )
        return upstream

    def put(self, upstream: Upstream) -> None:
        """Keep a connection for the next request."""
        if upstream.transport.is_closing() or upstream.target not in self._targets:
            upstream.transport.abort()
            return
        upstream.used = True
        upstream.since = self._loop.time()
        self._idle.append(upstream)
        if len(self._idle) > self.limits.max_pooled:
            self._idle.popleft().transport.abort()
        if self._sweep is None:
            self._arm()

    def drop(self, upstream: Upstream) -> None:
        """Remove a closed connection."""
        if upstream in self._idle:
            self._idle.remove(upstream)

    def keep_only(self, targets: tuple[Target, ...]) -> None:
        """Close idle connections to all other engines, and pool only connections to these from now on."""
        self._targets = targets
        for upstream in list(self._idle):
            if upstream.target not in targets:
                self._idle.remove(upstream)
                upstream.transport.abort()

    def _arm(self) -> None:
        self._sweep = self._loop.call_later(self.limits.pooled_s / 2, self._close_old)

    def _close_old(self) -> None:
        self._sweep = None
        oldest = self._loop.time() - self.limits.pooled_s
        while self._idle and self._idle[0].since <= oldest:
            self._idle.popleft().transport.abort()
        if self._idle:
            self._arm()
