"""`python -m benchmarks http-servers`: the server of the small HTTP services beside aiohttp's, which is installed too.

Both answer the same requests by the same functions, as processes of their own, in turns: a report of the agent over
TLS with its token, a probe with a connection of its own, and a ConversionReview over TLS. The client is this process.
Memory and time of import are those that a server adds to a process that has imported the agent or the loop. The last
part fetches the metrics of many engines by the agent's scraper, and by urllib3 in threads. All traffic is on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import hmac
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil

from agent.http_server import BoundedHandler, BoundedServer, Bounds
from agent.server.api import self_signed
from agent.server.telemetry.engine_metrics import Engine, fetch_all
from kubeapi.json_types import Json

SERVERS = ("bounded", "aiohttp")
CLIENTS = 8
"""Connections at once."""
ENGINES = 16
TIMEOUT_S = 60.0
TOKEN = "t" * 43
BOUNDS = Bounds(connections=256, per_client=256, body_bytes=1 << 20)
_REPORT = json.dumps(
    {"processes": {f"prod/model-{n}": {"phase": "Ready", "port": 18000 + n} for n in range(60)}}
).encode()
_METRICS = b"".join(b"# TYPE vllm:m%d gauge\nvllm:m%d 1.0\n" % (n, n) for n in range(100))


@dataclass(frozen=True)
class Kind:
    """One kind of request."""

    name: str
    method: str
    path: str
    tls: bool
    is_kept_open: bool
    """The connection is used again."""
    body: bytes = b""

    def head(self) -> bytes:
        close = "" if self.is_kept_open else "Connection: close\r\n"
        length = f"Content-Length: {len(self.body)}\r\n" if self.body else ""
        text = f"{self.method} {self.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{close}{length}\r\n"
        return text.encode() + self.body


def _review() -> bytes:
    service = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": {"name": "chat", "namespace": "prod"},
        "spec": {"model": {"uri": "hf://org/model", "name": "chat"}, "replicas": 2},
    }
    request = {"uid": "1", "desiredAPIVersion": "serving.kserve.io/v1alpha2", "objects": [service] * 10}
    review = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}
    return json.dumps(review).encode()


KINDS = (
    Kind("agent: report, TLS", "GET", "/v1/report", tls=True, is_kept_open=True),
    Kind("health: probe", "GET", "/healthz", tls=False, is_kept_open=False),
    Kind("webhook: review of 10 objects, TLS", "POST", "/convert", tls=True, is_kept_open=True, body=_review()),
)


def main(arguments: list[str]) -> int:
    """Measure and print JSON. There are no limits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks http-servers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each round of requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return 0
    result: Json = {"imports": imports(options.rounds)}
    told: dict[str, dict[str, list[Json]]] = {}
    with running("bounded") as bounded, running("aiohttp") as aiohttp:
        for _ in range(options.rounds):
            for kind in KINDS:
                for name, server in (("bounded", bounded), ("aiohttp", aiohttp)):
                    told.setdefault(kind.name, {}).setdefault(name, []).append(load(server, kind, options.seconds))
        result["memory under load (MB)"] = {
            each: round(server.rss_mb(), 1) for each, server in (("bounded", bounded), ("aiohttp", aiohttp))
        }
    result |= {kind: {name: medians(rows) for name, rows in servers.items()} for kind, servers in told.items()}
    result |= {f"metrics of {ENGINES} engines": scrapes(options.rounds)}
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def medians(rows: list[Json]) -> Json:
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


# --- imports ----------------------------------------------------------------------------------------------------------

_IMPORTS = """
import importlib, sys, time
def rss(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
[importlib.import_module(name) for name in {before!r}]
memory, began = rss(), time.perf_counter()
importlib.import_module({module!r})
print((time.perf_counter() - began) * 1e3, rss() - memory)
"""
_BEFORE = {"alone": [], "agent": ["agent.server.main"], "loop": ["automation.loop"]}
_MODULES = {"bounded": "agent.http_server", "aiohttp": "aiohttp.web"}


def imports(rounds: int) -> Json:
    """Import each server in new processes, in turns. Where the process has it already, it adds nothing."""
    told: dict[str, dict[str, list[Json]]] = {}
    for _ in range(rounds):
        for process, before in _BEFORE.items():
            for name, module in _MODULES.items():
                program = _IMPORTS.format(before=before, module=module)
                text = subprocess.run(
                    [sys.executable, "-c", program], check=True, capture_output=True, text=True
                ).stdout
                took, memory = (float(part) for part in text.split())
                row = {"import (ms)": took, "memory (MB)": memory}
                told.setdefault(process, {}).setdefault(name, []).append(row)
    return {process: {name: medians(rows) for name, rows in each.items()} for process, each in told.items()}


# --- servers ----------------------------------------------------------------------------------------------------------


def serve(name: str) -> None:
    """Listen with and without TLS, print both ports, and answer until stdin ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory(prefix="herdsman-bench-") as directory:
        files = Path(directory, "tls.crt"), Path(directory, "tls.key")
        for path, content in zip(files, self_signed.make(["127.0.0.1"]), strict=True):
            path.write_bytes(content)
        context.load_cert_chain(*files)
    if name == "bounded":
        serve_bounded(context)
    else:
        asyncio.run(serve_aiohttp(context))


def answered(path: str, authorization: str, body: bytes) -> tuple[HTTPStatus, str, bytes]:
    """Return the answer of the services that both servers carry."""
    from automation.webhook.review import answer

    if path == "/healthz":
        return HTTPStatus.OK, "text/plain", b"ok\n"
    if not hmac.compare_digest(authorization.encode(), f"Bearer {TOKEN}".encode()):
        return HTTPStatus.UNAUTHORIZED, "text/plain", b"send the token\n"
    if path == "/convert":
        return HTTPStatus.OK, "application/json", answer(body)
    return HTTPStatus.OK, "application/json", _REPORT


def serve_bounded(context: ssl.SSLContext) -> None:
    class Handler(BoundedHandler):
        def do_GET(self) -> None:  # noqa: N802 - the base class calls it so
            status, kind, content = answered(self.path, self.headers.get("Authorization", ""), self.body())
            self.answer(status, content, kind)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

    plain = BoundedServer(("127.0.0.1", 0), Handler, name="plain", bounds=BOUNDS)
    secured = BoundedServer(("127.0.0.1", 0), Handler, name="tls", bounds=BOUNDS, tls=lambda: context)
    plain.start()
    secured.start()
    print(plain.server_port, secured.server_port, flush=True)
    sys.stdin.read()


async def serve_aiohttp(context: ssl.SSLContext) -> None:
    from aiohttp import web

    async def handle(request: web.Request) -> web.Response:
        authorization = request.headers.get("Authorization", "")
        status, kind, content = answered(request.path, authorization, await request.read())
        return web.Response(status=status, body=content, content_type=kind)

    application = web.Application(client_max_size=BOUNDS.body_bytes)
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    for tls in (None, context):
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    print(*(address[1] for address in runner.addresses), flush=True)
    await asyncio.to_thread(sys.stdin.read)


@dataclass(frozen=True)
class Running:
    """A server's process."""

    process: psutil.Process
    port: int
    tls_port: int

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_mb(self) -> float:
        return float(self.process.memory_info().rss / 1e6)


@contextmanager
def running(name: str) -> Iterator[Running]:
    """Run a server until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.http_servers", f"--serve={name}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port, tls_port = (int(part) for part in process.stdout.readline().split())
        yield Running(psutil.Process(process.pid), port, tls_port)
    finally:
        process.stdin.close()
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.stdout.close()


# --- load -------------------------------------------------------------------------------------------------------------


def load(server: Running, kind: Kind, seconds: float) -> Json:
    """Send requests over several connections at once. Raises RuntimeError for a response that is not 200."""
    end = time.monotonic() + seconds
    took: list[float] = []
    faults: list[BaseException] = []

    def client() -> None:
        try:
            took.extend(client_times(server, kind, end))
        except BaseException as error:
            faults.append(error)

    cpu_s, began = server.cpu_s(), time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if faults:
        raise RuntimeError(f"{kind.name}: {faults[0]!r}") from faults[0]
    took.sort()
    return {
        "requests/s": len(took) / (time.monotonic() - began),
        "CPU (us/request)": (server.cpu_s() - cpu_s) * 1e6 / len(took),
        "p50 (ms)": took[len(took) // 2] * 1e3,
        "p99 (ms)": took[len(took) * 99 // 100] * 1e3,
    }


def client_times(server: Running, kind: Kind, end: float) -> list[float]:
    """Send one request after the other; return the seconds that each took."""
    told = []
    request = kind.head()
    connection: socket.socket | None = None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while (began := time.monotonic()) < end:
        if connection is None:
            connection = socket.create_connection(
                ("127.0.0.1", server.tls_port if kind.tls else server.port), timeout=TIMEOUT_S
            )
            connection = context.wrap_socket(connection) if kind.tls else connection
        connection.sendall(request)
        read_answer(connection)
        if not kind.is_kept_open:
            connection.close()
            connection = None
        told.append(time.monotonic() - began)
    if connection is not None:
        connection.close()
    return told


def read_answer(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        raise RuntimeError(head.decode("utf-8", "replace"))
    left = int(head.lower().partition(b"content-length:")[2].split(None, 1)[0]) - len(body)
    while left > 0:
        left -= len(_received(connection))


def _received(connection: socket.socket) -> bytes:
    part = connection.recv(1 << 16)
    if not part:
        raise RuntimeError("the server closed the connection")
    return part


# --- scraper ----------------------------------------------------------------------------------------------------------


def scrapes(rounds: int) -> Json:
    """Fetch the metrics of many engines at the same time, by the agent's scraper and by urllib3 in threads."""
    import urllib3

    class Metrics(BoundedHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:  # noqa: N802 - the base class calls it so
            self.answer(HTTPStatus.OK, _METRICS)

    engine = BoundedServer(("127.0.0.1", 0), Metrics, name="engine", bounds=BOUNDS)
    engine.start()
    engines = [Engine(f"prod/e{n}", "e", "127.0.0.1", engine.server_port, "/metrics") for n in range(ENGINES)]

    def by_urllib3() -> dict[str, str]:
        def fetch(each: Engine) -> tuple[str, str]:
            with urllib3.PoolManager() as pool:
                url = f"http://{each.address}:{each.port}{each.path}"
                return each.key, pool.request("GET", url, timeout=1.0, retries=False).data.decode()

        with concurrent.futures.ThreadPoolExecutor(ENGINES) as threads:
            return dict(threads.map(fetch, engines))

    told: dict[str, list[Json]] = {}
    ways: dict[str, Callable[[], dict[str, Any]]] = {"sockets": lambda: fetch_all(engines), "urllib3": by_urllib3}
    try:
        for _ in range(rounds * 10):
            for name, fetch in ways.items():
                began, cpu_s = time.perf_counter(), time.process_time()
                if len(fetch()) != ENGINES:
                    raise RuntimeError(f"{name}: an engine did not answer")
                took_ms, cpu_ms = (time.perf_counter() - began) * 1e3, (time.process_time() - cpu_s) * 1e3
                told.setdefault(name, []).append({"took (ms)": took_ms, "CPU with the engines' (ms)": cpu_ms})
    finally:
        engine.stop()
    return {name: medians(rows) for name, rows in told.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
