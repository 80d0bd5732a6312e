"""Listens for ConversionReviews over TLS. `registration` tells the API server the address.

The API server usually sends no credentials to a webhook, so the path is the secret. It is random for each start and
stored in the CRD, which usually only administrators read. A request with another path gets 404 before its body is read.
A conversion reveals nothing: it returns the data that was sent.
"""

from __future__ import annotations

import hmac
import threading
from http import HTTPStatus

from automation.tls_server import TlsHandler, TlsServer
from automation.webhook.review import ReviewInvalid, answer

MAX_BODY = 32 << 20
"""Bytes of one request. The API server sends a whole list at once; a list of 2,000 services is 10 MB."""
MAX_CONNECTIONS = 32
MAX_CONVERSIONS = 2
"""Conversions at the same time, so that several large lists do not fill the memory."""


class ReviewServer(TlsServer):
    """The listening socket and its threads. Raises OSError when the port is taken."""

    def __init__(self, address: tuple[str, int], path: str) -> None:
        """`path` receives the reviews; it must be secret."""
        self.path = path
        self.conversions = threading.BoundedSemaphore(MAX_CONVERSIONS)
        super().__init__(address, _Handler, max_connections=MAX_CONNECTIONS)


class _Handler(TlsHandler):
    server: ReviewServer

    def do_POST(self) -> None:  # noqa: N802 - the name that the base class calls
        if not hmac.compare_digest(self.path.partition("?")[0].encode(), self.server.path.encode()):
            self.answer(HTTPStatus.NOT_FOUND, b"not found\n", close=True)
            return
        length = self._length()
        if length is None:
            self.answer(HTTPStatus.LENGTH_REQUIRED, b"send a Content-Length\n", close=True)
        elif length > MAX_BODY:
            self.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"the review is too large\n", close=True)
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
                self.answer(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
                return
        self.answer(HTTPStatus.OK, answered, "application/json")

    def _length(self) -> int | None:
        written = self.headers.get("Content-Length") or ""
        if "Transfer-Encoding" in self.headers or not (written.isascii() and written.isdigit()):
            return None
        return int(written[:20])
