"""Gateways in this process and in one of their own, clients of them, and engines that send what the test wants."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.routers.runtime import RouterState
from gateway.server import GatewayServer
from tests.support.raw_engine import RawEngine, requests
from tests.support.supervising import free_port

Answer = Callable[[socket.socket, bytes, bytes], None]
CHAT = "/v1/chat/completions"


def says(status: str, body: bytes, *headers: bytes) -> Answer:
    def answer(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        lines = [b"HTTP/1.1 " + status.encode(), b"Content-Type: application/json", *headers]
        lines.append(b"Content-Length: %d" % len(body))
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    return answer


class Engine(RawEngine):
    """Answers each request with `answer`, and keeps the requests."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[tuple[bytes, bytes]] = []
        super().__init__(self._talk)

    def _talk(self, connection: socket.socket) -> None:
        for head, body in requests(connection):
            self.seen.append((head, body))
            self.answer(connection, head, body)


OK = says("200 OK", b'{"ok": true}')


class Front:
    """A gateway, and a client of it."""

    def __init__(
        self, server: GatewayServer, tls: ssl.SSLContext | None = None, routers: Iterable[RouterState] | None = ()
    ) -> None:
        """`routers` None: they are not known."""
        self.server = server
        self.port = server.start("127.0.0.1", 0, tls)
        if routers is not None:
            server.set_routers(routers)

    def serve(self, **engines: list[Engine]) -> None:
        """Serve a model for each name, with these replicas."""
        self.serve_routes(
            *(
                Route(Model(ServiceName("prod", name)), tuple(each.target for each in replicas), prefix_hash=False)
                for name, replicas in engines.items()
            )
        )

    def serve_routes(self, *routes: Route) -> None:
        self.server.set_routes(routes)

    def ask(self, body: Any, path: str = CHAT, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Send a request; return status, headers and the JSON of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@contextlib.contextmanager
def gateway_process(kubeconfig: Path, log: Path, *arguments: str) -> Iterator[str]:
    """Run `herdsman gateway` on a free port of loopback; yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "automation.cli", "gateway", "--listen", f"127.0.0.1:{port}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--kubeconfig", str(kubeconfig)], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        print(log.read_text())


def completion(address: str, name: str, *, timeout_s: float = 60.0, **fields: Any) -> tuple[int, Any]:
    """Ask a running gateway for four tokens of a model; return the status and the JSON of the answer."""
    asked = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4} | fields
    request = urllib.request.Request(f"{address}{CHAT}", json.dumps(asked).encode())
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)
    except OSError:
        return 0, None
