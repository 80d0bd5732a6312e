"""A real HTTP server that streams chat completions as llama-server does. It answers with the words of the prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "tiny"


class CompletionServer:
    """`requests` records the body of each completion; `fault` changes the next answers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.fault = ""
        """`refused`: 400 with an error; `cut`: the stream ends early; `event`: an error event; `thinks`: reasoning."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, {"data": [{"id": NAME}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.keys.append(self.headers.get("Authorization", ""))
                if outer.fault == "refused":
                    self._send(400, {"error": {"message": "context size exceeded", "code": 400}})
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                if outer.fault == "event":
                    self._event({"error": {"message": "the replica was killed"}})
                    return
                if outer.fault == "thinks":
                    self._event({"choices": [{"delta": {"reasoning_content": "Let me see."}}]})
                for word in str(body["messages"][-1]["content"]).split():
                    self._event({"choices": [{"delta": {"content": f"{word} "}}]})
                if outer.fault == "cut":
                    return
                self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
                self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
                self.wfile.write(b"data: [DONE]\n\n")

            def _event(self, value: object) -> None:
                self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

            def _send(self, status: int, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def completion_server() -> Iterator[CompletionServer]:
    server = CompletionServer()
    thread = threading.Thread(target=server._server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server._server.shutdown()
        server._server.server_close()
        thread.join()
