"""A TCP relay between a client and a server for network faults: cut, refused and frozen connections."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import threading
from urllib.parse import urlsplit

import yaml


class Relay:
    """Forwards bytes both ways between a port and `target`, a URL, until `close()`."""

    def __init__(self, target: str, *, address: str = "127.0.0.1") -> None:
        parts = urlsplit(target)
        self._target = (str(parts.hostname), int(parts.port or 443))
        self._scheme = parts.scheme
        self._listener = socket.create_server((address, 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        self.refusing = False
        """New connections are accepted and closed at once."""
        self.dialled = 0
        """The number of connections, refused ones included."""
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        address, port = self._listener.getsockname()[:2]
        return f"{self._scheme}://{address}:{port}"

    def kubeconfig(self, original: pathlib.Path, to: pathlib.Path) -> str:
        """Write a copy of a kubeconfig that uses this relay, and return its path."""
        config = yaml.safe_load(original.read_text())
        for cluster in config["clusters"]:
            cluster["cluster"]["server"] = self.url
        to.write_text(yaml.safe_dump(config))
        return str(to)

    def cut(self) -> None:
        """Close all open connections."""
        with self._lock:
            ended, self._open = self._open, set()
        for connection in ended:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Hold back all bytes in both directions; connections stay open."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join(timeout=5.0)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.dialled += 1
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=5.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                # A cut that began during the dial must not miss this pair.
                refused = self.refusing or self._closed
                if not refused:
                    self._open |= {client, server}
            if refused:
                client.close()
                server.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()
