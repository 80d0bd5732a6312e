"""Serves the gateway's Prometheus metrics. Made by `running`."""

from __future__ import annotations

from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from agent.http_server import BoundedHandler, BoundedServer, Bounds
from gateway.listen_address import ListenAddress

BOUNDS = Bounds(connections=32, per_client=16, request_s=10.0)


def metrics_server(listen: ListenAddress, registry: CollectorRegistry) -> BoundedServer:
    """Return a server that listens; `start` lets it answer. Raises OSError if the port is in use."""

    class Handler(BoundedHandler):
        # One request for each connection: the connections of Prometheus do not stay open.
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:  # noqa: N802 - the base class calls it so
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.answer(HTTPStatus.NOT_FOUND, b"not found\n")
                return
            encoder, content_type = choose_encoder(self.headers.get("Accept") or "")
            self.answer(HTTPStatus.OK, encoder(registry), content_type)

    return BoundedServer((listen.address, listen.port), Handler, name="gateway-metrics", bounds=BOUNDS)
