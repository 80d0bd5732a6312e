"""The script that drains an engine before its end, run by the shells of images, with a server in place of the
engine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from components.drain import drain_script
from tests.support import needs
from tests.support.controlplane import eventually

IDLE = b'[{"id":0,"is_processing":false}]'
BUSY = b'[{"id":0,"is_processing":false},{"id":1,"is_processing":true}]'
METRICS = (
    b"# HELP vllm:num_requests_running Number of requests.\n"
    b"vllm:num_requests_running_total 7.0\n"
    b'vllm:num_requests_running{engine="0"} 0.0\n'
    b'vllm:num_requests_running{engine="1"} %s\n'
    b'vllm:num_requests_waiting{engine="0"} 3.0\n'
)
ANSWER = b"x" * 16_000_000
"""More bytes than the kernel buffers for a client that does not read."""

SOON_S = 20.0
"""An end that the script did not wait for: without it, the script goes on for 60 s."""


class Slots(ThreadingHTTPServer):
    """Sends `answers` in turn, and then always the last one; None is status 501. `GET /answer` gets ANSWER."""

    daemon_threads = True

    def __init__(self, answers: list[bytes | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.seen: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    server: Slots

    def do_GET(self) -> None:
        answer: bytes | None = ANSWER
        if self.path != "/answer":
            self.server.seen.append(self.headers.get("Authorization"))
            answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(501 if answer is None else 200)
        self.end_headers()
        self.wfile.write(answer or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(*answers: bytes | None) -> Iterator[Slots]:
    server = Slots(list(answers))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def drain(
    server: Slots,
    *,
    left: int = 60,
    path: str | None = None,
    shell: str = "sh",
    what: str = "slots",
    port: int | None = None,
    pause_s: float = 0.1,
    **env: str,
) -> float:
    """Run the script to its end; return the seconds that it took.

    `port` is the engine's; by default the server's. Each pause of the script takes `pause_s`.
    """
    started = time.monotonic()
    url = f"http://127.0.0.1:{server.server_address[1]}/ask"
    clients = str(port or server.server_address[1])
    environment = {"PATH": path or os.environ["PATH"], "FORGOTTEN_S": "0", "BLIND_S": "1", "KEPT_S": "3", **env}
    runs = [shutil.which(each) or each for each in shell.split()]
    script = f"sleep() {{ command sleep {pause_s:g}; }}\n{drain_script()}"
    command = [*runs, "-c", script, "drain", url, str(left), clients, what]
    subprocess.run(command, env=environment, check=True, timeout=40)
    return time.monotonic() - started


def looks(server: Slots, count: int) -> None:
    """Wait until the script has sent the server `count` requests."""
    eventually(lambda: len(server.seen) >= count, what=f"{count} looks")


@contextlib.contextmanager
def connected(server: Slots, request: bytes = b"") -> Iterator[socket.socket]:
    """A connected client with a small receive buffer, which has sent `request`."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.server_address[1]))
        client.sendall(request)
        yield client


@pytest.fixture(params=["dash", "bash", "busybox sh"])
def shell(request: pytest.FixtureRequest) -> str:
    """Each shell that runs the script; `sh` of an image is one of them."""
    command: str = request.param
    needs.require(command.split()[0])
    return command


def test_an_idle_server_ends_after_two_looks(shell: str) -> None:
    with serving(IDLE) as server:
        assert drain(server, shell=shell) < SOON_S
        assert server.seen == [None, None]


def test_a_busy_server_is_waited_for(shell: str) -> None:
    with serving(BUSY, BUSY, IDLE) as server:
        drain(server, shell=shell)
        assert len(server.seen) == 4


def test_a_request_between_two_looks_starts_the_count_anew() -> None:
    with serving(IDLE, BUSY, IDLE) as server:
        drain(server)
        assert len(server.seen) == 4


def test_waiting_ends_with_the_time_that_is_left() -> None:
    with serving(BUSY) as server:
        # The script counts full seconds of the clock, so it may end up to a second early.
        assert 2 <= drain(server, left=3) < SOON_S


def test_a_slow_client_of_an_idle_server_gets_its_whole_answer() -> None:
    """The slot is idle once the last token is generated, but the client has not read all of the response yet."""
    asked = b"GET /answer HTTP/1.0\r\n\r\n"
    with serving(IDLE) as server, connected(server, asked) as client, ThreadPoolExecutor(1) as pool:
        ending = pool.submit(drain, server)
        looks(server, 5)  # the script gives up a connection that a client keeps at the third look
        assert not ending.done()
        received = 0
        while piece := client.recv(1_000_000):
            received += len(piece)
        assert received > len(ANSWER)
        ending.result()


def test_the_rest_of_an_answer_is_waited_for_when_the_server_has_closed_the_connection() -> None:
    """When a pod ends, the kernel drops its network and with it unsent data."""
    with (
        serving(IDLE) as server,
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as pool,
        socket.create_connection(listener.getsockname()) as client,
    ):
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += accepted.send(ANSWER)
        accepted.close()
        ending = pool.submit(drain, server, port=listener.getsockname()[1])
        looks(server, 4)  # without the data that is not sent yet the script would end at the second look
        assert not ending.done()
        while sent > 0:
            sent -= len(client.recv(1_000_000))
        ending.result()


def test_a_connection_that_its_client_keeps_holds_an_idle_server_up_for_a_moment_only() -> None:
    with serving(IDLE) as server, connected(server):
        drain(server)
        assert len(server.seen) == 3, "as KEPT_S says"


def test_a_connection_to_a_server_that_cannot_say_counts_as_a_request() -> None:
    with serving(None) as server, ThreadPoolExecutor(1) as pool:
        with connected(server):
            ending = pool.submit(drain, server)
            looks(server, 4)  # without a connection the script would end at the second look
            assert not ending.done()
        ending.result()
    with serving(IDLE) as server:
        assert drain(server, what="") < SOON_S
        assert server.seen == []


@pytest.mark.parametrize("running", [b"2.0", b"1e+01"])
def test_a_gauge_says_it_too(running: bytes) -> None:
    with serving(METRICS % running, METRICS % running, METRICS % b"0.0") as server:
        drain(server, what="vllm:num_requests_running")
        assert len(server.seen) == 4


def test_a_server_that_is_gone_is_not_waited_for() -> None:
    with serving(IDLE) as server:
        pass
    assert drain(server) < SOON_S


def test_no_proxy_is_asked() -> None:
    with serving(IDLE) as server, serving(BUSY) as proxy:
        there = f"http://127.0.0.1:{proxy.server_address[1]}"
        drain(server, http_proxy=there, HTTP_PROXY=there, all_proxy=there)
        assert len(server.seen) == 2 and not proxy.seen


def test_the_key_is_sent_and_stands_in_no_argument(tmp_path: Path) -> None:
    arguments = tmp_path / "arguments"
    spy = tmp_path / "curl"
    spy.write_text(f'#!/bin/sh\necho "$@" >>{arguments}\nexec {shutil.which("curl")} "$@"\n')
    spy.chmod(0o755)
    with serving(IDLE) as server:
        drain(server, path=f"{tmp_path}:{os.environ['PATH']}", LLAMA_API_KEY='se"cret\\1')
        assert server.seen == ['Bearer se"cret\\1'] * 2
    assert "cret" not in arguments.read_text()


@pytest.mark.parametrize("tool", ["wget", "python3"])
def test_an_image_with_one_other_client_will_do(tmp_path: Path, tool: str) -> None:
    if tool == "wget":
        needs.require("wget")
    client = sys.executable if tool == "python3" else shutil.which(tool)
    for each in ("sh", "sleep", "date", tool):
        program = client if each == tool else shutil.which(each)
        (tmp_path / each).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (tmp_path / each).chmod(0o755)
    with serving(BUSY, BUSY, IDLE) as server:
        drain(server, path=str(tmp_path))
        assert len(server.seen) == 4


def test_an_image_without_any_of_them_counts_connections(tmp_path: Path) -> None:
    for tool in ("sh", "sleep"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    with serving(BUSY) as server:
        with connected(server):
            # Without `date` the script counts its pauses.
            assert 3 <= drain(server, path=str(tmp_path), left=3, pause_s=1) < SOON_S
        assert drain(server, path=str(tmp_path)) < SOON_S
        assert server.seen == []
