"""Routers of a gateway in this process with providers outside the cluster, and requests to them."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from gateway.routers.runtime import RouterState
from program.desired.router import Router, RouterBackend, Rule
from tests.support.gateways import CHAT, Answer, Front
from tests.support.loop import eventually
from tests.support.tls_server import TlsServer

AT_ROUTER = f"/routers/prod/r{CHAT}"
Make = Callable[..., TlsServer]
"""Makes a server that stands in for a provider."""


def route(front: Front, provider: TlsServer, *backends: RouterBackend, secrets: Mapping[str, Any]) -> RouterState:
    router = Router("prod", "r", backends, (Rule("all", tuple(each.name for each in backends)),))
    state = RouterState(router, secrets)
    front.server.backends.routers.connections.tls = provider.trusted
    front.server.set_routers([state])
    eventually(lambda: front.server.backends.routers.states() == (state,), what="the router")
    return state


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "public", "messages": [{"role": "user", "content": "Hi"}]} | fields


def streamed(front: Front, **fields: Any) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=60)
    try:
        connection.request("POST", AT_ROUTER, json.dumps(body(stream=True, **fields)))
        return connection.getresponse().read()
    finally:
        connection.close()


def events(*parts: bytes, ends: bool = True) -> Answer:
    def answer(connection: socket.socket, _head: bytes, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            connection.sendall(b"%x\r\n%b\r\n" % (len(part), part))
        if ends:
            connection.sendall(b"0\r\n\r\n")
        else:
            connection.close()

    return answer
