"""Measures the properties of this host: address, memory, processors, and installed engines.

Called by `agent.server.main` and the commands `herdsman agent run` and `herdsman doctor agent`.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from agent.contract import HostFacts
from agent.processes.flags import version_of
from agent.version import agent_version

KNOWN_BINARIES = ("llama-server", "ollama", "omlx", "vllm")
_SLOW = ("vllm",)
"""Binaries that would load Python for half a minute to print their version, so their version stays empty."""
USUAL_DIRECTORIES = ("/opt/homebrew/bin", "/usr/local/bin")
"""Searched in addition to PATH, because launchd and systemd omit them."""

# Networks that exist on many machines, so their addresses cannot be reached from outside.
_BRIDGES = tuple(ipaddress.ip_network(n) for n in ("172.17.0.0/16", "192.168.65.0/24", "10.96.0.0/12"))
_TAILSCALE = ipaddress.ip_network("100.64.0.0/10")


class NoAddress(Exception):
    """The host has no address that other hosts could reach."""


def own_address() -> str:
    """Return the address on which other hosts reach this host. Raises NoAddress."""
    found = [a.address for addresses in psutil.net_if_addrs().values() for a in addresses if _is_ip(a.family)]
    address = best_address(found)
    if address is None:
        raise NoAddress("this host has only loopback addresses; name an address with --address")
    return address


def best_address(addresses: list[str]) -> str | None:
    """Choose one of a host's addresses: Tailscale first, then other IPv4, then IPv6, and a container bridge last."""
    candidates: list[tuple[int, int, str]] = []
    for order, text in enumerate(addresses):
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            continue
        if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
            continue
        bridge = any(address.version == n.version and address in n for n in _BRIDGES)
        rank = 3 if bridge else 2 if address.version == 6 else 0 if address in _TAILSCALE else 1
        candidates.append((rank, order, str(address)))
    return min(candidates)[2] if candidates else None


def _is_ip(family: int) -> bool:
    return family in (socket.AF_INET, socket.AF_INET6)


class Binaries:
    """Finds engines on this host and reads their version once per installed file."""

    def __init__(self, locate: Callable[[str], Path | None] | None = None) -> None:
        """`locate` is called first.

        Binaries that it does not find are searched on PATH and in the usual directories.
        """
        self._locate = locate
        self._path = os.pathsep.join([os.environ.get("PATH", os.defpath), *USUAL_DIRECTORIES])
        self._versions: dict[tuple[str, int, int], str] = {}
        self._lock = threading.Lock()

    def find(self, name: str) -> str | None:
        """Return the path of a binary, or None. An absolute path is returned as it is if it is executable."""
        if self._locate is not None and "/" not in name:
            located = self._locate(name)
            if located is not None:
                return str(located)
        return shutil.which(name, path=self._path)

    def versions(self) -> dict[str, str]:
        """Return the version of each known engine that is installed."""
        found = {}
        for name in KNOWN_BINARIES:
            path = self.find(name)
            if path is not None:
                found[name] = "" if name in _SLOW else self._version(path)
        return found

    def _version(self, path: str) -> str:
        try:
            stat = Path(path).stat()
        except OSError:
            return ""
        key = (path, stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if key not in self._versions:
                self._versions[key] = version_of(path)
            return self._versions[key]


def measure(*, host: str, address: str, binaries: Binaries, labels: Mapping[str, str]) -> HostFacts:
    """Return the current facts of this host."""
    return HostFacts(
        host=host,
        address=address,
        os=platform.system().lower(),
        arch=platform.machine().lower(),
        memory_bytes=psutil.virtual_memory().total,
        cpus=os.cpu_count() or 1,
        agent_version=agent_version(),
        runtimes=binaries.versions(),
        labels=dict(labels),
    )
