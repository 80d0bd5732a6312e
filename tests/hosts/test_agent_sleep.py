"""Scale to zero on a host: a real agent and a real llama-server that sleeps, wakes and dies behind the agent's proxy.

Covered: from idle to asleep to serving again, streams byte for byte, restarts and a kill of the agent, an engine killed
during a response, a start that fails, many requests at once, metrics.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.contract import ProcessReport
from agent.proxy.limits import Limits
from agent.proxy.server import Proxy
from agent.proxy.service import Callbacks
from tests.support.agents import TINY, AgentProcess, agent, gone, llama_plan, until
from tests.support.controlplane import eventually
from tests.support.raw_engine import RawEngine, connected, read_head, read_to_end
from tests.support.supervising import free_port

KEY = TINY


@pytest.fixture
def host(tmp_path: Path, tiny_model: Path) -> Iterator[AgentProcess]:
    arguments = ("--plan-source", "http", "--address", "127.0.0.1", "--allowed-host-path-roots", str(tiny_model.parent))
    with agent(tmp_path / "store", *arguments) as made:
        yield made


def chat(port: int, *, tokens: int = 4, stream: bool = False) -> bytes:
    """Return a request for a chat completion."""
    asked = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": tokens, "stream": stream}
    body = json.dumps(asked | {"ignore_eos": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x:{port}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + body


def ask(port: int, *, timeout_s: float = 30) -> int:
    """Request a completion; return the HTTP status."""
    with connected(port, timeout_s=timeout_s) as client:
        client.sendall(chat(port))
        return int(read_head(client)[0].split()[1])


def is_closed(port: int) -> bool:
    """Return whether nothing accepts a connection to a port."""
    try:
        connected(port, timeout_s=1).close()
    except OSError:
        return True
    return False


def engine_of(host: AgentProcess) -> psutil.Process:
    (process,) = host.processes()
    return process


def port_of(report: ProcessReport) -> int:
    assert report.port is not None
    return report.port


def metric(host: AgentProcess, name: str) -> float:
    with urllib.request.urlopen(f"{host.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name + "{")).rpartition(" ")[2])


def test_a_service_sleeps_wakes_and_survives_its_agent(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    client.put(KEY, llama_plan(tiny_model, idle_timeout_s=6.0, wake_timeout_s=30))
    report = until(client, KEY, "Ready")
    port = port_of(report)
    first = engine_of(host)
    assert report.ready and ask(port) == 200
    assert [c.laddr.ip for c in first.net_connections() if c.status == "LISTEN"] == ["127.0.0.1"]
    assert port not in [c.laddr.port for c in first.net_connections()]

    # 1 → 0: it still counts as ready for clients, at the same port, and nothing runs.
    asleep = until(client, KEY, "Asleep")
    assert (asleep.ready, asleep.reason, asleep.port) == (True, "Idle", port)
    assert gone(first.pid) and not host.processes()
    assert metric(host, "herdsman_proxy_sleeps_total") == 1

    # 0 → 1, by many requests at once: one start, and all of them are served.
    woken = metric(host, "herdsman_proxy_wake_seconds_count")  # 1 if the first request came before the route
    answers: Counter[int] = Counter()
    herd = [threading.Thread(target=lambda: answers.update([ask(port)])) for _ in range(20)]
    for each in herd:
        each.start()
    for each in herd:
        each.join(40)
    assert answers == {200: 20}
    assert until(client, KEY, "Ready").restarts == 0 and len(host.processes()) == 1
    assert metric(host, "herdsman_proxy_wake_seconds_count") == woken + 1

    # → 0, and the agent is killed: the next agent leaves the service asleep and its port open.
    until(client, KEY, "Asleep")
    eventually(lambda: not host.processes(), what="the process to be gone")
    host.kill()
    client = host.start()
    assert until(client, KEY, "Asleep").port == port
    time.sleep(1.0)
    assert not host.processes() and client.get(KEY).report.ready
    assert ask(port) == 200

    # The agent is killed while the engine is awake: the new agent adopts the process and serves it without a restart.
    second = engine_of(host)
    host.kill()
    client = host.start()
    until(client, KEY, "Ready")
    assert ask(port) == 200 and engine_of(host).pid == second.pid

    # Without an idle timeout the process runs all the time again, at another port.
    client.put(KEY, llama_plan(tiny_model))
    plain = until(client, KEY, "Ready")
    eventually(lambda: client.get(KEY).report.port != port, what="a port of its own")
    assert plain is not None
    eventually(lambda: is_closed(port), what="the port of the front to be closed")


def test_an_engine_that_is_killed_while_it_answers_hangs_nobody(
    host: AgentProcess, llama_server: Path, tiny_model: Path
) -> None:
    client = host.start()
    # With a shifting context the answer never ends, so it cannot be complete before the engine is killed.
    endless = ("-n", "-1", "--context-shift")
    client.put(KEY, llama_plan(tiny_model, idle_timeout_s=60, wake_timeout_s=30, extra=endless))
    port = port_of(until(client, KEY, "Ready"))
    engine = engine_of(host)
    with connected(port, timeout_s=20) as streaming:
        streaming.sendall(chat(port, tokens=-1, stream=True))
        head, _ = read_head(streaming)
        assert b" 200 " in head and b"chunked" in head.lower()
        engine.send_signal(signal.SIGKILL)
        assert not read_to_end(streaming).endswith(b"0\r\n\r\n")
    # Until the engine is back, a request gets 502 or 503, or waits. None gets 404.
    deadline, statuses = time.monotonic() + 90, []
    while (status := ask(port)) != 200:
        statuses.append(status)
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert set(statuses) <= {502, 503}
    assert engine_of(host).pid != engine.pid

    # Removed: the port is closed and the record is deleted.
    client.delete(KEY)
    eventually(lambda: not host.processes(), what="the process to be gone")
    eventually(lambda: KEY not in (host.store / "front-state.json").read_text(), what="the front to be forgotten")
    eventually(lambda: is_closed(port), what="the port of the front to be closed")


def test_a_wake_that_fails_is_told_to_the_client(host: AgentProcess, llama_server: Path, tiny_model: Path) -> None:
    model = tiny_model.with_name("fragile.gguf")
    model.write_bytes(tiny_model.read_bytes())
    try:
        client = host.start()
        client.put(KEY, llama_plan(model, idle_timeout_s=0.5, wake_timeout_s=30))
        port = port_of(until(client, KEY, "Asleep"))
        eventually(lambda: not host.processes(), what="the process to be gone")
        for found in host.store.rglob("*.gguf"):
            found.unlink()
        model.unlink(missing_ok=True)
        with connected(port, timeout_s=30) as asking:
            asking.sendall(chat(port))
            head, body = read_head(asking)
            assert b" 503 " in head and b"Retry-After: " in head
            assert json.loads(body)["error"]["code"] == "start_failed"
        assert not client.get(KEY).report.ready
    finally:
        model.unlink(missing_ok=True)


def test_a_streamed_answer_passes_byte_for_byte(llama_server: Path, tiny_model: Path, tmp_path: Path) -> None:
    """A relay between proxy and llama-server records the engine's bytes; the client must receive the same bytes."""
    port = free_port()
    command = [str(llama_server), "--model", str(tiny_model), "--host", "127.0.0.1", "--port", str(port), "-c", "256"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    said: list[bytes] = []

    def tap(connection: socket.socket) -> None:
        with connected(port) as engine:
            engine.settimeout(None)
            threading.Thread(target=lambda: pump(connection, engine), daemon=True).start()
            while data := engine.recv(4096):
                said.append(data)
                connection.sendall(data)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65536):
            sink.sendall(data)

    proxy = Proxy()
    between = RawEngine(tap)
    try:
        eventually(lambda: healthy(port), what="llama-server", timeout_s=60)
        proxy.start()
        front = proxy.open(KEY, "127.0.0.1", 0, Limits(), Callbacks(wake=lambda _name: None))
        proxy.set_targets(KEY, (between.target,))
        with connected(front, timeout_s=30) as client:
            client.sendall(chat(front, tokens=64, stream=True))
            head, heard = read_head(client)
            while not heard.endswith(b"0\r\n\r\n"):
                more = client.recv(65536)
                assert more
                heard += more
        whole = b"".join(said)
        assert heard == whole.partition(b"\r\n\r\n")[2]
        assert heard.count(b"data: ") > 10 and b"data: [DONE]" in heard
        dropped = set(whole.partition(b"\r\n\r\n")[0].split(b"\r\n")) - set(head.split(b"\r\n"))
        assert {line.partition(b":")[0].lower() for line in dropped} <= {b"connection", b"keep-alive"}
    finally:
        proxy.stop()
        between.close()
        server.kill()
        server.wait()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
