"""The playground's chat: sends a conversation to a service, and passes the answer's pieces on.

The service is reached as by `herdsman chat` (`Place.reach`), so that the browser needs neither its address nor its key.
Nothing of a conversation is kept or logged.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from automation.places.place import Place, PlaceError, Reached, ServiceState
from kubeapi.json_types import Json

MAX_MESSAGES = 200
_FIRST_BYTE_S = 600.0
_ROLES = frozenset({"system", "user", "assistant"})


def messages_of(body: object) -> list[Json]:
    """Return the messages of a browser's request. Raises PlaceError for anything else."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise PlaceError(f"`messages` must be a list of 1 to {MAX_MESSAGES} messages")
    for each in messages:
        if not isinstance(each, dict) or each.get("role") not in _ROLES or not isinstance(each.get("content"), str):
            raise PlaceError("a message needs a `role` (system, user or assistant) and a text `content`")
    return [{"role": each["role"], "content": each["content"]} for each in messages]


async def answer(place: Place, service: ServiceState, messages: list[Json]) -> AsyncIterator[str]:
    """Yield the pieces of the answer. Raises PlaceError."""
    async with _reached(place, service) as way:
        headers = {"Authorization": f"Bearer {way.key}"} if way.key else {}
        context = ssl.create_default_context(cafile=way.ca_file) if way.ca_file else None
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_FIRST_BYTE_S)
        body = {"model": way.model, "messages": messages, "stream": True}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False) as client,
                client.post(
                    f"{way.base_url}/chat/completions", json=body, headers=headers, ssl=context or True
                ) as response,
            ):
                if response.status != 200:
                    raise PlaceError(f"the model answered {response.status}: {_error_of(await response.text())}")
                async for line in response.content:
                    if piece := _piece_of(line):
                        yield piece
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PlaceError(f"the connection to `{service.name}` ended: {error}") from error


@asynccontextmanager
async def _reached(place: Place, service: ServiceState) -> AsyncIterator[Reached]:
    """Open and close the way in threads, since both block."""
    manager = place.reach(service)
    way = await asyncio.to_thread(manager.__enter__)
    try:
        yield way
    finally:
        await asyncio.shield(asyncio.to_thread(manager.__exit__, None, None, None))


def _piece_of(line: bytes) -> str:
    """Return the text in one line of the event stream; empty for other lines."""
    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
        return ""
    try:
        event = json.loads(line[5:])
    except ValueError:
        return ""
    if isinstance(event.get("error"), dict):
        raise PlaceError(str(event["error"].get("message", "the model failed")))
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


def _error_of(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return text[:200]
