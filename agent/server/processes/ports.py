"""Allocates a port for each process and reserves it for the life of the process.

Called by `worker`. The ports lie below the ranges that Linux and macOS use for outgoing connections, so that no
outgoing connection takes a port between its choice and its use.
"""

from __future__ import annotations

import socket
import threading
import zlib

FIRST = 18000
COUNT = 10000


class NoPortFree(Exception):
    """Every port of the range is in use."""


class Ports:
    """The ports of one agent. Thread-safe."""

    def __init__(self, address: str, *, first: int = FIRST, count: int = COUNT) -> None:
        self._address = address
        self._first = first
        self._count = count
        self._taken: dict[int, str] = {}
        self._lock = threading.Lock()

    def claim(self, key: str, *, preferred: int | None = None, address: str | None = None) -> int:
        """Reserve a free port: `preferred` if possible, else the first from a position that the key determines.

        `address` is the address on which the process listens, if it is not the agent's own. Raises NoPortFree.
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
        """Reserve the port of a process that already runs."""
        with self._lock:
            self._release(key)
            self._taken[port] = key

    def release(self, key: str) -> None:
        """Release the port of a process."""
        with self._lock:
            self._release(key)

    def _release(self, key: str) -> None:
        for port in [p for p, holder in self._taken.items() if holder == key]:
            del self._taken[port]


def is_free(address: str, port: int) -> bool:
    """Return whether a server could listen there now and would receive the connections to that address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    everywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104 - bound for a moment, never listened on
    if not _can_bind(family, address, port):
        return False
    # macOS allows a bind of one address while another server listens on all addresses. Binding all addresses twice
    # fails.
    return port == 0 or _can_bind(family, everywhere, port)


def _can_bind(family: socket.AddressFamily, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Servers set this option too. Without it, connections that linger after a restart would make the port look
        # occupied.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
