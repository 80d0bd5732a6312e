"""An HTTP relay before a real API server that refuses requests on demand: many 429 and 409 at any time.

It serves plain HTTP to the client and authenticates at the API server with the credentials of a kubeconfig.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import urllib3
import yaml

from kubeapi.config import connection_pool, kubeconfig_access

REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}
_OWN_HEADERS = ("host", "connection", "transfer-encoding", "content-length", "authorization", "accept-encoding")


class Storm:
    """`refuse(method, path)` returns the status with which to refuse a request, or 0. Use it as a context manager."""

    def __init__(self, kubeconfig: pathlib.Path) -> None:
        self._access = kubeconfig_access(str(kubeconfig))
        self._pool = connection_pool(self._access)
        self.refuse: Callable[[str, str], int] = lambda method, path: 0
        self.refused: Counter[int] = Counter()
        """The number of refused requests, by status."""
        self.requests = 0
        """The number of requests, refused or not; a watch counts as one."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._pass(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base class asks for these names

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # the client was killed in the middle of a watch

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._pool.clear()

    def kubeconfig(self, to: pathlib.Path) -> pathlib.Path:
        """Write a kubeconfig of this relay, and return its path."""
        cluster = {"name": "storm", "cluster": {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}}
        context = {"name": "storm", "context": {"cluster": "storm", "user": "storm"}}
        user = {"name": "storm", "user": {"token": "unused"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "storm"}
        to.write_text(yaml.safe_dump({**config, "clusters": [cluster], "contexts": [context], "users": [user]}))
        return to

    def _pass(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length) if length else None
        status = self.refuse(handler.command, handler.path)
        self.requests += 1
        if status:
            self.refused[status] += 1
            self._say(handler, status)
            return
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in _OWN_HEADERS}
        if authorization := self._access.authorization():
            headers["Authorization"] = authorization
        answer = self._pool.request(
            handler.command,
            self._access.server + handler.path,
            body=body,
            headers=headers,
            preload_content=False,
            retries=False,
            redirect=False,
        )
        with contextlib.closing(answer):
            self._hand_on(handler, answer)

    @staticmethod
    def _say(handler: BaseHTTPRequestHandler, status: int) -> None:
        reason = REASONS[status]
        told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason}
        data = json.dumps({**told, "message": f"a storm of {reason}"}).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        if status == 429:
            handler.send_header("Retry-After", "1")
        handler.end_headers()
        handler.wfile.write(data)

    @staticmethod
    def _hand_on(handler: BaseHTTPRequestHandler, answer: urllib3.BaseHTTPResponse) -> None:
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _OWN_HEADERS:
                handler.send_header(name, value)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while piece := answer.read1(65536):
            handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")
