"""A real HTTP server of files with the faults that downloads must survive."""

from __future__ import annotations

import re
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from tests.support.certificates import own_certificate

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class File:
    """The content of one path, and its faults."""

    content: bytes = b""
    etag: str | None = '"v1"'
    new_etag_each_time: bool = False
    ranges: bool = True
    honours_if_range: bool = True
    says_length: bool = True
    cut_after: int | None = None
    """Close the connection after this many bytes of a body…"""
    cuts: int = 0
    """…this many times."""
    bytes_per_s: float | None = None
    stall: threading.Event | None = None
    """The response waits for this event before its body."""
    statuses: list[int] = field(default_factory=list)
    """The statuses of the first responses, one for each request."""
    redirect: str | None = None
    claims_length: int | None = None
    """A wrong Content-Length."""


@dataclass(frozen=True)
class Request:
    """One request that the server received."""

    path: str
    range: str | None
    headers: dict[str, str]
    bytes_sent: list[int]


class FileServer:
    """Serves `files` by path, by default on loopback; `requests` records each request. A context manager."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> None:
        self.files: dict[str, File] = {}
        self.requests: list[Request] = []
        self.lock = threading.Lock()
        self._closed = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # some tests close connections early

        self._server = Server((address, 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "https" if tls else "http"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str, *, host: str | None = None) -> str:
        return f"{self._scheme}://{host or str(self._server.server_address[0])}:{self.port}{path}"

    def serve(self, path: str, file: File, *, host: str | None = None) -> str:
        """Serve `file` under `path` from now on and return its URL."""
        self.files[path] = file
        return self.url(path, host=host)

    def sent(self, path: str) -> int:
        """The number of body bytes that were sent for a path."""
        with self.lock:
            return sum(request.bytes_sent[0] for request in self.requests if request.path == path)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        request = Request(
            path, handler.headers.get("Range"), {name.title(): value for name, value in handler.headers.items()}, [0]
        )
        with self.lock:
            self.requests.append(request)
            file = self.files.get(path)
            status = file.statuses.pop(0) if file is not None and file.statuses else 0
        if file is None or status:
            self._plain(handler, status or 404)
        elif file.redirect is not None:
            handler.send_response(302)
            handler.send_header("Location", file.redirect)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        else:
            self._body(handler, file, request)

    @staticmethod
    def _plain(handler: BaseHTTPRequestHandler, status: int) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def _body(self, handler: BaseHTTPRequestHandler, file: File, request: Request) -> None:
        content, first = file.content, 0
        asked = _RANGE.fullmatch(request.range or "") if file.ranges else None
        condition = handler.headers.get("If-Range")
        if asked and condition and file.honours_if_range and condition != file.etag:
            asked = None
        if asked and int(asked[1]) >= len(file.content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(file.content)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if asked:
            first = int(asked[1])
            last = min(int(asked[2]) if asked[2] else len(content) - 1, len(content) - 1)
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            content = content[first : last + 1]
        else:
            handler.send_response(200)
        if file.new_etag_each_time:
            handler.send_header("ETag", f'"{len(self.requests)}"')
        elif file.etag:
            handler.send_header("ETag", file.etag)
        if file.says_length:
            handler.send_header("Content-Length", str(file.claims_length or len(content)))
        else:
            handler.send_header("Connection", "close")
        handler.close_connection = not file.says_length or file.claims_length is not None
        handler.end_headers()
        self._send(handler, file, request, content)

    def _send(self, handler: BaseHTTPRequestHandler, file: File, request: Request, content: bytes) -> None:
        if file.stall is not None and len(content) > 1:
            while not file.stall.wait(0.02):
                if self._closed.is_set():
                    return
        with self.lock:
            cut = file.cut_after is not None and file.cuts > 0 and len(content) > file.cut_after
            if cut:
                file.cuts -= 1
        if cut:
            content = content[: file.cut_after]
            handler.close_connection = True
        step = len(content) if file.bytes_per_s is None else max(1, int(file.bytes_per_s / 50))
        for at in range(0, len(content), max(1, step)):
            piece = content[at : at + step]
            # The count is raised before the bytes are sent: a client never holds more than is counted.
            request.bytes_sent[0] += len(piece)
            handler.wfile.write(piece)
            if file.bytes_per_s is not None:
                time.sleep(len(piece) / file.bytes_per_s)
            if self._closed.is_set():
                return


def self_signed(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Create a certificate for 127.0.0.1: the server's context, and the PEM file for clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own_certificate(directory))
    return context, directory / "ca.crt"
