"""The total time of one request to a server: name resolution, connections, redirects, and all bytes.

Made by `agent.server.models` (`header_probe`, `remote`) and `automation.models`; used by `remote`. A socket's timeout
restarts with each byte, so it cannot stop a server that sends one byte now and then.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agent.sources.errors import SourceUnreachable


class Deadline:
    """A point in time at which open connections are shut down. Thread-safe."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._at

    def left_s(self, what: str) -> float:
        """Return the remaining seconds. Raises SourceUnreachable, which names `what`, if none remain."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise self.missed(what)
        return left_s

    def missed(self, what: str) -> SourceUnreachable:
        """Return the error for a request that took too long."""
        return SourceUnreachable(f"{what} was too slow: it did not answer completely within {self.timeout_s:g} s")

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Shut down the connections of the yielded Watch if the block does not end in time."""
        watch = Watch()
        timer = threading.Timer(max(0.0, self._at - time.monotonic()), watch.shut_down)
        timer.daemon = True
        timer.start()
        try:
            yield watch
        finally:
            timer.cancel()
            watch.close()


class Watch:
    """The connections of one request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._over = False

    def add(self, connection: socket.socket) -> None:
        """Watch a connection. A duplicate descriptor is kept, because TLS detaches the socket from its object."""
        with self._lock:
            copy = socket.socket(fileno=os.dup(connection.fileno()))
            self._sockets.append(copy)
            if self._over:
                _shut(copy)

    def shut_down(self) -> None:
        """Shut down all connections, so that blocked reads and writes end."""
        with self._lock:
            self._over = True
            for each in self._sockets:
                _shut(each)

    def close(self) -> None:
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()


def resolve(host: str, port: int, timeout_s: float | None) -> list[str]:
    """Return the IP addresses of a host, in the resolver's order. Raises SourceUnreachable, also after `timeout_s`.

    A resolver cannot be stopped. Its thread ends by the resolver's own timeout.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            answers.put(error)

    if timeout_s is None:
        ask()
    else:
        threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        found = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise SourceUnreachable(f"`{host}` does not resolve within {timeout_s:.1f} s") from None
    if isinstance(found, Exception):
        raise SourceUnreachable(f"`{host}` does not resolve: {found}") from None
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
