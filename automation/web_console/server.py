"""The process of `herdsman console`: listens on loopback until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from aiohttp import web

from automation.web_console.application import Console
from automation.web_console.reading import Reading
from automation.web_console.sessions import Sessions

ADDRESS = "127.0.0.1"
_END_S = 2.0


def run(reading: Reading, *, port: int, started: Callable[[str], None]) -> None:
    """Serve the console until SIGINT or SIGTERM; `started` gets the link. Raises OSError when the port is in use."""
    asyncio.run(_run(reading, port, started))


async def _run(reading: Reading, port: int, started: Callable[[str], None]) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    sessions = Sessions()
    runner = web.AppRunner(
        Console(reading, sessions).application(), access_log=None, shutdown_timeout=_END_S, max_line_size=16384
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, ADDRESS, port)
        await site.start()
        bound = int(runner.addresses[0][1])
        started(f"http://{ADDRESS}:{bound}/open?token={sessions.link_token}")
        await stopping.wait()
    finally:
        await runner.cleanup()
