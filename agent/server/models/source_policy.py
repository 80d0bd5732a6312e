"""Decide which addresses and paths a model may be read from, before anything is opened.

Called by `remote`, `download` and `automation.models`. People who may write a Model may
make us send requests; without this guard they could reach what only we can reach: metadata services, loopback, the
cluster's own network. So only public addresses are dialled, and files are read only below roots that an operator named.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

from agent.server.errors import SourceNotFound, SourceRefused, SourceUnreachable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
# Beyond what the standard library calls not global: addresses that carry or reach other networks, and old site-locals.
_REFUSED_NETWORKS: tuple[Network, ...] = (
    *_NAT64,
    ipaddress.ip_network("0.0.0.0/8"),
    ipaddress.ip_network("100.64.0.0/10"),
    ipaddress.ip_network("192.0.0.0/24"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("198.18.0.0/15"),
    ipaddress.ip_network("240.0.0.0/4"),
    ipaddress.ip_network("::/96"),
    ipaddress.ip_network("2001::/23"),
    ipaddress.ip_network("2002::/16"),
    ipaddress.ip_network("fec0::/10"),
    ipaddress.ip_network("3fff::/20"),
    ipaddress.ip_network("5f00::/16"),
)


@dataclass(frozen=True)
class SourcePolicy:
    """What an operator allows beyond public servers."""

    allowed_remote_hosts: tuple[str, ...] = ()
    """Host names, addresses or networks in CIDR notation that may be private."""
    allowed_host_path_roots: tuple[str, ...] = ()
    """Absolute directories below which local files may be read; none means no local file is read."""
    ca_file: str | None = None
    """PEM file with certificate authorities to trust beside the system's."""

    def addresses(self, host: str, port: int) -> tuple[str, ...]:
        """Resolve `host` and give the addresses that may be dialled, in the resolver's order.

        The caller dials one of these and nothing else, so that a second answer of the DNS cannot lead elsewhere.
        Raises SourceRefused when none is allowed, SourceUnreachable when the name does not resolve.
        """
        host = host.strip("[]").rstrip(".").lower()
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            raise SourceUnreachable(f"`{host}` does not resolve: {error}") from None
        resolved = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
        allowed = tuple(text for text in resolved if self.allows(host, ipaddress.ip_address(text)))
        if not allowed:
            raise SourceRefused(
                f"`{host}` leads to {', '.join(resolved)}, which is not a public address; "
                "an operator can allow it with --allowed-remote-hosts"
            )
        return allowed

    def allows(self, host: str, address: Address) -> bool:
        """Tell whether `address`, found for `host`, may be dialled."""
        if is_public(address):
            return True
        for entry in self.allowed_remote_hosts:
            if entry.strip().rstrip(".").lower() == host:
                return True
            try:
                network = ipaddress.ip_network(entry.strip().strip("[]"), strict=False)
            except ValueError:
                continue
            if address in network:
                return True
        return False

    def allowed_path(self, path: str) -> Path:
        """Resolve a local path, symbolic links included, and check that it lies below an allowed root.

        Raises SourceRefused when it does not, SourceNotFound when nothing is there.
        """
        if not os.path.isabs(path):
            raise SourceRefused(f"`{path}` is not an absolute path")
        # The path as written is checked first, so that nobody learns by the error what exists elsewhere.
        if not self._is_below_a_root(Path(os.path.normpath(path)), resolve_roots=False):
            raise SourceRefused(
                f"`{path}` lies below no allowed root; an operator can allow it with --allowed-host-path-roots"
            )
        try:
            real = Path(path).resolve(strict=True)
        except (OSError, RuntimeError):
            raise SourceNotFound(f"`{path}` is not there") from None
        if not self._is_below_a_root(real, resolve_roots=True):
            raise SourceRefused(f"`{path}` leads to `{real}` by a symbolic link, which lies below none of the roots")
        return real

    def path_is_allowed(self, path: str) -> bool:
        """Tell by its text alone whether a path on some node lies below an allowed root."""
        return os.path.isabs(path) and self._is_below_a_root(Path(os.path.normpath(path)), resolve_roots=False)

    def _is_below_a_root(self, path: Path, *, resolve_roots: bool) -> bool:
        for text in self.allowed_host_path_roots:
            root = Path(os.path.normpath(text))
            if root.is_absolute() and path.is_relative_to(root.resolve() if resolve_roots else root):
                return True
        return False


def is_public(address: Address) -> bool:
    """Tell whether an address belongs to the open Internet; what embeds an IPv4 address is judged by that too."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if any(address in network for network in _REFUSED_NETWORKS):
        return False
    return address.is_global and not address.is_multicast
