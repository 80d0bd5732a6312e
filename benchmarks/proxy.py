"""`python -m benchmarks proxy`: the cost of the proxy of sleeping services, and of a wake compared with a start.

Requests: nginx answers a small page to wrk, directly and through the proxy in turns; the proxy is a separate process.
All three share this machine's processors. Wakes: a real agent puts a real llama-server to sleep and wakes it, in turns
with the same llama-server started by hand, which gets a request as soon as it is healthy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from agent.client.http import HttpHost, token_from
from agent.contract import FilePlan, ProcessPhase, ProcessPlan
from agent.proxy.limits import Limits
from agent.proxy.server import Proxy
from agent.proxy.service import Callbacks
from benchmarks.subject import Subject
from benchmarks.wrk import listens, load, missing_programs, nginx, running
from kubeapi.json_types import Json
from tools import toolchain
from tools.tiny_model import write_tiny_model

LIMITS = {"added p50 (ms)": 1.0, "wake beyond start p50 (ms)": 100.0}
LEAST_REQUESTS_PER_S = 5000.0
FEW, MANY = 4, 32
"""Connections at once. Few of them show the added time, many show the throughput."""
BACKEND_PORT, FRONT_PORT, API_PORT, ENGINE_PORT = 18480, 18481, 18482, 18483
KEY = "bench/tiny"
TIMEOUT_S = 60.0
POLL_S = 0.005


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks proxy", description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="length of each round of requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wakes", type=int, default=10)
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        return serve(options.serve)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    result: Json = {}
    try:
        if missing := missing_programs():
            sys.stderr.write(f"left out the requests: {' and '.join(missing)} not found on PATH\n")
        else:
            result |= requests(directory, options.seconds, options.rounds)
        result |= wakes(directory, options.wakes)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    met = all(result[name] <= limit for name, limit in LIMITS.items() if name in result)
    return 0 if met and result.get("proxied (requests/s)", LEAST_REQUESTS_PER_S) >= LEAST_REQUESTS_PER_S else 1


# --- requests ---------------------------------------------------------------------------------------------------------


def serve(target: int) -> int:
    """Run the proxy until the process is killed, for an hour at most."""
    proxy = Proxy()
    proxy.start()
    proxy.open(KEY, "127.0.0.1", FRONT_PORT, Limits(), Callbacks(wake=lambda _name: None))
    proxy.set_targets(KEY, (("127.0.0.1", target),))
    time.sleep(3600)
    return 0


def requests(directory: Path, seconds: int, rounds: int) -> Json:
    """Send requests directly and through the proxy, in turns."""
    told: dict[str, list[float]] = {}
    with (
        nginx(directory, BACKEND_PORT),
        running([sys.executable, "-m", "benchmarks", "proxy", f"--serve={BACKEND_PORT}"], FRONT_PORT),
    ):
        for _ in range(rounds):
            for name, port in (("direct", BACKEND_PORT), ("proxied", FRONT_PORT)):
                told.setdefault(f"{name} p50 (ms)", []).append(load(port, FEW, seconds).p50_ms)
                told.setdefault(f"{name} (requests/s)", []).append(load(port, MANY, seconds).rate)
    result = {name: round(statistics.median(values), 3) for name, values in told.items()}
    return result | {"added p50 (ms)": round(result["proxied p50 (ms)"] - result["direct p50 (ms)"], 3)}


# --- wakes ------------------------------------------------------------------------------------------------------------


def wakes(directory: Path, count: int) -> Json:
    """Wake a llama-server by a request, and start the same one by hand, in turns."""
    (directory / "models").mkdir()
    model = write_tiny_model(directory / "models" / "tiny.gguf")
    binary = toolchain.locate("llama-server")
    if binary is None:
        raise RuntimeError("llama-server was not found; run `herdsman tools install llama-server`")
    agent = Subject(
        "agent",
        f"{sys.executable} -m automation.cli agent run --host=bench --plan-source=http --address=127.0.0.1 "
        f"--store={directory}/store --http-port={API_PORT} --allowed-host-path-roots={model.parent}",
        directory / "none",
        directory,
    )
    agent.start()
    woken: list[float] = []
    started: list[float] = []
    try:
        client = api(directory / "store")
        client.put(KEY, plan(model))
        for _ in range(count):
            wait_for(client, ProcessPhase.ASLEEP)
            started.append(start_by_hand(binary, model))
            port = client.get(KEY).report.port
            assert port is not None
            woken.append(first_byte(port))
            wait_for(client, ProcessPhase.READY)
    finally:
        agent.stop()
    extra = statistics.median(woken) - statistics.median(started)
    return {
        "started by hand: first byte p50 (ms)": round(statistics.median(started) * 1000, 1),
        "woken: first byte p50 (ms)": round(statistics.median(woken) * 1000, 1),
        "woken: first byte max (ms)": round(max(woken) * 1000, 1),
        "wake beyond start p50 (ms)": round(extra * 1000, 1),
    }


def api(store: Path) -> HttpHost:
    """Wait for the agent and return a client of its API."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (listens(API_PORT) and (store / "agent-token").exists()):
        if time.monotonic() > deadline:
            raise TimeoutError("the agent did not start")
        time.sleep(0.05)
    return HttpHost(f"http://127.0.0.1:{API_PORT}", token_from(store / "agent-token"))


def plan(model: Path) -> ProcessPlan:
    return ProcessPlan(
        host="bench",
        service="tiny",
        argv=("llama-server", "--model", "{model}", "--host", "{host}", "--port", "{port}", "-c", "256"),
        file=FilePlan(source=str(model), cache_key="tiny", file_name="tiny.gguf"),
        completion_path="/v1/chat/completions",
        service_name="tiny",
        idle_timeout_s=0.5,
        drain_timeout_s=0.0,
    )


def wait_for(client: HttpHost, phase: ProcessPhase) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (report := client.get(KEY).report).phase is not phase:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {phase}: {report}")
        time.sleep(0.02)


def start_by_hand(binary: Path, model: Path) -> float:
    """Start llama-server and send a request when it is healthy; return the seconds until the answer's first byte."""
    command = [str(binary), "--model", str(model), "--host", "127.0.0.1", "--port", str(ENGINE_PORT), "-c", "256"]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not healthy(ENGINE_PORT):
            if time.monotonic() - began > TIMEOUT_S:
                raise TimeoutError("llama-server did not start")
            time.sleep(POLL_S)
        first_byte(ENGINE_PORT)
        return time.monotonic() - began
    finally:
        process.kill()
        process.wait()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def first_byte(port: int) -> float:
    """Request a streamed completion; return the seconds until the first byte of the answer.

    Raises RuntimeError for an error.
    """
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as client:
        client.sendall(head + body)
        first = client.recv(65536)
        took = time.monotonic() - began
    if not first.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(first.decode("utf-8", "replace"))
    return took
