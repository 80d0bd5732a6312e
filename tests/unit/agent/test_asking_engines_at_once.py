"""All engines are queried in parallel and within a second, even if some of them respond badly or not at all."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agent.server.telemetry.engine_metrics import Engine, count_slots, fetch_all

BODY = b"llamacpp:requests_processing 1\n"
Answer = Callable[[socket.socket, threading.Event], None]


def sends(data: bytes) -> Answer:
    return lambda connection, _stop: connection.sendall(data)


def http(body: bytes, *, status: str = "200 OK", length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def waits(_connection: socket.socket, stop: threading.Event) -> None:
    stop.wait()


def drips(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not stop.wait(0.05):
        connection.sendall(b"#\n")


def floods(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not stop.is_set():
        connection.sendall(b"#" * 65535 + b"\n")


ANSWERS: dict[str, Answer] = {
    "good": sends(http(BODY)),
    "unsized": sends(b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n" + BODY),
    "loading": sends(http(b"{}", status="503 Service Unavailable")),
    "short": sends(http(BODY, length=len(BODY) + 1)),
    "chunked": sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "nonsense": sends(b"\x00\xff" * 10),
    "nothing": sends(b""),
    "silent": waits,
    "drips": drips,
    "floods": floods,
}


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """A server for each kind of response, and a port without a server."""
    stop, threads, listeners, made = threading.Event(), [], [], []

    def serve(listener: socket.socket, answer: Answer) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    connection.recv(4096)
                    connection.settimeout(0.5)
                    answer(connection, stop)

    for name, answer in ANSWERS.items():
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(0.05)
        listeners.append(listener)
        made.append(Engine(f"ns/{name}", name, "127.0.0.1", listener.getsockname()[1], "/metrics"))
        threads.append(threading.Thread(target=serve, args=(listener, answer)))
        threads[-1].start()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        made.append(Engine("ns/gone", "gone", "127.0.0.1", gone.getsockname()[1], "/metrics"))
    yield made
    stop.set()
    for listener in listeners:
        listener.close()
    for thread in threads:
        thread.join(5)


def test_one_that_is_slow_or_broken_costs_nobody_else_anything(engines: list[Engine]) -> None:
    began = time.monotonic()
    texts = fetch_all(engines, timeout_s=3.0)
    assert time.monotonic() - began < 3 * 3.0, "three do not end, and are waited for at once"
    assert texts == {"ns/good": BODY.decode(), "ns/unsized": BODY.decode()}


def test_slots_are_counted_where_they_are_told(engines: list[Engine]) -> None:
    by_name = {engine.service: engine for engine in engines}
    deadline = time.monotonic() + 30.0
    assert count_slots("127.0.0.1", by_name["good"].port, deadline=deadline) is None  # no JSON
    assert count_slots("127.0.0.1", by_name["gone"].port, deadline=deadline) is None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = b'[{"id": 0}, {"id": 1}]'

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(http(body))

        thread = threading.Thread(target=serve)
        thread.start()
        assert count_slots("0.0.0.0", listener.getsockname()[1], deadline=deadline) == 2
        thread.join()
