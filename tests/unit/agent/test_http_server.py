"""The HTTP server of agent, loop and webhook: its bounds against real clients on loopback, with and without TLS."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent import http_server
from agent.http_server import BodyRefused, BoundedHandler, BoundedServer, Bounds
from agent.server.api import self_signed

ROOT = Path(__file__).parents[3]
PATIENT_S = 60.0
LARGE = b"x" * (32 << 20)
"""More than the buffers of a connection on loopback hold."""

Start = Callable[..., BoundedServer]


class Echo(BoundedHandler):
    def do_GET(self) -> None:
        if self.path == "/nagle":
            waits = not self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            self.answer(200, str(waits).encode())
            return
        self.answer(200, LARGE if self.path == "/large" else b"ok")

    def do_PUT(self) -> None:
        if self.path == "/unread":
            self.answer(401, b"")
            return
        try:
            self.answer(200, self.body())
        except BodyRefused as error:
            self.answer(error.status, str(error).encode())


def context_of(directory: Path, name: str) -> ssl.SSLContext:
    directory.mkdir()
    certificate, key = directory / "tls.crt", directory / "tls.key"
    for path, content in zip((certificate, key), self_signed.make([name]), strict=True):
        path.write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    directory = tmp_path_factory.mktemp("tls")
    return context_of(directory / "first", "first"), context_of(directory / "second", "second")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(http_server, "POLL_S", 0.01)
    started: list[BoundedServer] = []

    def serve(bounds: Bounds, tls: Callable[[], ssl.SSLContext] | None = None) -> BoundedServer:
        server = BoundedServer(("127.0.0.1", 0), Echo, name="echo", bounds=bounds, tls=tls)
        server.start()
        started.append(server)
        return server

    yield serve
    for each in started:
        each.stop()


def connect(server: BoundedServer, *, tls: bool = False) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENT_S)
    if not tls:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def ask(server: BoundedServer, *, tls: bool = False) -> bytes:
    """Return the whole answer; empty if the server refused the connection."""
    with contextlib.suppress(OSError), connect(server, tls=tls) as client:
        client.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        return everything(client)
    return b""


def everything(client: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := client.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


def answer_of(client: socket.socket) -> bytes:
    """Return one answer; the connection stays."""
    received = b""
    while not received.endswith(b"\r\n\r\nok"):
        part = client.recv(1 << 16)
        assert part, "the server closed the connection"
        received += part
    return received


def trickle(client: socket.socket, start: bytes) -> None:
    """Send a byte now and then until the server ends the connection; fail after a minute."""
    deadline = time.monotonic() + PATIENT_S
    with contextlib.suppress(OSError):
        client.sendall(start)
        while time.monotonic() < deadline:
            client.sendall(b"X")
            time.sleep(0.02)
    assert time.monotonic() < deadline, "the server waits for a client that sends a byte now and then"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "start_of_request", [b"GET / HTTP/1.1\r\nX-A: ", b"PUT / HTTP/1.1\r\nContent-Length: 9000\r\n\r\n"]
)
def test_a_client_that_sends_single_bytes_gets_no_more_time(
    start: Start, contexts: tuple[ssl.SSLContext, ...], tls: bool, start_of_request: bytes
) -> None:
    server = start(Bounds(request_s=0.2, body_bytes=10_000), (lambda: contexts[0]) if tls else None)
    with connect(server, tls=tls) as slow:
        trickle(slow, start_of_request)
    assert b"200" in ask(server, tls=tls)


def test_an_idle_connection_ends(start: Start) -> None:
    server = start(Bounds(idle_s=3.0))
    with connect(server) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert everything(idle).endswith(b"ok")


@pytest.mark.parametrize("tls", [False, True])
def test_the_wait_between_requests_is_not_time_of_a_request(
    start: Start, contexts: tuple[ssl.SSLContext, ...], tls: bool
) -> None:
    server = start(Bounds(idle_s=PATIENT_S, request_s=0.05, connections=1), (lambda: contexts[0]) if tls else None)
    with connect(server, tls=tls) as client:
        for _ in range(2):
            time.sleep(0.1)  # twice the time of a request
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert answer_of(client).endswith(b"ok")
        trickle(client, b"GET / HTTP/1.1\r\nX-A: ")


def test_requests_that_come_together_are_all_answered(start: Start) -> None:
    server = start(Bounds(idle_s=3.0))
    with connect(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 2 + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert everything(client).count(b"200 OK") == 3


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_receives_nothing_is_left(start: Start, contexts: tuple[ssl.SSLContext, ...], tls: bool) -> None:
    server = start(Bounds(write_s=0.2, connections=1), (lambda: contexts[0]) if tls else None)
    with connect(server, tls=tls) as slow:
        slow.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        # The only place becomes free although the client keeps its connection.
        until(lambda: ask(server, tls=tls).endswith(b"ok"))
        assert len(everything(slow)) < len(LARGE)


@pytest.mark.parametrize("tls", [False, True])
def test_the_second_packet_of_an_answer_does_not_wait(
    start: Start, contexts: tuple[ssl.SSLContext, ...], tls: bool
) -> None:
    server = start(Bounds(), (lambda: contexts[0]) if tls else None)
    with connect(server, tls=tls) as client:
        client.sendall(b"GET /nagle HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert everything(client).endswith(b"False")


def test_an_unfinished_handshake_delays_nobody_and_ends(start: Start, contexts: tuple[ssl.SSLContext, ...]) -> None:
    server = start(Bounds(handshake_s=3.0), lambda: contexts[0])  # the handshake of `ask` has the same limit
    with connect(server) as silent:
        assert b"200" in ask(server, tls=True)
        assert silent.recv(10) == b""


def test_a_new_certificate_counts_for_new_connections(start: Start, contexts: tuple[ssl.SSLContext, ...]) -> None:
    shown = [contexts[0]]
    server = start(Bounds(), lambda: shown[0])

    def certificate(client: socket.socket) -> bytes | None:
        assert isinstance(client, ssl.SSLSocket)
        return client.getpeercert(binary_form=True)

    with connect(server, tls=True) as old:
        shown[0] = contexts[1]
        with connect(server, tls=True) as new:
            assert certificate(old) != certificate(new)
        old.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert everything(old).endswith(b"ok"), "an open connection goes on"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        # Only a little too large, so that all of it is sent before the response arrives.
        (b"GET / HTTP/1.1\r\n" + b"X-Filler: %b\r\n" % (b"x" * 8192) * 4, 431),
        (b"PUT / HTTP/1.1\r\nContent-Length: 11\r\n\r\n", 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 411),
        (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 411),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"PUT /unread HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /", 401),
    ],
)
def test_what_is_not_read_ends_the_connection(start: Start, sent: bytes, status: int) -> None:
    server = start(Bounds(body_bytes=10))
    with connect(server) as client:
        client.sendall(sent)
        answered = everything(client)
    assert answered.startswith(b"HTTP/1.1 %d" % status)
    assert answered.count(b"HTTP/1.1") == 1, "the rest of a refused request was read as another one"


def test_a_request_line_beyond_the_bounds_is_no_error_of_the_server(start: Start) -> None:
    server = start(Bounds())
    with capture_logs() as logs, connect(server) as client:
        client.sendall(b"GET /%b" % (b"x" * (40 << 10)))
        assert everything(client) == b""
        until(lambda: bool(logs))
    assert {entry["log_level"] for entry in logs} == {"debug"}


def test_a_body_within_the_bounds_is_read_and_the_connection_goes_on(start: Start) -> None:
    server = start(Bounds(body_bytes=10))
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENT_S)
    for body in (b"0123456789", b""):
        client.request("PUT", "/", body=body)
        assert client.getresponse().read() == body
    assert client.sock is not None
    client.close()


@pytest.mark.parametrize("bounds", [Bounds(connections=3), Bounds(per_client=3)])
def test_more_connections_than_the_bounds_are_refused_until_others_end(start: Start, bounds: Bounds) -> None:
    server = start(bounds)
    held = [connect(server) for _ in range(3)]
    assert ask(server) == b""
    for each in held:
        each.close()
    until(lambda: ask(server).endswith(b"ok"))


def test_the_project_has_one_threaded_http_server() -> None:
    # tests and benchmarks play foreign servers and may use what they want.
    packages = ("agent", "automation", "components", "gateway", "kubeapi", "program", "tools")
    servers = re.compile(
        r"^\s*(from|import) (http\.server|socketserver|wsgiref|xmlrpc\.server)\b|\bstart_http_server\b", re.MULTILINE
    )
    files = (file for package in packages for file in (ROOT / package).rglob("*.py"))
    using = {str(file.relative_to(ROOT)) for file in files if servers.search(file.read_text())}
    assert using == {"agent/http_server.py"}


def until(well: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not well():
        assert time.monotonic() < deadline
        time.sleep(0.02)
