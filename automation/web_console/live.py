"""The moving parts of the pages: events that tell a page to load its content again, and the lines of a log.

Both are streams of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). A stream ends
with the session of its reader.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from functools import partial

from aiohttp import web

from automation.console.terminal_text import LogText
from automation.places.log_sources import NoLog
from automation.places.place import PlaceError, ServiceState
from automation.places.replica_logs import LogTail
from automation.places.resource_use import HostUse
from automation.places.service_view import pending_of
from automation.web_console.reading import Reading

CHANGES_PAUSE_S = 2.0
"""How often the place is read for the events that tell the pages of a session to load again."""
LOG_PAUSE_S = 1.0
"""How often a log is read for new lines."""
TOPICS = ("services", "models", "hosts", "changes")
"""The topics that a page may follow."""
_STEP_BITS = 24
"""Downloads and memory count in steps of 16 MiB."""

IsOpen = Callable[[], bool]
"""Returns whether the reader's session is still open."""


def stream(headers: dict[str, str]) -> web.StreamResponse:
    """Return a response for server-sent events."""
    # A proxy must not wait for the end of the answer.
    own = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
    return web.StreamResponse(headers={**headers, **own})


def event(name: str, **data: object) -> bytes:
    """Return one event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def send_changes(
    request: web.Request, response: web.StreamResponse, reading: Reading, topic: str, is_open: IsOpen
) -> None:
    """Send `changed` whenever the services, Models or hosts have changed."""
    await response.prepare(request)
    before = ""
    while _is_connected(request) and is_open():
        try:
            now = await reading.shared.read(topic, partial(_digest, reading, topic), fresh_s=CHANGES_PAUSE_S)
        except PlaceError:
            now = "unreachable"
        await response.write(b": alive\n\n" if before in ("", now) else event("changed", of=topic))
        before = now
        await asyncio.sleep(CHANGES_PAUSE_S)


async def send_log(request: web.Request, response: web.StreamResponse, tail: LogTail, is_open: IsOpen) -> None:
    """Send the end of a log as `whole`, then new text as `lines`; `ended` says why no more comes."""
    await response.prepare(request)
    clean, name = LogText(), "whole"
    try:
        while _is_connected(request) and is_open():
            text = clean(await asyncio.to_thread(tail.read_new))
            await response.write(event(name, text=text) if text or name == "whole" else b": alive\n\n")
            name = "lines"
            await asyncio.sleep(LOG_PAUSE_S)
        await response.write(event("ended", text="The session has ended."))
    except NoLog as error:
        await response.write(event("ended", text=words_of(error)))


def words_of(error: NoLog) -> str:
    """Return the sentences about a log that cannot be read."""
    sentences = (each for each in (str(error), error.hint) if each)
    return " ".join(f"{each[:1].upper()}{each[1:]}." for each in sentences)


def _is_connected(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()


def _digest(reading: Reading, topic: str) -> str:
    match topic:
        case "models":
            told: object = [
                [each["metadata"].get("namespace"), each["metadata"]["name"], _steps(each.get("status") or {})]
                for each in reading.models()
            ]
        case "hosts":
            told = [_of_host(each) for each in reading.hosts()]
        case "changes":
            documents = [*(each.document for each in reading.services()), *reading.pending_resources()]
            told = [
                [each["metadata"].get("uid"), pending["digest"]] for each in documents if (pending := pending_of(each))
            ]
        case _:
            told = [_of_service(each) for each in reading.services()]
    return hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()


def _of_service(each: ServiceState) -> list[object]:
    done = each.download.done_bytes >> _STEP_BITS if each.download is not None else None
    replicas = (each.ready_replicas, each.desired_replicas)
    return [each.namespace, each.kind, each.name, each.state, each.message, *replicas, done]


def _of_host(each: HostUse) -> list[object]:
    return [each.name, each.state, each.serving, each.processes, each.pressure, (each.memory_bytes or 0) >> _STEP_BITS]


def _steps(status: dict[str, object]) -> list[object]:
    told = status.get("download")
    done = told.get("bytes") if isinstance(told, dict) else None
    return [status.get("phase"), status.get("size"), int(done) >> _STEP_BITS if isinstance(done, int) else done]
