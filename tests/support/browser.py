"""A real Chromium without a window, driven by its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/ describes the methods. Each `Browser` has a profile of its own, so
no cookie outlives it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
_START_S = 60.0
_WAIT_S = 60.0


def chromium() -> str | None:
    """Find Chromium on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Browser:
    """One page of a running browser."""

    socket: aiohttp.ClientWebSocketResponse
    faults: list[str] = field(default_factory=list)
    """Errors of scripts, failed loads, and what the Content-Security-Policy refused."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            told = await self.socket.receive_json(timeout=_WAIT_S)
            if told.get("id") == number:
                assert "error" not in told, f"{method}: {told['error']}"
                return dict(told["result"])
            self._note(told)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                entry = event["params"]["entry"]
                self.faults.append(f"{entry['text']} {entry.get('url', '')}")
            case "Runtime.exceptionThrown":
                self.faults.append(str(event["params"]["exceptionDetails"]))

    async def run(self, script: str) -> Any:
        """Run an expression in the page, and return its value. A promise is awaited."""
        done = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        deadline = time.monotonic() + _WAIT_S
        while not await self._is_true(script):
            assert time.monotonic() < deadline, (
                f"{script} stayed false; the page says: {await self.run('document.body.innerText')}"
            )
            await asyncio.sleep(0.05)

    async def _is_true(self, script: str) -> bool:
        with contextlib.suppress(AssertionError):  # the page is being replaced
            return bool(await self.run(f"Boolean({script})"))
        return False

    async def go(self, url: str) -> None:
        """Open an address, and wait for the page."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def screenshot(self, path: Path) -> None:
        """Write a picture of the page as PNG."""
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))


@contextlib.asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Browser]:
    """Run a browser with its profile in a directory; yields its page."""
    program = chromium()
    assert program is not None
    options = (
        "--headless=new",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        "--no-first-run",
        "--disable-gpu",
    )
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()  # Chromium refuses to run as root with one
    profile = directory / "profile"
    process = await asyncio.create_subprocess_exec(
        program,
        *options,
        *sandbox,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(directory)},
    )
    try:
        address = await _address(profile / "DevToolsActivePort")
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"http://{address}/json/new?about:blank") as made,
            session.ws_connect((await made.json())["webSocketDebuggerUrl"], max_msg_size=0) as socket,
        ):
            page = Browser(socket)
            for domain in ("Page", "Log", "Runtime"):
                await page.call(f"{domain}.enable")
            yield page
    finally:
        process.terminate()
        await process.wait()


async def _address(file: Path) -> str:
    """Wait until the browser has written its port."""
    deadline = time.monotonic() + _START_S
    while not file.exists() or not file.read_text().strip():
        assert time.monotonic() < deadline, "Chromium did not start"
        await asyncio.sleep(0.05)
    return f"127.0.0.1:{file.read_text().split()[0]}"
