"""The process of `herdsman console`: listens until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from automation.web_console.application import Console
from automation.web_console.entry import Entry, LinkEntry
from automation.web_console.reading import Reading
from automation.web_console.sessions import Sessions

ADDRESS = "127.0.0.1"
THREADS = 64
"""Requests to the cluster that run at the same time. An answer of a chat occupies one until its end."""
_END_S = 2.0


def run(reading: Reading, *, port: int, started: Callable[[str], None]) -> None:
    """Serve one person on loopback until SIGINT or SIGTERM; `started` gets the link. Raises OSError for a used port."""
    sessions = Sessions()

    def bound(number: int) -> None:
        started(f"http://{ADDRESS}:{number}/open?token={sessions.link_token}")

    asyncio.run(_run(LinkEntry(reading, sessions), ADDRESS, port, None, bound))


def run_for_all(entry: Entry, address: str, port: int, tls: ssl.SSLContext, *, started: Callable[[int], None]) -> None:
    """Serve everybody who signs in until SIGINT or SIGTERM; `started` gets the port. Raises OSError for a used port."""
    asyncio.run(_run(entry, address, port, tls, started))


async def _run(
    entry: Entry, address: str, port: int, tls: ssl.SSLContext | None, started: Callable[[int], None]
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, "console"))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    app = Console(entry).application()
    # The cookie of a session is short, but a proxy may send a token of 16 KiB.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_S, max_line_size=16384, max_field_size=32768)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port, ssl_context=tls)
        await site.start()
        started(int(runner.addresses[0][1]))
        await stopping.wait()
    finally:
        await runner.cleanup()
