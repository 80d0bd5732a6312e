"""Checks by which name a client addressed a listener on loopback. Protects it from pages in browsers. Does no I/O.

A page of `attacker.example` can have its own DNS name resolve to 127.0.0.1 (DNS rebinding). The browser then lets the
page read answers of this machine, because the origin is the same. The browser sends the page's name as `Host`, so the
gateway refuses names that public DNS can resolve. `connection` calls it for requests that need no key.
"""

from __future__ import annotations

import ipaddress

from gateway.errors import GatewayError

_SHOWN = 100
"""How much of a client's text an error repeats, in characters."""


def misdirected(host: str) -> GatewayError | None:
    """Return why a request with this `Host` is refused; None for one that is accepted.

    Accepted are IP addresses, `localhost`, and names below `localhost` (RFC 6761) and `internal`, which public DNS does
    not have. Containers reach this machine by names such as `host.docker.internal`. HTTP/1.0 needs no `Host`.
    """
    name = _name(host)
    if name in ("", "localhost") or name.endswith((".localhost", ".internal")) or _is_address(name):
        return None
    message = (
        f"`{host[:_SHOWN]}` is not a name of this machine's own; use 127.0.0.1 or localhost. Without keys, the gateway "
        f"answers no other name, because pages in browsers could reach it by one"
    )
    return GatewayError(421, "misdirected_request", message)


def _name(host: str) -> str:
    """Return the name of a `Host` header, without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
