"""Listens for ConversionReviews over TLS. `registration` tells the API server the address.

The API server usually sends no credentials to a webhook, so the path is the secret. It is random for each start and
stored in the CRD, which usually only administrators read. A request with another path gets 404 before its body is read.
A conversion reveals nothing: it returns the data that was sent.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import socketserver
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from automation.webhook.review import ReviewInvalid, answer

MAX_BODY = 32 << 20
"""Bytes of one request. The API server sends a whole list at once; a list of 2,000 services is 10 MB."""
MAX_CONNECTIONS = 32
MAX_CONVERSIONS = 2
"""Conversions at the same time, so that several large lists do not fill the memory."""
TIMEOUT_S = 30.0
"""Timeout of the TLS handshake, and of each read."""


class ReviewServer(ThreadingHTTPServer):
    """The listening socket and its threads. Raises OSError when the port is taken."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], path: str) -> None:
        """`path` receives the reviews; it must be secret."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.path = path
        self.conversions = threading.BoundedSemaphore(MAX_CONVERSIONS)
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._tls: ssl.SSLContext | None = None
        super().__init__(address, _Handler)

    def serve_with(self, context: ssl.SSLContext) -> None:
        """Use this certificate for new connections."""
        self._tls = context

    def server_bind(self) -> None:
        # HTTPServer's method looks up a name in DNS, which may take long, and the name is not used.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None or not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started.
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        assert self._tls is not None
        request.settimeout(TIMEOUT_S)
        # In the connection's thread, so that a slow client delays no others.
        secured = self._tls.wrap_socket(request, server_side=True)
        try:
            super().finish_request(secured, client_address)
        finally:
            self.shutdown_request(secured)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects, speaks no TLS or is too slow."""


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    protocol_version = "HTTP/1.1"
    server_version = "herdsman"
    sys_version = ""
    timeout = TIMEOUT_S

    def do_POST(self) -> None:
        if not hmac.compare_digest(self.path.partition("?")[0].encode(), self.server.path.encode()):
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n", close=True)
            return
        length = self._length()
        if length is None:
            self._answer(HTTPStatus.LENGTH_REQUIRED, b"send a Content-Length\n", close=True)
        elif length > MAX_BODY:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"the review is too large\n", close=True)
        else:
            self._convert(length)

    def _convert(self, length: int) -> None:
        with self.server.conversions:
            body = self.rfile.read(length)
            if len(body) < length:
                self.close_connection = True
                return
            try:
                answered = answer(body)
            except ReviewInvalid as error:
                self._answer(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
                return
        self._answer(HTTPStatus.OK, answered, "application/json")

    def _length(self) -> int | None:
        written = self.headers.get("Content-Length") or ""
        if "Transfer-Encoding" in self.headers or not (written.isascii() and written.isdigit()):
            return None
        return int(written[:20])

    def _answer(
        self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8", *, close: bool = False
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if close:
            # Otherwise the unread body would be parsed as the next request.
            self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's own name for it
        """Log nothing: the request line contains the path."""
