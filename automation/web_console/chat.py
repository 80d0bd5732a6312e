"""The playground's chat: sends a conversation to a service, and passes the answer's pieces on.

The service is reached as by `herdsman chat` (`Place.reach`, `automation.chat.completions`), so that the browser needs
neither its address nor its key. Nothing of a conversation is kept or logged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator

from automation.chat.completions import CompletionFailed, Completions, Piece
from automation.places.place import Place, PlaceError, ServiceState
from kubeapi.json_types import Json

MAX_MESSAGES = 200
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


async def answer(place: Place, service: ServiceState, messages: list[Json]) -> AsyncGenerator[str, None]:
    """Yield the pieces of the answer. Raises PlaceError, also when the answer breaks off before its end."""
    pieces = _pieces(place, service, messages)
    try:
        # Each step blocks, the first one while a sleeping service starts.
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            if piece.text:
                yield piece.text
    except CompletionFailed as error:
        raise PlaceError(str(error)) from error
    finally:
        # A step that still runs in its thread ends the request when it returns.
        with contextlib.suppress(ValueError):
            await asyncio.to_thread(pieces.close)


def _pieces(place: Place, service: ServiceState, messages: list[Json]) -> Generator[Piece, None, None]:
    with place.reach(service) as way, Completions(way) as completions:
        yield from completions.stream(messages)
