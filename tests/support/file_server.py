"""An HTTP server of files with faults: cut connections, missing responses, errors, wrong ranges, a self-signed
certificate.
"""

from __future__ import annotations

import contextlib
import http.server
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Request:
    """One request that the server received."""

    method: str
    path: str
    range: str | None
    headers: dict[str, str]


@dataclass
class FileServer:
    """Serves one file under every path, or several by path, with ranges and an ETag, and counts requests.

    Faults are switched on by fields. A request for one byte is a query for the size: it is counted separately, and the
    faults of bodies do not affect it.
    """

    body: bytes
    etag: str = '"one"'
    files: dict[str, bytes] = field(default_factory=dict)
    """Bodies by decoded path; when there are any, other paths give status 404."""
    cut_after: int | None = None
    """Number of bytes of the next response to send before the connection is closed."""
    cut_each_after: int | None = None
    """The same, for every response."""
    fail_with: int | None = None
    fail_times: int | None = None
    """How often to fail; None: always."""
    retry_after_s: int | None = None
    refuse: Callable[[Request], str | None] | None = None
    """Returns the reason for a response with status 403."""
    redirect_to: str = ""
    """The base URL to which every request is redirected; the path is appended."""
    ranges: bool = True
    lie: str = ""
    """The fault of responses to ranges: `whole` answers 200 with the whole file, `shifted` with another range, `short`
    and `long` with another length than Content-Range names, `unsized` without a length, `wrong-tag` with another ETag;
    `plausible` sends wrong bytes with correct headers.
    """
    says_length: bool = True
    length_of_get: int | None = None
    """The Content-Length of responses to requests without a range, unless another field sets it."""
    bytes_per_s: float | None = None
    """The speed limit of each connection."""
    most_at_once: int | None = None
    """The number of concurrent bodies above which a request is answered with status 429."""
    chunk_pause_s: float = 0.0
    whole: int = 0
    """The number of responses that began at the first byte."""
    partial: int = 0
    probes: int = 0
    not_modified: int = 0
    sent_bytes: int = 0
    """Bytes of all bodies, without the responses to queries."""
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    _at_once: int = 0

    @property
    def root(self) -> str:
        """The server's address without a path."""
        return "/".join(self.url.split("/")[:3])

    def ranges_asked(self) -> list[str]:
        """The ranges of all requests that were not queries for the size, in order of arrival."""
        with self.lock:
            return [r.range for r in self.requests if r.range and r.range != "bytes=0-0"]

    def handle(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        request = Request(handler.command, handler.path, handler.headers.get("Range"), dict(handler.headers.items()))
        with self.lock:
            self.requests.append(request)
        asks = request.range == "bytes=0-0"
        body = self.files.get(unquote(handler.path.partition("?")[0])) if self.files else self.body
        if self._fails(handler, request, asks):
            return
        if body is None:
            handler.send_error(404)
            return
        if handler.headers.get("If-None-Match") == self.etag:
            self.not_modified += 1
            handler.send_response(304)
            handler.end_headers()
            return
        first, last, status = 0, len(body) - 1, 200
        wanted = _RANGE.fullmatch(request.range or "")
        if wanted and self.ranges and handler.headers.get("If-Range", self.etag) == self.etag:
            first, status = int(wanted[1]), 206
            last = min(int(wanted[2] or last), last)
        if first >= len(body) and status == 206:
            self._headers(handler, 416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": "0"})
            return
        if self.lie and status == 206 and not asks:
            self._lie(handler, body, first, last)
            return
        headers = {"Content-Length": str(last + 1 - first)} if self.says_length else {}
        if self.length_of_get is not None and not request.range:
            headers["Content-Length"] = str(self.length_of_get)
        if status == 206:
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        self._headers(handler, status, headers)
        if handler.command == "HEAD":
            return
        with self.lock:
            self.whole += status == 200
            self.partial += status == 206 and not asks
            self.probes += asks
            stop = self.cut_each_after if self.cut_after is None or asks else self.cut_after
            self.cut_after = self.cut_after if asks else None
        self._send(handler, body[first : last + 1], None if asks else stop, asks=asks)

    def _fails(self, handler: http.server.BaseHTTPRequestHandler, request: Request, asks: bool) -> bool:
        """Send an error or a redirect, if one is configured for this request."""
        with self.lock:
            status = self.fail_with if self.fail_times is None or self.fail_times > 0 else None
            if status and self.fail_times is not None:
                self.fail_times -= 1
            if self.most_at_once is not None and not asks and self._at_once >= self.most_at_once:
                status = 429
        if self.refuse is not None and (why := self.refuse(request)):
            handler.send_error(403, why)
            return True
        if status:
            handler.send_response(status)
            if self.retry_after_s is not None:
                handler.send_header("Retry-After", str(self.retry_after_s))
            handler.end_headers()
            return True
        if self.redirect_to:
            handler.send_response(302)
            handler.send_header("Location", self.redirect_to + handler.path)
            handler.end_headers()
            return True
        return False

    def _headers(self, handler: http.server.BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        handler.send_response(status)
        if self.etag and "ETag" not in headers:
            handler.send_header("ETag", self.etag)
        if self.ranges:
            handler.send_header("Accept-Ranges", "bytes")
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    def _lie(self, handler: http.server.BaseHTTPRequestHandler, body: bytes, first: int, last: int) -> None:
        """Answer a range wrongly, so that a client that trusts the response writes a wrong file."""
        size = last + 1 - first
        said, payload, status = f"bytes {first}-{last}/{len(body)}", b"?" * size, 206
        headers = {}
        if self.lie == "whole":
            payload, status = body, 200
        elif self.lie == "shifted":
            said = f"bytes {first + 1}-{last + 1}/{len(body)}"
        elif self.lie == "short":
            payload = payload[: size // 2]
        elif self.lie == "long":
            payload += b"?" * 300_000
        elif self.lie == "wrong-tag":
            headers["ETag"] = '"another"'
        elif self.lie == "unsized":
            payload += b"?" * 300_000
        if status == 206:
            headers["Content-Range"] = said
        if self.lie != "unsized":
            headers["Content-Length"] = str(len(payload))
        self._headers(handler, status, headers)
        self._send(handler, payload, None, asks=False)

    def _send(
        self, handler: http.server.BaseHTTPRequestHandler, payload: bytes, stop: int | None, *, asks: bool
    ) -> None:
        if stop is not None:
            payload = payload[:stop]
            handler.close_connection = True
        with self.lock:
            self._at_once += not asks
        try:
            step = min(100_000, int((self.bytes_per_s or 2e6) / 20))
            for at in range(0, len(payload), step):
                piece = payload[at : at + step]
                if not asks:
                    # The count is raised before the bytes are sent: a client never holds more than is counted.
                    with self.lock:
                        self.sent_bytes += len(piece)
                handler.wfile.write(piece)
                if limit := self.bytes_per_s:
                    time.sleep(len(piece) / limit)
                if self.chunk_pause_s and not asks:
                    time.sleep(self.chunk_pause_s)
        finally:
            with self.lock:
                self._at_once -= not asks


@contextlib.contextmanager
def serving(body: bytes, certificate: Path | None = None) -> Iterator[FileServer]:
    """Serve on loopback until the block ends; with a certificate (and its key in one file) over TLS."""
    state = FileServer(body)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                state.handle(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *args: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    state.url = f"{scheme}://127.0.0.1:{httpd.server_address[1]}/weights/m.gguf"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
