"""An HTTP proxy before the API server that sees each write of a loop, and can act before or after each of them.

It serves plain HTTP to the loop and uses the loop's credentials at the API server. `on_write` runs in the middle of a
request: the loop has sent it, and has no response yet. Requests that a killed loop had sent are still delivered, but
they do not count as writes of the next loop.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import urllib3
import yaml

from kubeapi.config import connection_pool, kubeconfig_access

Moment = Literal["before", "after"]
_HOP = {"transfer-encoding", "connection", "content-length", "content-encoding"}
_OURS = {*_HOP, "host", "authorization"}


class WriteGate:
    """Forwards everything. `on_write(moment, method, path)` is called around each write of an object by a client that
    uses the latest kubeconfig.
    """

    def __init__(self, kubeconfig: pathlib.Path) -> None:
        access = kubeconfig_access(str(kubeconfig))
        self._target = access.server
        self._pool = connection_pool(access)
        self._authorization = access.authorization
        self.on_write: Callable[[Moment, str, str], None] = lambda *_: None
        self._kubeconfigs = 0
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def kubeconfig(self, to: pathlib.Path) -> pathlib.Path:
        """Write a kubeconfig for this proxy, which invalidates all earlier ones, and return its path."""
        self._kubeconfigs += 1
        url = f"http://127.0.0.1:{self._server.server_port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gate", "cluster": {"server": url}}],
            "users": [{"name": "gate", "user": {"token": str(self._kubeconfigs)}}],
            "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
            "current-context": "gate",
        }
        to.write_text(yaml.safe_dump(config))
        return to

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._pool.clear()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _OURS}
                if authorization := gate._authorization():
                    headers["Authorization"] = authorization
                is_latest = self.headers.get("Authorization") == f"Bearer {gate._kubeconfigs}"
                counts = is_latest and _is_write_of_an_object(self.command, self.path)
                if counts:
                    gate.on_write("before", self.command, self.path)
                with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
                    answer = gate._pool.request(
                        self.command,
                        gate._target + self.path,
                        body=body,
                        headers=headers,
                        retries=False,
                        preload_content=False,
                        timeout=urllib3.Timeout(connect=5.0, read=300.0),
                    )
                    if counts:
                        gate.on_write("after", self.command, self.path)
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        if name.lower() not in _HOP:
                            self.send_header(name, value)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while piece := answer.read1(65536):
                        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                    answer.release_conn()
                    return
                self.close_connection = True

            def do_GET(self) -> None:
                self._pass()

            def do_POST(self) -> None:
                self._pass()

            def do_PUT(self) -> None:
                self._pass()

            def do_PATCH(self) -> None:
                self._pass()

            def do_DELETE(self) -> None:
                self._pass()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: loops are killed in the middle of their requests."""


def _is_write_of_an_object(method: str, path: str) -> bool:
    """Return whether a request is a write of the provider, not of a status, Event, Lease or preview."""
    way, _, query = path.partition("?")
    if method not in ("PATCH", "DELETE") or "dryRun" in query:
        return False
    return not way.endswith("/status") and "/events" not in way and "/leases/" not in way
