"""What the connections of clients need of the gateway. `server` has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from gateway.access.authentication import Access
from gateway.accounting.book import Book
from gateway.clients.cors import Cors
from gateway.engines.backends import Backends
from gateway.limits import GatewayLimits

if TYPE_CHECKING:
    from gateway.clients.connection import Connection


class Gateway(Protocol):
    """What a connection needs of its server."""

    loop: asyncio.AbstractEventLoop
    limits: GatewayLimits
    backends: Backends
    cors: Cors
    checks_hosts: bool
    """Requests without a key must name this machine as their `Host`."""
    access: Access
    connections: set[Connection]
    is_stopping: bool
    """Connections close after their present answer."""
    body_bytes: int
    """Bytes of all bodies that are held now."""
    book: Book
