"""`python -m benchmarks gateway`: what the gateway costs, in four parts.

- `requests`: nginx answers small chat completions to wrk, directly and through the gateway in turns. The gateway meters
  all of them into SQLite. Clients have a key without limits, or a key with limits, which reserves and settles.
- `litellm`, with `--litellm`: the same requests to the gateway and to LiteLLM's proxy in turns.
- `paced`: 1,000 streams of 50 events a second, directly and through the gateway in turns; how late the events come.
- `streams`: the memory of the gateway with many open streams that have an event each five seconds.

All processes share this machine's processors, so the figures of a busy machine are only good for comparisons of CPU
time. All traffic stays on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import litellm_proxy
from benchmarks.paced_streams import Lateness
from benchmarks.wrk import cpu_s, load, missing_programs, nginx, running
from gateway.access.authentication import Access
from gateway.access.caller import Caller
from gateway.access.keys import Key, KeyRing, digest
from gateway.accounting.limits import Limit, Unit
from gateway.accounting.stores import SqliteStore
from gateway.engines.backends import Route
from gateway.limits import GatewayLimits
from gateway.names import Model, ServiceName
from gateway.server import GatewayServer
from kubeapi.json_types import Json

LIMITS = {
    "added p50 (ms)": 0.6,
    "added p99 (ms)": 3.0,
    "paced, gateway: p99 late (ms)": 50.0,
    "RSS for 10,000 streams (MB)": 500.0,
}
LEAST = {"gateway: requests/s": 6000.0, "beside LiteLLM, ratio of requests/s": 10.0}
PARTS = ("requests", "litellm", "paced", "streams")
FEW, MANY = 4, 32
"""Connections at once. Few of them show the added time, many show the throughput."""
ENGINE_PORT, GATEWAY_PORT = 18490, 18491
MODEL = "tiny"
PATH = "/v1/chat/completions"
EVENT_S = 5.0
OPEN_TOGETHER = 200
ANSWER = (
    '{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"finish_reason":"stop",'
    '"message":{"role":"assistant","content":"Fine."}}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
ASKED = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "How are you?"}], "max_tokens": 4})
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {key}"
wrk.body = [[{asked}]]
"""
_KEYS = {name: f"hd-{number:012x}-{number:040x}" for number, name in enumerate(("key", "limits"))}
"""A key without limits, and one with limits that are never reached."""
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
_CHUNK = f"{len(_EVENT):x}\r\n".encode() + _EVENT + b"\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def main(arguments: list[str]) -> int:
    """Measure, print JSON, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure; by default all")
    parser.add_argument("--seconds", type=int, default=5, help="length of each round of requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=9000, help="open answers; each needs two files of the gateway")
    parser.add_argument("--paced-streams", type=int, default=1000, help="streams of the part `paced`")
    parser.add_argument("--tokens-per-s", type=float, default=50.0, help="events a second of each of these streams")
    parser.add_argument("--phases", type=int, default=10, help="groups of these streams, whose events come together")
    parser.add_argument("--litellm", metavar="PATH", help="the command `litellm` of an installation of its proxy")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="herdsman-bench-"))
    result: Json = {"load of the machine before": round(os.getloadavg()[0], 2)}
    parts = set(options.parts)
    try:
        if missing := missing_programs():
            sys.stderr.write(f"left out the requests: {' and '.join(missing)} not found on PATH\n")
            parts -= {"requests", "litellm"}
        if "requests" in parts:
            result |= requests(directory, options.seconds, options.rounds)
        if "litellm" in parts and options.litellm:
            result |= beside_litellm(directory, options.litellm, options.seconds, options.rounds)
        if "paced" in parts:
            streams_of = (options.paced_streams, options.tokens_per_s, options.phases)
            result |= paced(directory, *streams_of, options.seconds, options.rounds)
        if "streams" in parts:
            result |= streams(directory, options.streams)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
    met = all(result[name] <= limit for name, limit in LIMITS.items() if name in result)
    return 0 if met and all(result[name] >= least for name, least in LEAST.items() if name in result) else 1


def serve(folder: str) -> None:
    """Run a gateway with one replica until the process is killed, for an hour at most. Its accounts are in `folder`."""
    limits = (Limit("bench", Unit.REQUESTS, 1 << 40), Limit("bench", Unit.TOKENS, 1 << 40))
    callers = (Caller(_KEYS["key"][3:15], "key"), Caller(_KEYS["limits"][3:15], "limits", limits=limits))
    ring = KeyRing.of(Key(caller, digest(_KEYS[caller.name])) for caller in callers)
    gateway = GatewayServer(
        GatewayLimits(max_connections=100_000),
        access=Access(required=False, ring=ring),
        store=SqliteStore(f"{folder}/gateway.db"),
    )
    gateway.set_routes([Route(Model(ServiceName("bench", MODEL)), (("127.0.0.1", ENGINE_PORT),))])
    gateway.start("127.0.0.1", GATEWAY_PORT)
    time.sleep(3600)


def own(call: str) -> list[str]:
    """Return the command of a process that calls a function of this module, and imports no other benchmark."""
    return [sys.executable, "-c", f"from benchmarks import gateway; gateway.{call}"]


def _gateway(directory: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    return running(own(f"serve({str(directory)!r})"), GATEWAY_PORT)


# --- requests ---------------------------------------------------------------------------------------------------------


def requests(directory: Path, seconds: int, rounds: int) -> Json:
    """Send requests directly, and through the gateway with each key, in turns."""
    told: dict[str, list[float]] = {}
    ways = {"direct": (ENGINE_PORT, "key"), "gateway": (GATEWAY_PORT, "key"), "with limits": (GATEWAY_PORT, "limits")}
    scripts = {name: _script(directory, name, key) for name, key in _KEYS.items()}
    with nginx(directory, ENGINE_PORT, ANSWER), _gateway(directory) as gateway:
        for _ in range(rounds):
            for way, (port, key) in ways.items():
                few = load(port, FEW, seconds, path=PATH, script=scripts[key])
                before_s = cpu_s(gateway)
                many = load(port, MANY, seconds, path=PATH, script=scripts[key])
                if port == GATEWAY_PORT:
                    cpu_us = (cpu_s(gateway) - before_s) / many.requests * 1e6
                    told.setdefault(f"{way}: CPU of a request (µs)", []).append(cpu_us)
                told.setdefault(f"{way}: p50 (ms)", []).append(few.p50_ms)
                told.setdefault(f"{way}: p99 (ms)", []).append(few.p99_ms)
                told.setdefault(f"{way}: requests/s", []).append(many.rate)
    result = {name: round(statistics.median(values), 3) for name, values in told.items()}
    for quantile in ("p50", "p99"):
        added = result[f"gateway: {quantile} (ms)"] - result[f"direct: {quantile} (ms)"]
        result[f"added {quantile} (ms)"] = round(added, 3)
    return result


def beside_litellm(directory: Path, command: str, seconds: int, rounds: int) -> Json:
    """Send requests to the gateway, with a key without limits, and to LiteLLM in turns."""
    scripts = (_script(directory, "key", _KEYS["key"]), _script(directory, "litellm", litellm_proxy.KEY))
    with nginx(directory, ENGINE_PORT, ANSWER), _gateway(directory) as gateway:
        return litellm_proxy.beside(
            directory,
            command,
            gateway,
            scripts,
            ports=(GATEWAY_PORT, ENGINE_PORT),
            connections=MANY,
            seconds=seconds,
            rounds=rounds,
            path=PATH,
            model=MODEL,
        )


def _script(directory: Path, name: str, key: str) -> Path:
    """Write wrk's script for clients with a key."""
    path = directory / f"{name}.lua"
    path.write_text(_SCRIPT.format(key=key, asked=ASKED))
    return path


# --- paced streams ----------------------------------------------------------------------------------------------------


def paced(directory: Path, count: int, rate: float, groups: int, seconds: int, rounds: int) -> Json:
    """Send `rate` events a second on `count` streams, directly and through the gateway in turns."""
    told: dict[str, list[float]] = {}
    with _gateway(directory) as gateway:
        for _ in range(rounds):
            for way, port in (("direct", ENGINE_PORT), ("gateway", GATEWAY_PORT)):
                seen, passed_s, cpu = _paced_once(port, gateway, count, rate, groups, seconds)
                figures = {
                    "p50 late (ms)": seen.p50_ms,
                    "p99 late (ms)": seen.p99_ms,
                    "max late (ms)": seen.max_ms,
                    "p99 sent late (ms)": seen.send_p99_ms,
                    "events a read": seen.events_a_read,
                    "share of a core of engine and clients (%)": 100 * seen.cpu_s / passed_s,
                }
                if way == "gateway":
                    figures["CPU of an event (µs)"] = cpu / seen.events * 1e6
                    figures["share of a core (%)"] = 100 * cpu / passed_s
                for name, value in figures.items():
                    told.setdefault(f"paced, {way}: {name}", []).append(value)
    result = {name: round(statistics.median(values), 2) for name, values in told.items()}
    best = {f"{name}, best round": min(values) for name, values in told.items() if name.endswith("p99 late (ms)")}
    return {"paced streams": count, "paced: events/s": count * rate} | result | best


def _paced_once(
    port: int, gateway: subprocess.Popen[bytes], count: int, rate: float, groups: int, seconds: int
) -> tuple[Lateness, float, float]:
    """Return what the clients saw, and the measured time and the gateway's CPU time in it, in seconds."""
    arguments = [f"--port={port}", f"--engine-port={ENGINE_PORT}", f"--streams={count}", f"--groups={groups}"]
    command = [sys.executable, "-m", "benchmarks.paced_streams", *arguments, f"--rate={rate}", f"--seconds={seconds}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_request())
        process.stdin.close()
        process.stdout.readline()
        began, before_s = time.monotonic(), cpu_s(gateway)
        process.stdout.readline()
        passed_s, cpu = time.monotonic() - began, cpu_s(gateway) - before_s
        told = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"the paced streams failed with {process.returncode}")
    return Lateness(**json.loads(told)), passed_s, cpu


def _request() -> bytes:
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Authorization: Bearer {_KEYS['key']}\r\nContent-Length: {len(ASKED)}\r\n\r\n"
    )
    return f"{head}{ASKED}".encode()


# --- streams ----------------------------------------------------------------------------------------------------------


def streams(directory: Path, count: int) -> Json:
    """Open `count` streamed answers at the same time; return the gateway's memory before and with them.

    Raises RuntimeError for a stream that is not answered.
    """
    with running(own("stream()"), ENGINE_PORT), _gateway(directory) as gateway:
        process = psutil.Process(gateway.pid)
        before = process.memory_info().rss
        rss = asyncio.run(_hold(count, process))
    return {
        "RSS without streams (MB)": round(before / 1e6, 1),
        "streams": count,
        "RSS with streams (MB)": round(rss / 1e6, 1),
        "RSS for 10,000 streams (MB)": round((before + (rss - before) * 10_000 / max(1, count)) / 1e6, 1),
    }


async def _hold(count: int, process: psutil.Process) -> int:
    """Open streams, wait for two events of each, and return the memory of the gateway then, in bytes."""
    room = asyncio.Semaphore(OPEN_TOGETHER)
    writers: list[asyncio.StreamWriter] = []

    async def one() -> asyncio.StreamReader:
        async with room:
            reader, writer = await asyncio.open_connection("127.0.0.1", GATEWAY_PORT)
            writers.append(writer)
            writer.write(_request())
            answered = await reader.readuntil(b"\r\n\r\n")
            if not answered.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError((answered + await reader.read()).decode("utf-8", "replace"))
            await reader.readuntil(b"\n\n")
            return reader

    readers = await asyncio.gather(*(one() for _ in range(count)))
    await asyncio.gather(*(reader.readuntil(b"\n\n") for reader in readers))
    rss = process.memory_info().rss
    for writer in writers:
        writer.close()
    return rss


def stream() -> None:
    """Be an engine that answers every request with a stream without an end, for an hour at most."""
    asyncio.run(_stream())


async def _stream() -> None:
    open_streams: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_HEAD + _CHUNK)
            open_streams.add(writer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            open_streams.discard(writer)
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", ENGINE_PORT, backlog=1024):
        for _ in range(int(3600 / EVENT_S)):
            await asyncio.sleep(EVENT_S)
            for writer in list(open_streams):
                writer.write(_CHUNK)
