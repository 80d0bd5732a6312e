"""Reads the metrics of engines each second, for the models that get requests and have several replicas.

`server` starts it. A replica whose metrics cannot be read is used by the gateway's own counts, as before: no failure
here refuses or moves a request. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio

from agent.proxy.framing import Chunked, ResponseHead
from agent.proxy.upstream import Upstream
from gateway.clients.heads import unchunked
from gateway.engines.backends import Backend, Backends
from gateway.engines.balancer import Endpoint
from gateway.engines.load import PATHS, read_load

EVERY_S = 1.0
TIMEOUT_S = 2.0
USED_S = 10.0
"""A model without a request for this long is not read."""
WITHOUT_S = 60.0
"""When an engine without such metrics is asked again."""
ANSWER_MAX = 2 << 20
"""Most bytes of metrics that are read."""


class EngineScraper:
    """Reads the metrics of all engines in use. Call `start` in the loop's thread; it ends with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, backends: Backends, *, every_s: float = EVERY_S) -> None:
        self._loop = loop
        self._backends = backends
        self._every_s = every_s
        self._scrapes: dict[Endpoint, _Scrape] = {}

    def start(self) -> None:
        """Read now, and again and again."""
        self._loop.call_later(self._every_s, self.start)
        used = [each for each in self._backends.all() if len(each.balancer.endpoints) > 1]
        now = self._loop.time()
        wanted = {
            endpoint: backend
            for backend in used
            if now - backend.used_at <= USED_S and not backend.route.access.problem
            for endpoint in backend.balancer.endpoints
        }
        for endpoint in self._scrapes.keys() - wanted.keys():
            self._scrapes.pop(endpoint).end()
        for endpoint, backend in wanted.items():
            scrape = self._scrapes.get(endpoint)
            if scrape is None:
                scrape = self._scrapes[endpoint] = _Scrape(self._loop, endpoint)
            scrape.begin(backend, now)


class _Scrape:
    """The requests for the metrics of one engine, one at a time. It is the receiver of their answers."""

    method = b"GET"
    request_is_whole = True

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> None:
        self._loop = loop
        self._endpoint = endpoint
        self._backend: Backend | None = None
        """None while no request is under way."""
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._began = 0.0
        self._not_before = 0.0
        self._path = 0
        self._head: ResponseHead | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def begin(self, backend: Backend, now: float) -> None:
        """Send a request, unless one is under way; give up one that takes too long."""
        if self._backend is not None and now - self._began > TIMEOUT_S:
            self.end()
        if self._backend is not None or now < self._not_before:
            return
        self._backend, self._began, self._head = backend, now, None
        self._parts, self._size = [], 0
        if (upstream := backend.pool(self._endpoint.target).pop_idle()) is not None:
            self._send(upstream)
        else:
            self._connecting = self._loop.create_task(self._connect(backend))

    def end(self) -> None:
        """Give up the request that is under way."""
        if self._connecting is not None:
            self._connecting.cancel()
        upstream = self._upstream
        self._over()
        if upstream is not None:
            upstream.abandon()

    async def _connect(self, backend: Backend) -> None:
        try:
            upstream = await backend.pool(self._endpoint.target).connect(self._endpoint.target)
        except (OSError, TimeoutError):
            self._over()
            return
        self._connecting = None
        self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        assert self._backend is not None
        self._upstream = upstream
        upstream.client = self
        address, port = self._endpoint.target
        host = f"[{address}]" if ":" in address else address
        start = f"GET {PATHS[self._path]} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/plain\r\n"
        authorization = self._backend.authorization(self._endpoint.target) or b""
        upstream.transport.write(start.encode() + authorization + b"\r\n")

    def _over(self) -> Backend | None:
        backend, self._backend = self._backend, None
        self._upstream = self._connecting = None
        return backend

    def _has_none(self) -> None:
        """Try the other path next; after the last one, wait."""
        self._path = (self._path + 1) % len(PATHS)
        if self._path == 0:
            self._not_before = self._loop.time() + WITHOUT_S

    # --- called by the upstream -----------------------------------------------------------------------------------

    def upstream_is_full(self, full: bool) -> None:
        """Do nothing: the request is short."""

    def interim_response(self, head: bytes) -> None:
        """Do nothing: the answer follows."""

    def response_begins(self, head: ResponseHead, data: bytes) -> None:
        self._head = head
        self.response_data(data)

    def response_data(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > ANSWER_MAX:
            self.end()
            self._has_none()

    def response_ends(self) -> None:
        head = self._head
        if head is None or (backend := self._over()) is None:
            return
        body = b"".join(self._parts)
        self._parts = []
        if head.status >= 500 and head.status != 501:
            return  # the engine starts or is overloaded; its metrics are read again
        text = unchunked(body) if isinstance(head.body, Chunked) else body
        load = read_load(text) if head.status == 200 else None
        if load is None:
            self._has_none()
        else:
            backend.balancer.measured(self._endpoint, load)

    def response_failed(self, why: str, *, stale: bool = False) -> None:  # noqa: ARG002 - `Receiver`'s signature
        self._over()

    def response_breaks_off(self) -> None:
        self._over()
