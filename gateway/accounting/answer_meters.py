"""Read the tokens of an answer while its bytes pass to the client. Without I/O; `account` calls them.

The bytes of an answer are passed on unchanged, with one exception: if the gateway asked the engine for the usage of a
stream, and the client did not, the event that holds only the usage is left out.
"""

from __future__ import annotations

import json
from typing import Protocol

from gateway.accounting.tokens import NOTHING, Tokens, reported, reports

TAIL = 32 * 1024
"""How much of the end of an answer is searched for its usage, in bytes."""
LONGEST_EVENT = 256 * 1024
"""A longer event of a stream is passed on unread."""


class Meter(Protocol):
    """Reads one answer."""

    tokens: Tokens
    """What the engine has reported so far."""
    events: int
    """Events of a stream so far; an engine sends about one for each token."""

    def passes(self, data: bytes) -> bytes:
        """Read the next bytes of the answer, with their framing; return those for the client."""
        ...

    def ends(self) -> None:
        """Read what is left after the last byte."""
        ...


class ChunkReader:
    """Takes the content out of a chunked body, which `framing` has checked."""

    __slots__ = ("_in_trailers", "_left", "_line", "at_boundary", "done")

    def __init__(self) -> None:
        self.at_boundary = True
        """All bytes so far form whole chunks."""
        self.done = False
        self._left = 0
        """Remaining bytes of the chunk, with the line end after it."""
        self._line = b""
        self._in_trailers = False

    def read(self, data: bytes) -> bytes:
        """Return the content of the next bytes."""
        parts: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.done:
            if self._left:
                step = min(self._left, end - at)
                parts.append(data[at : at + min(step, max(0, self._left - 2))])
                self._left -= step
                at += step
                continue
            found = data.find(b"\n", at)
            if found < 0:
                self._line += data[at:]
                break
            line = (self._line + data[at:found]).strip()
            self._line, at = b"", found + 1
            if self._in_trailers:
                self.done = not line
            else:
                size = int(line.partition(b";")[0], 16)
                if size and at + size + 2 <= end:
                    parts.append(data[at : at + size])
                    at += size + 2
                    continue
                self._left = size + 2 if size else 0
                self._in_trailers = size == 0
        self.at_boundary = self.done or not (self._left or self._line or self._in_trailers)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class BodyMeter:
    """Reads an answer of JSON: `usage` is at its end, or the whole answer is short."""

    __slots__ = ("_chunks", "_tail", "events", "tokens")

    def __init__(self, *, chunked: bool) -> None:
        self.tokens = NOTHING
        self.events = 0
        self._chunks = ChunkReader() if chunked else None
        self._tail = b""

    def passes(self, data: bytes) -> bytes:
        content = self._chunks.read(data) if self._chunks is not None else data
        self._tail = (self._tail + content)[-TAIL:] if self._tail else content[-TAIL:]
        return data

    def ends(self) -> None:
        self.tokens = reported(self._tail)
        self._tail = b""


class StreamMeter:
    """Reads a stream of server-sent events."""

    __slots__ = ("_chunks", "_drop", "_partial", "_unread", "events", "tokens")

    def __init__(self, *, chunked: bool, drop_usage: bool) -> None:
        """`drop_usage`: leave out the event that holds only the usage."""
        self.tokens = NOTHING
        self.events = 0
        self._chunks = ChunkReader() if chunked else None
        self._drop = drop_usage
        self._partial = b""
        """The begin of an event whose end has not come; with `drop_usage` it was not passed on yet."""
        self._unread = False
        """The present event is too long to be read."""

    def passes(self, data: bytes) -> bytes:
        chunks = self._chunks
        aligned = chunks is None or chunks.at_boundary
        content = chunks.read(data) if chunks is not None else data
        held = self._partial
        complete, self._partial = _divided(held + content if held else content)
        self.events += complete.count(b"data:")
        passed = self._without_dropped(complete) if reports(complete) else complete
        if not self._drop:
            self._bound()
            return data
        if len(self._partial) > LONGEST_EVENT:
            passed, self._partial = passed + self._partial, b""
        ended = chunks is not None and chunks.done
        if ended:
            passed, self._partial = passed + self._partial, b""
        if aligned and not held and len(passed) == len(content) and (chunks is None or chunks.at_boundary):
            return data
        if chunks is None:
            return passed
        framed = b"%x\r\n%s\r\n" % (len(passed), passed) if passed else b""
        return framed + b"0\r\n\r\n" if ended else framed

    def ends(self) -> None:
        """Do nothing: events were read as they came."""

    def left(self) -> bytes:
        """Return the bytes that were held back when a stream without an announced end ends."""
        if not self._drop or self._chunks is not None:
            return b""
        held, self._partial = self._partial, b""
        return held

    def _bound(self) -> None:
        if len(self._partial) > LONGEST_EVENT:
            self._partial = self._partial[-TAIL:]

    def _without_dropped(self, events: bytes) -> bytes:
        return b"".join(event for event in _events(events) if self._read(event))

    def _read(self, event: bytes) -> bool:
        """Read the usage of an event; return whether the event is for the client."""
        if not reports(event):
            return True
        self.tokens |= reported(event)
        return not (self._drop and _is_only_usage(event))


def _divided(data: bytes) -> tuple[bytes, bytes]:
    """Return whole events and the begin of the next one."""
    if data.endswith(b"\n\n"):
        return data, b""
    end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3)
    # Both searches return -1 if nothing is found.
    return (data[:end], data[end:]) if end > 2 else (b"", data)


def _events(data: bytes) -> list[bytes]:
    """Divide whole events, with the empty lines at their ends."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        ends = [end + len(mark) for mark in (b"\n\n", b"\n\r\n") if (end := data.find(mark, at)) >= 0]
        end = min(ends, default=len(data))
        found.append(data[at:end])
        at = end
    return found


def _is_only_usage(event: bytes) -> bool:
    """Return whether an event is the chunk that `stream_options.include_usage` adds."""
    line = next((line for line in event.split(b"\n") if line.startswith(b"data:")), b"")
    try:
        value = json.loads(line.removeprefix(b"data:"))
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("choices") == [] and isinstance(value.get("usage"), dict)
