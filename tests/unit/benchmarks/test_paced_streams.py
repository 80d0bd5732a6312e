"""The load of paced streams counts each event once, and sees how late it comes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from benchmarks.paced_streams import Lateness
from tests.support.supervising import free_port

STREAMS, RATE, SECONDS = 20, 50, 1
DELAY_S = 0.2
ASKED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """The port of a relay that keeps all bytes of answers for a time, and the port behind it."""
    loop, front, back = asyncio.new_event_loop(), free_port(), free_port()

    async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", back)
        behind_writer.write(await reader.readexactly(len(ASKED)))
        while data := await behind_reader.read(1 << 16):
            loop.call_later(DELAY_S, writer.write, data)
        writer.close()

    async def serve() -> None:
        await asyncio.start_server(relayed, "127.0.0.1", front)

    loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield front, back
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def measured(port: int, engine_port: int) -> Lateness:
    arguments = {"port": port, "engine-port": engine_port, "streams": STREAMS, "groups": 3, "rate": RATE}
    command = [sys.executable, "-m", "benchmarks.paced_streams", f"--seconds={SECONDS}", "--warm-up=0.2"]
    command += [f"--{name}={value}" for name, value in arguments.items()]
    told = subprocess.run(command, input=ASKED, check=True, capture_output=True, timeout=120).stdout.splitlines()
    assert told[:2] == [b"begins", b"ends"]
    return Lateness(**json.loads(told[2]))


def test_each_event_is_counted_once() -> None:
    port = free_port()
    assert measured(port, port).events == STREAMS * RATE * SECONDS


def test_a_delay_on_the_way_is_seen(ports: tuple[int, int]) -> None:
    seen = measured(*ports)
    assert seen.events == STREAMS * RATE * SECONDS
    assert DELAY_S * 1000 <= seen.p50_ms <= seen.p99_ms <= seen.max_ms
