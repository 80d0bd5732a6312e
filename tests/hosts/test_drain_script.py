"""The script that ends a llama-server gently, run by sh with a server that plays the slots."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from components.drain import drain_script

IDLE = b'[{"id":0,"is_processing":false}]'
BUSY = b'[{"id":0,"is_processing":false},{"id":1,"is_processing":true}]'


class Slots(ThreadingHTTPServer):
    """Answers `answers` in turn, the last one for ever; None is a refusal."""

    def __init__(self, answers: list[bytes | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.seen: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    server: Slots

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(501 if answer is None else 200)
        self.end_headers()
        self.wfile.write(answer or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(*answers: bytes | None) -> Iterator[Slots]:
    server = Slots(list(answers))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def drain(server: Slots, *, left: int = 60, path: str | None = None, **env: str) -> float:
    """Run the script to its end and give the seconds that it took."""
    started = time.monotonic()
    url = f"http://127.0.0.1:{server.server_address[1]}/slots"
    environment = {"PATH": path or os.environ["PATH"], "FORGOTTEN_S": "0", "BLIND_S": "1", **env}
    shell = shutil.which("sh") or "/bin/sh"
    command = [shell, "-c", drain_script(), "drain", url, str(left)]
    subprocess.run(command, env=environment, check=True, timeout=30)
    return time.monotonic() - started


def test_an_idle_server_ends_at_once() -> None:
    with serving(IDLE) as server:
        assert drain(server) < 1.5
        assert server.seen == [None]


def test_a_busy_server_is_waited_for() -> None:
    with serving(BUSY, IDLE) as server:
        assert drain(server) >= 2
        assert len(server.seen) == 2


def test_waiting_ends_with_the_time_that_is_left() -> None:
    with serving(BUSY) as server:
        assert drain(server, left=2) < 5
        assert len(server.seen) == 1


def test_a_server_that_cannot_say_gets_a_pause() -> None:
    with serving(None) as server:
        assert 1 <= drain(server) < 3


def test_the_key_is_sent_and_stands_in_no_argument(tmp_path: Path) -> None:
    arguments = tmp_path / "arguments"
    spy = tmp_path / "curl"
    spy.write_text(f'#!/bin/sh\necho "$@" >>{arguments}\nexec {shutil.which("curl")} "$@"\n')
    spy.chmod(0o755)
    with serving(IDLE) as server:
        drain(server, path=f"{tmp_path}:{os.environ['PATH']}", LLAMA_API_KEY='se"cret\\1')
        assert server.seen == ['Bearer se"cret\\1']
    assert "cret" not in arguments.read_text()


@pytest.mark.skipif(shutil.which("wget") is None, reason="wget is not on PATH; install it to run this")
def test_an_image_with_wget_alone_will_do(tmp_path: Path) -> None:
    for tool in ("sh", "sleep", "wget"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    with serving(BUSY, IDLE) as server:
        assert drain(server, path=str(tmp_path)) >= 2


def test_an_image_without_any_of_them_pauses(tmp_path: Path) -> None:
    for tool in ("sh", "sleep"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    with serving(IDLE) as server:
        assert 1 <= drain(server, path=str(tmp_path)) < 3
        assert server.seen == []
