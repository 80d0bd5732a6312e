"""Listens for ConversionReviews over TLS. `registration` tells the API server the address.

The API server usually sends no credentials to a webhook, so the path is the secret. It is random for each start and
stored in the CRD, which usually only administrators read. A request with another path gets 404 before its body is read.
A conversion reveals nothing: it returns the data that was sent.
"""

from __future__ import annotations

import hmac
import ssl
import threading
from http import HTTPStatus

from agent.http_server import BodyRefused, BoundedHandler, BoundedServer, Bounds
from automation.webhook.review import ReviewInvalid, answer

BOUNDS = Bounds(connections=256, per_client=256, body_bytes=32 << 20, handshake_s=30.0, idle_s=120.0)
"""The API server is the only client and sends a whole list at once; a list of 2,000 services is 10 MB.

It opens a connection for each conversion that runs, and a refused one fails the request of its user. It closes idle
connections after 90 s (k8s.io/apimachinery, SetTransportDefaults). A server that closes one earlier may do so at the
moment of the next conversion, which fails then.
"""
MAX_CONVERSIONS = 2
"""Conversions at the same time, so that several large lists do not fill the memory."""


class ReviewServer(BoundedServer):
    """The listening socket and its threads. Raises OSError when the port is taken."""

    def __init__(self, address: tuple[str, int], path: str, context: ssl.SSLContext) -> None:
        """`path` receives the reviews; it must be secret."""
        self.path = path
        self.conversions = threading.BoundedSemaphore(MAX_CONVERSIONS)
        self._context = context
        super().__init__(address, _Handler, name="conversion", bounds=BOUNDS, tls=lambda: self._context)

    def serve_with(self, context: ssl.SSLContext) -> None:
        """Use this certificate for new connections."""
        self._context = context


class _Handler(BoundedHandler):
    server: ReviewServer

    def do_POST(self) -> None:  # noqa: N802 - the base class calls it so
        if not hmac.compare_digest(self.path.partition("?")[0].encode(), self.server.path.encode()):
            self.answer(HTTPStatus.NOT_FOUND, b"not found\n")
            return
        try:
            with self.server.conversions:
                answered = answer(self.body())
        except BodyRefused as error:
            self.answer(error.status, f"{error}\n".encode())
        except ReviewInvalid as error:
            self.answer(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
        else:
            self.answer(HTTPStatus.OK, answered, "application/json")
