"""Protects a listener on loopback, which asks for no key, from pages in browsers. Does no I/O.

A page of `attacker.example` can have its own DNS name resolve to 127.0.0.1 (DNS rebinding). The browser then lets the
page read answers of this machine, because the origin is the same. The browser sends the page's name as `Host`, so the
gateway refuses names that public DNS can resolve. A page may also send a request to 127.0.0.1 itself. It cannot read
the answer, but it would have a model loaded; its `Origin` shows it. `connection` calls this for requests that need no
key.
"""

from __future__ import annotations

import ipaddress
import re

from gateway.clients.heads import Head
from gateway.errors import GatewayError

_SHOWN = 100
"""How much of a client's text an error repeats, in characters."""


_ORIGIN = re.compile(rb"^origin:([^\r\n]*)\r?$", re.IGNORECASE | re.MULTILINE)
_ALLOWED = b"Access-Control-Allow-Origin"


def of_foreign_page(head: Head) -> GatewayError | None:
    """Return why a request is refused that may come from a page of another site; None for one that is accepted.

    Pages of this machine, and those of the gateway's allowed origins, are not foreign.
    """
    found = _ORIGIN.search(head.fields)
    if found is not None and _ALLOWED not in head.cors_lines:
        origin = found[1].strip().decode("ascii", "replace")
        address = origin.partition("://")[2]
        if not address or misdirected(address) is not None:
            message = f"the gateway does not serve pages of {origin[:_SHOWN]}; `--cors-origin` allows them"
            return GatewayError(403, "origin_not_allowed", message)
    return misdirected(head.host)


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
