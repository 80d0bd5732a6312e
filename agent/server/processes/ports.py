"""Gives each process a port of its own and keeps it for the process's life.

Called by `worker`. Ports lie below the ranges from which Linux and macOS take the ports of outgoing
connections, so that none of those can take a port between its choice and its use.
"""

from __future__ import annotations

import socket
import threading
import zlib

FIRST = 18000
COUNT = 10000


class NoPortFree(Exception):
    """Every port of the range is taken."""


class Ports:
    """The ports of one agent. Safe for use by many threads."""

    def __init__(self, address: str, *, first: int = FIRST, count: int = COUNT) -> None:
        self._address = address
        self._first = first
        self._count = count
        self._taken: dict[int, str] = {}
        self._lock = threading.Lock()

    def claim(self, key: str, *, preferred: int | None = None, address: str | None = None) -> int:
        """Choose a port that nobody listens on: the preferred one if it is free, else one that follows from the key.

        `address` is where it will be listened on, where that is not the agent's own. Raises NoPortFree.
        """
        on = address or self._address
        start = zlib.crc32(key.encode()) % self._count
        with self._lock:
            candidates = [self._first + (start + step) % self._count for step in range(self._count)]
            if preferred:
                candidates.insert(0, preferred)
            for port in candidates:
                if self._taken.get(port, key) == key and is_free(on, port):
                    self._release(key)
                    self._taken[port] = key
                    return port
        raise NoPortFree(f"no port of {self._first} to {self._first + self._count - 1} is free on {on}")

    def hold(self, key: str, port: int) -> None:
        """Note the port of a process that already runs."""
        with self._lock:
            self._release(key)
            self._taken[port] = key

    def release(self, key: str) -> None:
        """Give the port back."""
        with self._lock:
            self._release(key)

    def _release(self, key: str) -> None:
        for port in [p for p, holder in self._taken.items() if holder == key]:
            del self._taken[port]


def is_free(address: str, port: int) -> bool:
    """Tell whether a server could listen there now, and would be the one that is reached there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    everywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104 - bound for a moment, never listened on
    if not _can_bind(family, address, port):
        return False
    # macOS lets one bind an address although somebody listens on all of them; nobody may bind all of them twice.
    return port == 0 or _can_bind(family, everywhere, port)


def _can_bind(family: socket.AddressFamily, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Servers set this too; without it, connections that linger after a restart would make the port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
