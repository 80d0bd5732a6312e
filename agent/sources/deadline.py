"""The time that one question to a server may take in all: its name's resolution, connections, redirects, every byte.

Made by `agent.server.models` (`header_probe`, `remote`) and `automation.models`; watched by `remote`.
Timeouts of sockets start anew with each byte, so a server that sends one now and then is cut off here.
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
    """A moment; connections that are open then are shut down. Thread-safe."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._at

    def left_s(self, what: str) -> float:
        """Seconds that are left. Raises SourceUnreachable, with `what` was slow, when none are."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise self.missed(what)
        return left_s

    def missed(self, what: str) -> SourceUnreachable:
        """Make the error of a question that took too long."""
        return SourceUnreachable(f"{what} was too slow: it did not answer completely within {self.timeout_s:g} s")

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Shut down the connections that are given to the Watch, if the block is not over in time."""
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
    """The connections of one question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._over = False

    def add(self, connection: socket.socket) -> None:
        """Watch a connection. TLS takes the socket away from its object, so its own handle is kept."""
        with self._lock:
            copy = socket.socket(fileno=os.dup(connection.fileno()))
            self._sockets.append(copy)
            if self._over:
                _shut(copy)

    def shut_down(self) -> None:
        """Wake whoever reads or writes: they find the end of the connection."""
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
    """Give the IP addresses of a host, in the resolver's order. Raises SourceUnreachable, also after `timeout_s`.

    A resolver cannot be stopped: its thread ends by the resolver's own timeout.
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
