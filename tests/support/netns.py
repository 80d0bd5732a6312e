"""Several hosts on one machine: each has a network namespace and an address behind a bridge.

Each host reaches the others, and the test's API server through a relay on the bridge; its link can be cut and restored.
It needs root and `ip`; without them the test is skipped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from tests.support import needs
from tests.support.relay import Relay

_numbers = itertools.count()
FIRST_ROUTER = 200
"""Hosts get addresses below this last number."""


@dataclass(frozen=True)
class NetworkHost:
    """One host of a network."""

    name: str
    namespace: str
    """Name of its network namespace, for `ip netns exec`."""
    address: str
    link: str
    """The bridge's end of its link."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words that run a command on this host when put before it."""
        return ("ip", "netns", "exec", self.namespace)

    def cut(self) -> None:
        """Cut the link: no packet goes in or out, and connections are not closed."""
        _ip("link", "set", self.link, "down")

    def heal(self) -> None:
        """Restore the link."""
        _ip("link", "set", self.link, "up")

    def output(self, *command: str, timeout_s: float = 30) -> str:
        """Run a command on this host and return what it prints; fails with its exit code."""
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"{command}: {done.returncode} {done.stderr}"
        return done.stdout


class Network:
    """A bridge with hosts on it; use it by `network()`."""

    def __init__(self) -> None:
        self._tag = f"h{os.getpid():x}-{next(_numbers)}"
        self._subnet = _free_subnet()
        self._hosts: list[NetworkHost] = []
        self._relays: list[Relay] = []
        self._routers: list[str] = []
        self._routes: list[tuple[str, str]] = []
        """Networks behind a router, each with the router's address."""
        self.gateway = f"{self._subnet}.1"
        """The address of the root namespace as seen from the hosts."""

    def up(self) -> None:
        _ip("link", "add", f"{self._tag}b", "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/24", "dev", f"{self._tag}b")
        _ip("link", "set", f"{self._tag}b", "up")

    def host(self, name: str) -> NetworkHost:
        """Add a host."""
        number = len(self._hosts)
        outer, inner = f"{self._tag}v{number}", f"{self._tag}p{number}"
        made = NetworkHost(name, f"{self._tag}-{name}", f"{self._subnet}.{10 + number}", outer)
        self._hosts.append(made)
        _ip("netns", "add", made.namespace)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        _ip("link", "set", inner, "netns", made.namespace)
        _ip("link", "set", outer, "master", f"{self._tag}b")
        _ip("link", "set", outer, "up")
        inside = ("-n", made.namespace)
        _ip(*inside, "link", "set", inner, "name", "eth0")
        _ip(*inside, "addr", "add", f"{made.address}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "route", "add", "default", "via", self.gateway)
        for destination, router in self._routes:
            _ip(*inside, "route", "add", destination, "via", router)
        return made

    def connect(self, pid: int, *behind: str) -> str:
        """Connect the network namespace of a process, and route the networks behind it for hosts that are added later.

        Returns its address on this network. The link is removed with the namespace or with this network.
        """
        number = len(self._routers)
        outer, inner = f"{self._tag}r{number}", f"{self._tag}q{number}"
        address = f"{self._subnet}.{FIRST_ROUTER + number}"
        self._routers.append(outer)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(pid))
        _ip("link", "set", outer, "master", f"{self._tag}b")
        _ip("link", "set", outer, "up")
        inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip")
        _run(*inside, "addr", "add", f"{address}/24", "dev", inner)
        _run(*inside, "link", "set", inner, "up")
        self._routes += [(destination, address) for destination in behind]
        return address

    def relay(self, target: str) -> str:
        """Forward a URL of this machine's loopback to the hosts, and return the URL that they use."""
        relay = Relay(target, address=self.gateway)
        self._relays.append(relay)
        return relay.url

    def kubeconfig(self, original: Path, to: Path) -> Path:
        """Write a copy of a kubeconfig that works on the hosts."""
        config = yaml.safe_load(original.read_text())
        for each in config["clusters"]:
            cluster = each["cluster"]
            cluster["server"] = self.relay(cluster["server"])
            # The certificate is valid for loopback, not for the bridge's address.
            cluster.setdefault("tls-server-name", "localhost")
        to.write_text(yaml.safe_dump(config))
        to.chmod(0o600)
        return to

    def down(self) -> None:
        """End the processes on the hosts and remove the network."""
        for relay in self._relays:
            relay.close()
        for host in self._hosts:
            for pid in _pids(host.namespace):
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).kill()
            _ip("link", "del", host.link, check=False)
            _ip("netns", "del", host.namespace, check=False)
        for router in self._routers:
            _ip("link", "del", router, check=False)
        _ip("link", "del", f"{self._tag}b", check=False)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Create a network while the block lasts; skip the test where this user cannot create one."""
    needs.require("network namespaces")
    made = Network()
    try:
        try:
            made.up()
        except AssertionError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield made
    finally:
        made.down()


def _free_subnet() -> str:
    taken = {a.address.rpartition(".")[0] for each in psutil.net_if_addrs().values() for a in each}
    for offset in range(254):
        subnet = f"10.87.{1 + (os.getpid() + offset) % 254}"
        if subnet not in taken:
            return subnet
    raise AssertionError("every 10.87.x.0/24 is taken")


def _pids(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def _ip(*arguments: str, check: bool = True) -> None:
    _run("ip", *arguments, check=check)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def reachable(address: str, port: int, *, timeout_s: float = 1.0) -> bool:
    """Return whether the port accepts connections from this machine."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=timeout_s):
        return True
    return False
