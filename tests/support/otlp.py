"""An OTLP collector on loopback: a real HTTP server that decodes the traces that it receives as protobuf."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Keeps the spans that it receives, until `close()`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        received = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def received(self) -> list[Span]:
        """All spans so far, in order of arrival."""
        return [
            found
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for found in scope.spans
        ]

    @property
    def spans(self) -> dict[str, Span]:
        """The last span of each name."""
        return {found.name: found for found in self.received()}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
