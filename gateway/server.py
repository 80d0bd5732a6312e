"""The gateway's listener: one thread with an event loop, and the connections of all clients.

`running` starts it; `cluster.cluster_routes` gives it the models. Reading order: `clients.connection`, `access`,
`dispatch`, `names`, `accounting.book`, `engines.exchange`, `engines.balancer`, `clients.answer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future

import structlog

from agent.proxy.read_memory import keep_for_reads
from gateway.access.authentication import Access
from gateway.access.keys import KeyRing
from gateway.accounting.book import Book
from gateway.accounting.ledger import Ledger
from gateway.accounting.stores import Store
from gateway.clients.connection import Connection
from gateway.clients.cors import Cors
from gateway.engines.backends import Backends, Route
from gateway.engines.balancer import ANYWHERE, Nearness
from gateway.engines.scraper import EngineScraper
from gateway.limits import GatewayLimits
from gateway.routers.health_checks import HealthChecks
from gateway.routers.runtime import RouterState
from program.desired.request_report import Counts

BACKLOG = 1024
SWEEP_S = 1.0
"""Interval in which connections are checked for their limits of time."""
HANDSHAKE_S = 10.0
"""How long a client's TLS handshake may take."""
SHUTDOWN_S = 2.0
"""How long a client may take to confirm the end of a TLS connection."""
START_S = 10.0
POLL_S = 0.05

log = structlog.get_logger(__name__)


class GatewayServer:
    """One listener. Thread-safe except for `stop`."""

    def __init__(
        self,
        limits: GatewayLimits | None = None,
        cors: Cors | None = None,
        place: Nearness = ANYWHERE,
        access: Access | None = None,
        store: Store | None = None,
        *,
        checks_hosts: bool = False,
    ) -> None:
        """`place` is the node and the zone in which the gateway runs.

        With `checks_hosts`, requests without a key must address this machine; see `access.host_names`. Without
        `access`, requests need no key. Without `store`, keys have no limits, and usage is not kept.
        """
        self.loop = asyncio.new_event_loop()
        self.limits = limits or GatewayLimits()
        self.cors = cors or Cors()
        self.checks_hosts = checks_hosts
        self.backends = Backends(self.loop, place)
        self._scraper = EngineScraper(self.loop, self.backends)
        self.access = access or Access.open()
        self.connections: set[Connection] = set()
        self.is_stopping = False
        self.body_bytes = 0
        self.ledger = Ledger(self.loop, store) if store is not None else None
        self.book = Book(self.backends, self.ledger)
        self._health_checks = HealthChecks(self.backends, self.limits, self.loop)
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._server: asyncio.Server | None = None

    def start(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port; with `tls` by TLS only. Raises OSError when the address is not available."""
        opened: Future[int] = Future()

        async def listen() -> None:
            try:
                self._server = await self.loop.create_server(
                    lambda: Connection(self),
                    address,
                    port,
                    backlog=BACKLOG,
                    reuse_address=True,
                    ssl=tls,
                    ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
                    ssl_shutdown_timeout=SHUTDOWN_S if tls is not None else None,
                )
            except OSError as error:
                opened.set_exception(error)
                return
            opened.set_result(int(self._server.sockets[0].getsockname()[1]))

        keep_for_reads()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(listen(), self.loop)
        return opened.result(START_S)

    @property
    def is_alive(self) -> bool:
        """False when the thread has ended: after `stop`, or by a fault."""
        return self._thread.is_alive()

    def set_routes(self, routes: Iterable[Route]) -> None:
        """Replace the models. Requests in progress go on."""
        made = tuple(routes)

        def replace() -> None:
            self.book.metrics.forget(map(str, self.backends.set_routes(made)))

        self._in_loop(replace)

    def set_keys(self, ring: KeyRing) -> None:
        """Replace the keys of clients. Answers in progress go on."""

        def replace() -> None:
            self.access.ring = ring

        self._in_loop(replace)

    def set_routers(self, states: Iterable[RouterState]) -> None:
        """Replace the routers. Requests in progress go on."""
        made = tuple(states)
        self._in_loop(lambda: self.backends.routers.set(made))

    def reported_requests(self) -> Mapping[str, Counts] | None:
        """Return the requests of the services that are scaled by them; None while the services are not known."""
        return self.backends.reported() if self.backends.are_known else None

    def _in_loop(self, change: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(change)

    def stop(self, *, grace_s: float = 0.0) -> None:
        """Close the listener, wait up to `grace_s` for the answers under way, close all connections, end the thread."""
        if self._thread.is_alive():
            self._end(grace_s)
        if self.ledger is not None:
            self.ledger.finish()

    def _end(self, grace_s: float) -> None:
        self.loop.call_soon_threadsafe(self._close_listener)
        deadline = time.monotonic() + grace_s
        while self.connections and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(START_S)

    # --- in the loop's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_later(SWEEP_S, self._sweep)
        self.loop.call_soon(self._health_checks.start)
        self.loop.call_soon(self._scraper.start)
        if self.ledger is not None:
            self.ledger.start()
        try:
            self.loop.run_forever()
        finally:
            self._close_sockets()
            self.loop.close()

    def _sweep(self) -> None:
        self.loop.call_later(SWEEP_S, self._sweep)
        now = self.loop.time()
        for connection in list(self.connections):
            try:
                connection.close_if_late(now)
            except Exception:
                log.exception("Could not check a connection for its limits of time")
                connection.end()

    def _close_listener(self) -> None:
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()

    def _close_sockets(self) -> None:
        """Close all sockets, also after a fault: the port must be free for the next gateway."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.end()
        self.backends.close()
        self._health_checks.stop()
        self.loop.run_until_complete(self.backends.routers.close())
        # Transports close their sockets in the next round of the loop.
        self.loop.run_until_complete(asyncio.sleep(0))
        if self.ledger is not None:
            self.ledger.close()
