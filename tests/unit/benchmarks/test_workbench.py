"""What a benchmark prints and raises when a controller goes away."""

from __future__ import annotations

import socket
import struct
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from benchmarks.subject import Subject, SubjectEnded
from benchmarks.workbench import ModelServer, serve

pytestmark = pytest.mark.slow  # servers and processes


def _reset(server: ModelServer, request: bytes) -> None:
    """Send a request, and end the connection as a killed process does."""
    client = socket.create_connection(("127.0.0.1", server.server_address[1]))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sendall(request)
    client.close()


def test_a_client_that_goes_away_prints_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = serve(tmp_path / "models")
    try:
        with (tmp_path / "models" / "large").open("wb") as large:
            large.truncate(64 << 20)
        for _ in range(5):
            _reset(server, b"GET /large HTTP/1.0\r\n\r\n")
            _reset(server, b"GET /lar")
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/tiny.gguf", timeout=10) as answer:
            assert answer.read(4) == b"GGUF"
        time.sleep(0.5)
    finally:
        server.shutdown()
        server.server_close()
    assert capfd.readouterr().err == ""


def test_a_defect_of_the_server_is_still_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = serve(tmp_path / "models")
    try:
        try:
            raise ValueError("a defect")
        except ValueError:
            server.handle_error(None, ("127.0.0.1", 1))
    finally:
        server.shutdown()
        server.server_close()
    assert "a defect" in capfd.readouterr().err


def _check_for(subject: Subject, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        subject.check_alive()
        time.sleep(0.02)


def test_a_controller_that_ended_is_named_with_its_log(tmp_path: Path) -> None:
    subject = Subject(
        "peer",
        f"{sys.executable} -c 'import sys, time; time.sleep(0.3); sys.exit(3)'",
        tmp_path / "kubeconfig",
        tmp_path,
    )
    subject.start()
    try:
        with pytest.raises(SubjectEnded, match=r"^peer ended with exit status 3; its log is .*/peer\.log$"):
            _check_for(subject, seconds=20)
    finally:
        subject.stop()
