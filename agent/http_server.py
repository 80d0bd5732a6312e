"""An HTTP server with limits on connections, heads, bodies and times, and with optional TLS.

All small servers of the project use it: the agent's API (`agent.server.api.http_api`), health and metrics
(`automation.telemetry.health`), the gateway's metrics (`gateway.metrics_server`), the conversion webhook
(`automation.webhook.server`), the external metrics API (`automation.external_metrics.server`) and the key keeper
(`automation.engine.key_keeper`).

Every connection has a thread, which also does the TLS handshake, so that a client with an unfinished handshake does
not delay others.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog

_TEXT = "text/plain; charset=utf-8"
POLL_S = 0.5
"""The longest time, in seconds, until a running server notices a call of `stop`."""
_PIECE_BYTES = 64 * 1024

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Bounds:
    """The limits of a server for its clients."""

    connections: int = 64
    per_client: int = 24
    """Connections from one address, so that one client cannot block the others."""
    head_bytes: int = 32 * 1024
    body_bytes: int = 0
    handshake_s: float = 10.0
    idle_s: float = 30.0
    """Time until the first byte of the next request. Then the server closes the connection."""
    request_s: float = 30.0
    """Time from the first byte of a request until the request is complete."""
    write_s: float = 30.0
    """Time in which a client must receive a response."""


class ClientLeft(Exception):
    """The client closed its connection or sent its body too slowly. No response is sent."""


class BodyRefused(Exception):
    """The body is not read: it has no Content-Length (411), or it is larger than the bounds allow (413)."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class BoundedServer(ThreadingHTTPServer):
    """Listens immediately, and answers from `start` to `stop`. Raises OSError if the port is in use."""

    daemon_threads = True
    # A server that starts again must not wait for the end of old connections.
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BoundedHandler],
        *,
        name: str,
        bounds: Bounds,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`name` is that of its thread. `tls` is called for each connection, so that a new certificate is used
        immediately."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.bounds = bounds
        self._tls = tls
        self._clients: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(address, handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name=name, daemon=True)

    def start(self) -> None:
        """Start to answer; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to accept connections, and close the port."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(timeout=5.0)
        self.server_close()

    def server_bind(self) -> None:
        # HTTPServer's method would look up a name in DNS, which may be slow and is not needed here.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        client = str(client_address[0])
        with self._lock:
            full = self._clients.total() >= self.bounds.connections or self._clients[client] >= self.bounds.per_client
            if not full:
                self._clients[client] += 1
        if full:
            _log.warning("Refused a connection, because there are too many", client=client, server=self._thread.name)
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
        request.settimeout(self.bounds.handshake_s)
        secured = self._tls().wrap_socket(request, server_side=True)
        try:
            super().finish_request(secured, client_address)
        finally:
            self.shutdown_request(secured)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        error = sys.exc_info()[1]
        client, server = str(client_address[0]), self._thread.name
        # A client that disconnects, does not use TLS, is too slow or sends too much is no error of this process.
        # Everything else is.
        expected = (ConnectionError, TimeoutError, ssl.SSLError, http.client.LineTooLong, ClientLeft)
        if isinstance(error, expected):
            _log.debug("A connection ended with an error", client=client, server=server, error=repr(error))
        else:
            _log.exception("Failed to serve a connection", client=client, server=server)


class BoundedHandler(BaseHTTPRequestHandler):
    """Reads requests within the server's bounds. Subclasses answer in `do_GET` and similar methods, by `answer`."""

    server: BoundedServer
    protocol_version = "HTTP/1.1"
    server_version = "herdsman"
    sys_version = ""
    # Head and content are two writes. Nagle's algorithm would hold the second until the client's delayed ACK, 40 ms.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._bounds = self.server.bounds
        self._limit = _Limit(self.connection)
        self._body_was_read = False
        self.rfile = self._reader = io.BufferedReader(self._limit)

    def handle_one_request(self) -> None:
        self._body_was_read = False
        self._limit.begin(self._bounds.head_bytes, self._bounds.idle_s)
        try:
            # Returns at once if a part of the request was received together with the previous one.
            has_begun = bool(self._reader.peek(1))
        except TimeoutError:
            has_begun = False
        if not has_begun:
            self.close_connection = True
            return
        self._limit.end_in(self._bounds.request_s)
        super().handle_one_request()

    def body(self) -> bytes:
        """Read the body. Raises BodyRefused before a byte of it is read, or ClientLeft."""
        written = self.headers.get("Content-Length", "0")
        if self.headers.get("Transfer-Encoding") or not re.fullmatch(r"[0-9]{1,18}", written):
            raise BodyRefused(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length")
        length = int(written)
        if length > self._bounds.body_bytes:
            most = self._bounds.body_bytes
            raise BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {most} bytes")
        self._limit.allow(length)
        try:
            body = self.rfile.read(length)
        except OSError as error:
            raise ClientLeft from error
        if len(body) < length:
            raise ClientLeft
        self._body_was_read = True
        return body

    def answer(
        self, status: int, content: bytes, content_type: str = _TEXT, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a response. The connection ends after it if the request's body was not read."""
        if not self._body_was_read and (
            self.headers.get("Content-Length", "0") != "0" or self.headers.get("Transfer-Encoding")
        ):
            # Otherwise the unread body would be read as the next request.
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        deadline = time.monotonic() + self._bounds.write_s
        self.connection.settimeout(self._bounds.write_s)
        self.end_headers()
        for start in range(0, len(content), _PIECE_BYTES):
            # A timeout of a TLS socket is that of one record, which a client may receive as slowly as it wants.
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            self.wfile.write(content[start : start + _PIECE_BYTES])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Log nothing: probes come every few seconds, and the path of the webhook is a secret."""


class _Limit(io.RawIOBase):
    """Reads a limited number of bytes from a socket until a deadline.

    Exceeding it raises the standard library's errors.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = 0
        self._deadline = 0.0

    def begin(self, limit: int, seconds: float) -> None:
        self._left = limit
        self.end_in(seconds)

    def end_in(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def allow(self, more: int) -> None:
        self._left = max(self._left, 0) + more

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            # The base class answers 431 if headers are too long, and nothing if the request line is.
            raise http.client.LineTooLong("head")
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(remaining)
        count = self._connection.recv_into(memoryview(buffer))
        self._left -= count
        return count
