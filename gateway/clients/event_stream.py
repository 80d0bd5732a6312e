"""Answers that are streams of events (SSE, `text/event-stream`): their headers, and their end after a break.

`connection` makes an EventStream for each such answer. The bytes of the engine are passed on unchanged; here only the
last ones are remembered, to know whether a break is between two events.
"""

from __future__ import annotations

import json
import re

from agent.proxy.framing import Body, Chunked, ResponseHead, UntilClose

_TYPE = re.compile(rb"^content-type:[ \t]*text/event-stream[ \t]*(?:;|\r?$)", re.IGNORECASE | re.MULTILINE)
_REPLACED = re.compile(rb"^(?:cache-control|x-accel-buffering):[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
HEADERS = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
"""Proxies in front must neither keep nor delay events."""
_KEPT = 16
# In a chunk of one line end alone, the line end before it is that of the chunk's size and not of an event.
_BETWEEN_CHUNKED = re.compile(rb"(?:(?<!\r\n1\r)\n\n|(?<!\r\n2)\r\n\r\n)\r\n\Z")


class EventStream:
    """One stream of events on its way to a client."""

    def __init__(self, body: Body | None) -> None:
        self._body = body
        self._tail = b""

    @classmethod
    def of(cls, head: ResponseHead) -> EventStream | None:
        """Return the stream that an answer begins; None if it is none."""
        return cls(head.body) if _TYPE.search(head.lines) else None

    def passed(self, data: bytes) -> None:
        """Remember the end of what the client got."""
        self._tail = data[-_KEPT:] if len(data) >= _KEPT else (self._tail + data)[-_KEPT:]

    def error_event(self, message: str) -> bytes:
        """Return what ends the stream after a break: an event with the error; empty inside of an event.

        Clients of OpenAI and Anthropic raise an error for it. No `[DONE]` and no last chunk follow, so nothing takes
        the answer for a whole one.
        """
        error = {"message": message, "type": "server_error", "param": None, "code": "upstream_broke_off"}
        event = f"event: error\ndata: {json.dumps({'type': 'error', 'error': error})}\n\n".encode()
        if isinstance(self._body, Chunked):
            ended = not self._tail or _BETWEEN_CHUNKED.search(self._tail) is not None
            return b"%x\r\n%s\r\n" % (len(event), event) if self._body.between_chunks and ended else b""
        if isinstance(self._body, UntilClose):
            return event if not self._tail or self._tail.endswith((b"\n\n", b"\r\n\r\n")) else b""
        return b""


def with_stream_headers(lines: bytes) -> bytes:
    """Return the head of an answer with the headers of a stream of events."""
    return _REPLACED.sub(b"", lines) + HEADERS
