"""The pool of connections to one API server. Made by `kubeapi.client`."""

from __future__ import annotations

import socket
from typing import Any

import urllib3

from kubeapi.config import Access

POOL_SIZE = 96
"""Connections that are kept: a watch for each kind of each dialect, and as many requests as there are workers."""


def connection_pool(access: Access, *, give_up_s: float | None = None) -> urllib3.PoolManager:
    """Make the pool that an access asks for: TLS, server name, proxy. No connection is opened yet.

    What was sent and not acknowledged for `give_up_s` ends the connection and is not sent again, also when this process
    is gone by then. Where the system has no such option, it goes on trying.
    """
    settings: dict[str, Any] = {
        "num_pools": 2,
        "maxsize": POOL_SIZE,
        "block": False,
        # A peer that vanished without a word is noticed within a minute, also on a silent watch.
        "socket_options": [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            *(
                (socket.IPPROTO_TCP, getattr(socket, option), value)
                for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
                if hasattr(socket, option)
            ),
            *(
                ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(give_up_s * 1000)),)
                if give_up_s is not None and hasattr(socket, "TCP_USER_TIMEOUT")
                else ()
            ),
        ],
    }
    context = access.ssl_context()
    if context is not None:
        settings["ssl_context"] = context
        if access.tls_server_name:
            settings["server_hostname"] = access.tls_server_name
            settings["assert_hostname"] = access.tls_server_name
        if not context.check_hostname:
            settings["cert_reqs"] = "CERT_NONE"
    if access.proxy:
        return urllib3.ProxyManager(access.proxy, **settings)
    return urllib3.PoolManager(**settings)
