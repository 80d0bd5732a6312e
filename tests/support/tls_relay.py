"""A server with TLS in front of one without, like the sidecar of an engine that was built without TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path


class TlsRelay:
    """Accepts TLS and passes the bytes to `target` and back, until `close`."""

    def __init__(self, target: tuple[str, int], certificate: Path, key: Path, *, address: str = "127.0.0.1") -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            client = self._context.wrap_socket(connection, server_side=True)
            with client, socket.create_connection(self._target) as engine:
                threading.Thread(target=_pass, args=(engine, client), daemon=True).start()
                _pass(client, engine)


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
