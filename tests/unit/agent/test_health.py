"""Health checks and completion checks against a real HTTP server."""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from agent.processes.engine_probe import EngineProbe, smallest_request

ANSWERS: dict[str, tuple[int, bytes]] = {
    "/health": (200, b'{"status":"ok"}'),
    "/loading": (503, b'{"error":{"message":"Loading model"}}'),
    "/v1/chat/completions": (200, json.dumps({"choices": [{"message": {"content": "x"}}]}).encode()),
    "/empty/chat/completions": (200, b'{"choices":[]}'),
    "/broken/chat/completions": (500, b"out of memory"),
    "/locked/chat/completions": (401, b"key, please"),
    "/text/chat/completions": (200, b"<html>"),
}


class Server(http.server.ThreadingHTTPServer):
    """A request for `/slow` sets `asked`, and is answered once `end` is set."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked, self.end = threading.Event(), threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/slow"):
            self.server.asked.set()
            self.server.end.wait(20)
        self.answer()

    def answer(self) -> None:
        status, body = ANSWERS.get(self.path, (404, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.end.set()
        server.shutdown()


@pytest.fixture
def port(server: Server) -> int:
    return int(server.server_address[1])


def complete(port: int, path: str, timeout_s: float = 5.0) -> str | None:
    return EngineProbe().completion("127.0.0.1", port, path, model="m", timeout_s=timeout_s)


def test_only_200_is_healthy_and_the_answer_is_told(port: int) -> None:
    assert EngineProbe().health("127.0.0.1", port, "/health") is None
    loading = EngineProbe().health("127.0.0.1", port, "/loading")
    assert loading is not None
    assert "503" in loading
    assert "Loading model" in loading


def test_a_port_where_nobody_listens_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "refused" in (EngineProbe().health("127.0.0.1", port, "/health") or "").lower()


def test_a_completion_counts_only_with_content(port: int) -> None:
    assert complete(port, "/v1/chat/completions") is None
    assert complete(port, "/empty/chat/completions") is not None
    assert complete(port, "/text/chat/completions") is not None
    assert "out of memory" in (complete(port, "/broken/chat/completions") or "")


def test_a_server_that_wants_a_key_counts_as_serving(port: int) -> None:
    assert complete(port, "/locked/chat/completions") is None


def test_a_completion_that_takes_too_long_is_told(port: int) -> None:
    assert "0.2 s" in (complete(port, "/slow", timeout_s=0.2) or "")


def test_a_waiting_question_can_be_interrupted(server: Server, port: int) -> None:
    question, began = EngineProbe(), time.monotonic()

    def interrupt() -> None:
        assert server.asked.wait(30)
        question.interrupt()

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    assert question.completion("127.0.0.1", port, "/slow", model="m", timeout_s=30.0) is not None
    assert time.monotonic() - began < 15
    interrupting.join()
    question.interrupt()


def test_a_question_can_be_interrupted_while_it_is_dialled(port: int) -> None:
    class Dialled(http.client.HTTPConnection):
        def connect(self) -> None:
            question.interrupt()
            super().connect()

    question = EngineProbe(Dialled)
    said = question.completion("127.0.0.1", port, "/slow", model="m", timeout_s=5.0)
    assert said is not None and "interrupted" in said


def test_after_an_interruption_questions_fail_until_they_are_allowed_again(port: int) -> None:
    question = EngineProbe()
    question.interrupt()
    assert "interrupted" in (question.health("127.0.0.1", port, "/health") or "")
    question.resume()
    assert question.health("127.0.0.1", port, "/health") is None


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/completions", "prompt"),
        ("/v1/embeddings", "input"),
        ("/v1/rerank", "documents"),
    ],
)
def test_the_request_fits_the_path(path: str, field: str) -> None:
    assert field in smallest_request(path, "m")
