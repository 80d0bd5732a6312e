"""A small HTTPS server for calls of the API server: a bounded number of connections, and a replaceable certificate.

`automation.webhook.server` and `automation.external_metrics.server` add the handlers of requests.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import socketserver
import ssl
import tempfile
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMEOUT_S = 30.0
"""Timeout of the TLS handshake, and of each read."""


class TlsServer(ThreadingHTTPServer):
    """The listening socket and its threads. Raises OSError when the port is taken.

    Until `serve_with` is called, each connection is closed at once.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], handler: type[TlsHandler], *, max_connections: int) -> None:
        """Further connections than `max_connections` are closed at once."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(max_connections)
        self._tls: ssl.SSLContext | None = None
        super().__init__(address, handler)

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


class TlsHandler(BaseHTTPRequestHandler):
    """Answers requests, and logs none."""

    protocol_version = "HTTP/1.1"
    server_version = "herdsman"
    sys_version = ""
    timeout = TIMEOUT_S

    def answer(
        self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8", *, close: bool = False
    ) -> None:
        """Send an answer. `close`: the body of the request was not read."""
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
        """Log nothing: the request line may contain a secret path."""


def serving_context(files: Mapping[str, bytes]) -> ssl.SSLContext:
    """Make the TLS context of a server from `tls.key` and `tls.crt`.

    The ssl module reads a key only from a file, which is deleted right after that.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as directory:
        chain = pathlib.Path(directory, "chain.pem")
        chain.touch(mode=0o600)
        chain.write_bytes(files["tls.key"] + files["tls.crt"])
        context.load_cert_chain(chain)
    return context
