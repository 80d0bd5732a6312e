"""The address of a caller behind proxies that tell it, such as an Ingress."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class TrustedProxies:
    """The proxies whose header `X-Forwarded-For` is believed."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> TrustedProxies:
        """Read a list with commas of addresses and networks (`10.0.0.0/8,fd00::1`). Raises ValueError."""
        return cls(tuple(ipaddress.ip_network(each.strip()) for each in text.split(",") if each.strip()))

    def caller(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the address of the caller. `forwarded` are the headers `X-Forwarded-For` of its request.

        Each proxy appends the address of its client. So the last one that is not a trusted proxy's is the caller's, and
        those before it may be invented.
        """
        address = peer
        hops = [hop.strip() for line in forwarded for hop in line.split(",")]
        while hops and self._trusts(address):
            named = _address(hops.pop())
            if named is None:
                break
            address = str(named)
        return address

    def _trusts(self, text: str) -> bool:
        found = _address(text)
        return found is not None and any(found in network for network in self.networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, of `::ffff:10.0.0.1` the IPv4 address; None for text that is none."""
    try:
        found = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found
