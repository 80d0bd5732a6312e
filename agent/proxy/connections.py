"""The TCP options of every connection of the proxy. Called by `client` and `upstream`."""

from __future__ import annotations

import asyncio
import socket
import struct

SILENT_S = 60
"""Keepalive probes start after this silence: a long answer may be silent, but a host that lost power stays silent
forever."""
ASK_EVERY_S = 15
ASK_TIMES = 4

_OPTIONS = (
    ("TCP_KEEPIDLE", SILENT_S),
    ("TCP_KEEPALIVE", SILENT_S),
    ("TCP_KEEPINTVL", ASK_EVERY_S),
    ("TCP_KEEPCNT", ASK_TIMES),
)


def enable_keepalive(transport: asyncio.Transport) -> None:
    """Let the kernel detect a peer that disappeared without closing the connection."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is None:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        option = getattr(socket, name, None)  # macOS calls Linux's TCP_KEEPIDLE TCP_KEEPALIVE
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)


def reset(transport: asyncio.Transport) -> None:
    """Close a connection with RST, so that the peer sees an error instead of an orderly end."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
