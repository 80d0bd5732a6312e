"""What TCP is asked for on every connection of the proxy. Called by `client` and `upstream`."""

from __future__ import annotations

import asyncio
import socket
import struct

SILENT_S = 60
"""A peer that said nothing for so long is asked whether it is still there: a long answer may be silent, a host that
lost its power is silent for ever."""
ASK_EVERY_S = 15
ASK_TIMES = 4

_OPTIONS = (
    ("TCP_KEEPIDLE", SILENT_S),
    ("TCP_KEEPALIVE", SILENT_S),
    ("TCP_KEEPINTVL", ASK_EVERY_S),
    ("TCP_KEEPCNT", ASK_TIMES),
)


def enable_keepalive(transport: asyncio.Transport) -> None:
    """Have the kernel notice a peer that is gone without a word."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is None:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        option = getattr(socket, name, None)  # macOS says TCP_KEEPALIVE for what Linux calls TCP_KEEPIDLE
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)


def reset(transport: asyncio.Transport) -> None:
    """End a connection so that the peer sees an error (RST), not an end."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
