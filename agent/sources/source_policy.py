"""Decides which addresses and paths a model may be read from, before anything is opened.

Called by `agent.server.models`, `agent.client.ssh.fetch` and `automation.models`. A person who may write a Model can
make Herdsman send requests. Without this guard the person could reach servers that only Herdsman can reach: metadata
services, loopback, the cluster's network. So only public addresses are contacted, and files are read only below roots
that an operator allows.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

from agent.sources.deadline import resolve
from agent.sources.errors import SourceNotFound, SourceRefused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NOT_PUBLIC: tuple[Network, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            # IANA's special-purpose registries (RFC 6890), without the exceptions inside 192.0.0.0/24 and 2001::/23.
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            # These include old site-local addresses, and addresses that embed or reach other networks (NAT64, 6to4,
            # Teredo).
            "::/96",
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
            "fe80::/10",
            "fec0::/10",
            "ff00::/8",
        ),
    )
)
"""Networks outside of the public Internet. An IPv4-mapped IPv6 address counts as its IPv4 address."""


@dataclass(frozen=True)
class SourcePolicy:
    """The exceptions to public servers that an operator allows."""

    allowed_remote_hosts: tuple[str, ...] = ()
    """Host names, addresses or networks in CIDR notation that may be private."""
    allowed_host_path_roots: tuple[str, ...] = ()
    """Absolute directories below which local files may be read. Empty: no local file is read."""
    ca_file: str | None = None
    """PEM file with certificate authorities to trust in addition to the system's."""

    def with_roots(self, roots: tuple[str, ...]) -> SourcePolicy:
        """Return the policy with further directories below which local files may be read."""
        return replace(self, allowed_host_path_roots=(*self.allowed_host_path_roots, *roots)) if roots else self

    def addresses(self, host: str, port: int, *, timeout_s: float | None = None) -> tuple[str, ...]:
        """Resolve `host` and return the allowed addresses, in the resolver's order.

        The caller connects only to one of these, so that a second answer of the DNS cannot lead elsewhere. Raises
        SourceRefused if none is allowed, SourceUnreachable if the name does not resolve in time.
        """
        host = host.strip("[]").rstrip(".").lower()
        resolved = resolve(host, port, timeout_s)
        allowed = tuple(text for text in resolved if self.allows(host, ipaddress.ip_address(text)))
        if not allowed:
            raise SourceRefused(
                f"`{host}` resolves to {', '.join(resolved)}, which is not a public address; "
                "an operator can allow it with --allowed-remote-hosts"
            )
        return allowed

    def allows(self, host: str, address: Address) -> bool:
        """Return whether a connection to `address`, an address of `host`, is allowed."""
        if is_public(address):
            return True
        networks, names = self.allowances()
        return host in names or any(address in network for network in networks)

    def allowances(self) -> tuple[tuple[Network, ...], tuple[str, ...]]:
        """Return the networks and the host names that are allowed although they are not public."""
        networks: list[Network] = []
        names = []
        for entry in self.allowed_remote_hosts:
            names.append(entry.strip().rstrip(".").lower())
            with contextlib.suppress(ValueError):
                networks.append(ipaddress.ip_network(entry.strip().strip("[]"), strict=False))
        return tuple(networks), tuple(names)

    def allowed_path(self, path: str) -> Path:
        """Resolve a local path with its symbolic links, and check that it is below an allowed root.

        Raises SourceRefused if it is not, SourceNotFound if it does not exist.
        """
        if not os.path.isabs(path):
            raise SourceRefused(f"`{path}` is not an absolute path")
        # The path is checked before it is resolved, so that the error does not show whether a forbidden path exists.
        if not self._is_below_a_root(Path(os.path.normpath(path)), resolve_roots=False):
            raise SourceRefused(
                f"`{path}` lies below no allowed root; an operator can allow it with --allowed-host-path-roots"
            )
        try:
            real = Path(path).resolve(strict=True)
        except (OSError, RuntimeError):
            raise SourceNotFound(f"`{path}` does not exist") from None
        if not self._is_below_a_root(real, resolve_roots=True):
            raise SourceRefused(f"`{path}` is a symbolic link to `{real}`, which is not below an allowed root")
        return real

    def path_is_allowed(self, path: str) -> bool:
        """Return whether the text of a path on another machine is below an allowed root."""
        return os.path.isabs(path) and self._is_below_a_root(Path(os.path.normpath(path)), resolve_roots=False)

    def _is_below_a_root(self, path: Path, *, resolve_roots: bool) -> bool:
        for text in self.allowed_host_path_roots:
            root = Path(os.path.normpath(text))
            if root.is_absolute() and path.is_relative_to(root.resolve() if resolve_roots else root):
                return True
        return False


def is_public(address: Address) -> bool:
    """Return whether an address is public. An embedded IPv4 address must be public too."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if any(address in network for network in NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast
