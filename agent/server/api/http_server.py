"""An HTTP server with limits on connections, heads, bodies and times, and with optional TLS.

Used by `agent.server.api.http_api`. Every connection has a thread, which also does the TLS handshake, so that a client
with an unfinished handshake does not delay others.
"""

from __future__ import annotations

import http.client
import io
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog

MAX_CONNECTIONS = 64
MAX_PER_CLIENT = 24
"""Connections from one address, so that one client cannot block the others."""
MAX_HEAD_BYTES = 32 * 1024
HANDSHAKE_S = 10.0
REQUEST_S = 30.0
"""Time from the end of one response until the next request is complete, including the wait for it."""
WRITE_S = 30.0

_log = structlog.get_logger(__name__)


class ClientLeft(Exception):
    """The client closed its connection or sent its body too slowly. No response is sent."""


class BoundedServer(ThreadingHTTPServer):
    """Listens immediately. Raises OSError if the port is in use."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BoundedHandler],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_per_client: int = MAX_PER_CLIENT,
    ) -> None:
        """`tls` is called for each connection, so that a new certificate is used immediately."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._max, self._max_per_client = max_connections, max_per_client
        self._clients: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer's method would look up a name in DNS, which may be slow and is not needed here.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        client = str(client_address[0])
        with self._lock:
            full = self._clients.total() >= self._max or self._clients[client] >= self._max_per_client
            if not full:
                self._clients[client] += 1
        if full:
            _log.warning("Refused a connection, because there are too many", client=client)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started.
            self._leave(client)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(str(client_address[0]))

    def _leave(self, client: str) -> None:
        with self._lock:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(HANDSHAKE_S)
        secured = self._tls().wrap_socket(request, server_side=True)
        try:
            super().finish_request(secured, client_address)
        finally:
            self.shutdown_request(secured)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        error = sys.exc_info()[1]
        # A client that disconnects, does not use TLS or is too slow is not an error of the agent. Everything else is.
        if isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError, ClientLeft)):
            _log.debug("A connection ended with an error", client=str(client_address[0]), error=repr(error))
        else:
            _log.exception("Failed to serve a connection", client=str(client_address[0]))


class BoundedHandler(BaseHTTPRequestHandler):
    """Reads requests within limits. Subclasses answer in `do_GET` and similar methods."""

    protocol_version = "HTTP/1.1"
    server_version = "herdsman-agent"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self._limit = _Limit(self.connection)
        self.rfile = io.BufferedReader(self._limit)

    def handle_one_request(self) -> None:
        self._limit.begin(MAX_HEAD_BYTES)
        super().handle_one_request()

    def read_body(self, length: int) -> bytes:
        """Read the body. The caller has checked `length`. Raises ClientLeft."""
        self._limit.allow(length)
        try:
            body = self.rfile.read(length)
        except OSError as error:
            raise ClientLeft from error
        if len(body) < length:
            raise ClientLeft
        return body

    def write(self, content: bytes) -> None:
        """Send content. The connection of a client that does not receive it in time is closed."""
        self.connection.settimeout(WRITE_S)
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        _log.debug("Answered a request", line=format % args)


class _Limit(io.RawIOBase):
    """Reads a limited number of bytes from a socket until a deadline.

    Exceeding it raises the standard library's errors.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = 0
        self._deadline = 0.0

    def begin(self, limit: int) -> None:
        self._left, self._deadline = limit, time.monotonic() + REQUEST_S

    def allow(self, more: int) -> None:
        self._left = max(self._left, 0) + more

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            # The base class answers 431.
            raise http.client.LineTooLong("head")
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(remaining)
        count = self._connection.recv_into(memoryview(buffer))
        self._left -= count
        return count
