"""A server that sends the exact bytes that a test gives it, and a client that sends raw bytes.

It serves as the backend in tests of `agent.proxy`: real sockets on loopback, without an HTTP library.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class RawEngine:
    """Passes each connection to `script` in a separate thread."""

    def __init__(self, script: Callable[[socket.socket], None]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.connections = 0
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def target(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._script(connection)

    def close(self) -> None:
        """Close the listener and all connections, as the kernel does for a killed process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read up to the empty line; return the head including it, and the bytes after it. Empty when the peer closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b"", data
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read a request with a Content-Length or without a body; return head and body. Empty when the peer closed."""
    head, body = read_head(connection)
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head, body


def requests(connection: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Read requests until the peer closes the connection."""
    while True:
        head, body = read_request(connection)
        if not head:
            return
        yield head, body


def ok(body: bytes, *headers: bytes) -> bytes:
    """Return a response with a Content-Length."""
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def echo(connection: socket.socket) -> None:
    """Answer each request with its request line and its body."""
    for head, body in requests(connection):
        connection.sendall(ok(head.split(b"\r\n")[0] + b"|" + body))


def connected(port: int, *, timeout_s: float = 10.0) -> socket.socket:
    """Open a client's connection."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_response(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read a response with a length."""
    return read_request(connection)


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the peer closes. Raises ConnectionResetError when it resets the connection."""
    data = b""
    while more := connection.recv(65536):
        data += more
    return data


def exchange(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Send one request on a new connection and read the response."""
    with connected(port) as connection:
        connection.sendall(request)
        return read_response(connection)
