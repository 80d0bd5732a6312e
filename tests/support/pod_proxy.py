"""A real HTTP server in place of the API server's pod proxy, with scripted engines behind it.

It serves tests of the loop's requests to replicas. The paths are those of the API server; its own errors (403, 503) are
`Status` objects. A real kubelet and real engines are used in tests/node.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from kubeapi.client import KubeClient
from kubeapi.config import Access, Endpoint

_PROXIED = re.compile(r"/api/v1/namespaces/([^/]+)/pods/(?:(https):)?([^/:]+):(\d+)/proxy(/.*)")


@dataclass(frozen=True)
class Say:
    """One response of an engine."""

    status: int = 200
    body: Any = None
    after_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


def token(text: str = "Hi", tokens: int = 1) -> Say:
    """A chat completion of one token."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    return Say(body={"choices": [choice], "usage": {"completion_tokens": tokens}})


def api_status(code: int, reason: str, message: str = "") -> Say:
    """A response of the API server itself."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return Say(code, {**body, "message": message or reason})


Engine = Callable[[str, str, Any], Say]
"""Returns the response to (method, path, JSON body or None)."""


class PodProxy:
    """Serves `engines` by pod name; requests for other paths are recorded in `others` and answered by `other`."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.asked: list[tuple[str, str, str]] = []
        """(pod, method, path) of each request to a pod."""
        self.addresses: list[tuple[str, str, int]] = []
        """(scheme, pod, port) of each request to a pod; an empty scheme is plain HTTP."""
        self.others: list[tuple[str, str, Any]] = []
        """(method, path, body) of each request to the API itself."""
        self.other: Callable[[str, str, Any], Say] = lambda method, path, body: Say(body={})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._answer(self)

            do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base class asks for these names

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # some tests have clients that time out

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        endpoint = Endpoint(server=f"http://127.0.0.1:{self._server.server_address[1]}")
        self.client = KubeClient(Access(lambda: endpoint))

    def __enter__(self) -> PodProxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, pod: str, path: str = "") -> int:
        """The number of requests to a pod, for one path or for all."""
        return sum(1 for name, _, asked in self.asked if name == pod and asked.startswith(path))

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        match = _PROXIED.fullmatch(handler.path)
        if match is None:
            self.others.append((handler.command, handler.path, body))
            say = self.other(handler.command, handler.path, body)
        else:
            _, scheme, pod, port, path = match.groups()
            self.addresses.append((scheme or "", pod, int(port)))
            self.asked.append((pod, handler.command, path))
            engine = self.engines.get(pod)
            missing = api_status(404, "NotFound", f'pods "{pod}" not found')
            say = missing if engine is None else engine(handler.command, path, body)
        if say.after_s:
            time.sleep(say.after_s)
        data = say.body if isinstance(say.body, bytes) else b"" if say.body is None else json.dumps(say.body).encode()
        handler.send_response(say.status)
        for name, value in say.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
