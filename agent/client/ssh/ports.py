"""Gives each process on a host over SSH a port of its own, which stays with its record. Called by `processes`."""

from __future__ import annotations

import zlib
from collections.abc import Collection

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.scripts import script

FIRST_PORT = 18000
PORTS = 10000
"""As the agent's: below the ranges from which Linux and macOS take the ports of outgoing connections."""


class NoPortFree(Exception):
    """Every port of the range is taken."""


def choose_port(key: str, taken: Collection[int], *, preferred: int | None = None) -> int:
    """Choose a port that nobody has: the one it had, else one that follows from the key. Raises NoPortFree."""
    if preferred and preferred not in taken:
        return preferred
    start = zlib.crc32(key.encode()) % PORTS
    for step in range(PORTS):
        port = FIRST_PORT + (start + step) % PORTS
        if port not in taken:
            return port
    raise NoPortFree(f"every port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is taken on the host")


def read_ports(text: str) -> frozenset[int]:
    """Read what the script said."""
    found = set()
    for line in text.splitlines():
        base, _, number = line.partition(" ")
        try:
            found.add(int(number, 16 if base == "hex" else 10))
        except ValueError:
            continue
    return frozenset(found)


def free_port(connection: SshConnection, key: str, promised: Collection[int], *, preferred: int | None = None) -> int:
    """Choose a port on which nobody listens on the host, and which no other process was promised. Raises NoPortFree."""
    listening = read_ports(connection.shell(script("ports"), what="listing the ports"))
    return choose_port(key, listening | set(promised), preferred=preferred)
