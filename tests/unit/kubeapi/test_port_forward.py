"""Ports of pods on 127.0.0.1, over real WebSockets to a small API server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from kubeapi.client import KubeClient
from kubeapi.config import Access
from kubeapi.endpoint import Endpoint
from kubeapi.errors import Forbidden, NotFound, Unreachable
from kubeapi.port_forward import forward_to_pod
from tests.support.pod_port_forward import forwarding_server


@pytest.fixture
def echo() -> Iterator[int]:
    """A pod that sends back all that it gets, and ends the connection after `bye`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)
                if data.endswith(b"bye"):
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def exchange(port: int, data: bytes) -> bytes:
    """Send data, and return all that comes back. A connection that is reset has ended, too."""

    def send() -> None:
        with contextlib.suppress(OSError):
            connection.sendall(data)

    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        sender = threading.Thread(target=send)
        sender.start()
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                found += piece
        sender.join(30)
    return found


def test_bytes_reach_the_pod_and_come_back_in_order(echo: int) -> None:
    data = bytes(range(256)) * 4000 + b"bye"
    with forwarding_server({"chat-0": echo}) as server, forward_to_pod(server.client(), "ns", "chat-0", 8080) as there:
        assert exchange(there.port, data) == data
        assert there.problem == ""


def test_each_connection_is_one_of_the_pod(echo: int) -> None:
    with forwarding_server({"chat-0": echo}) as server, forward_to_pod(server.client(), "ns", "chat-0", 8080) as there:
        before = server.opened
        with socket.create_connection(("127.0.0.1", there.port), timeout=30) as first:
            first.sendall(b"one")
            assert first.recv(100) == b"one"
            assert exchange(there.port, b"two bye") == b"two bye"
            first.sendall(b"three")
            assert first.recv(100) == b"three"
        assert server.opened == before + 2


def test_only_this_machine_can_connect_and_nobody_after_the_end(echo: int) -> None:
    with forwarding_server({"chat-0": echo}) as server:
        with forward_to_pod(server.client(), "ns", "chat-0", 8080) as there:
            port = there.port
            held = socket.create_connection(("127.0.0.1", port), timeout=30)
            held.sendall(b"x")
            assert held.recv(10) == b"x"
        with contextlib.suppress(ConnectionResetError):
            assert held.recv(10) == b""
        held.close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_port_on_which_nothing_listens_is_named_by_the_kubelet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    with (
        forwarding_server({"chat-0": closed}) as server,
        forward_to_pod(server.client(), "ns", "chat-0", 8080) as there,
    ):
        assert exchange(there.port, b"anyone?") == b""
        assert "error forwarding port 8080" in there.problem


def test_a_refusal_is_raised_before_anything_listens() -> None:
    with forwarding_server({}) as server:
        with pytest.raises(NotFound, match="not found"), forward_to_pod(server.client(), "ns", "gone", 8080):
            pass
        with pytest.raises(Forbidden, match="portforward"), forward_to_pod(server.client("other"), "ns", "gone", 8080):
            pass


def test_an_api_server_that_is_away_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    client = KubeClient(Access(lambda: Endpoint(url)))
    with pytest.raises(Unreachable, match="chat-0"), forward_to_pod(client, "ns", "chat-0", 8080):
        pass
