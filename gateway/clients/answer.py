"""An engine's answer on its way to the client: its head, its bytes, and its end after a break.

`connection` makes one when an answer begins. The account reads the bytes that pass; for a stream of events, the last
ones are remembered, so that an error event can follow a break. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio

from agent.proxy.connections import reset
from agent.proxy.framing import Chunked, ResponseHead, UntilClose
from gateway.accounting.account import Account
from gateway.accounting.answer_meters import ChunkReader
from gateway.clients import heads
from gateway.clients.event_stream import EventStream, with_stream_headers

BROKE_OFF = "the replica stopped before its answer was whole; send the request again"
LINGER_S = 2.0
"""How long a client has to read the error event of a broken stream."""


class ClientAnswer:
    """The answer to one request."""

    def __init__(
        self,
        transport: asyncio.Transport,
        account: Account,
        request: heads.Head,
        head: ResponseHead,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport = transport
        self._account = account
        self._request = request
        self._head = head
        self._loop = loop
        # HTTP/1.0 has no chunks.
        self._chunks = ChunkReader() if request.old and isinstance(head.body, Chunked) else None
        self._until_close = isinstance(head.body, UntilClose) or self._chunks is not None
        self._events = EventStream.of(head._replace(body=UntilClose()) if self._chunks is not None else head)

    @property
    def closes(self) -> bool:
        """The connection ends with the answer."""
        return self._head.old or self._until_close

    def begins(self, data: bytes, *, close: bool) -> None:
        """Pass on the head, and the first bytes of the body."""
        account, request = self._account, self._request
        data = account.answer_begins(self._head, data, self._loop.time())
        ending = b"\r\n"
        if close:
            ending = b"Connection: close\r\n\r\n"
        elif request.old:
            ending = b"Connection: keep-alive\r\n\r\n"
        lines = heads.without_own_lines(self._head.lines)
        if self._chunks is not None:
            lines, data = heads.without_chunks(lines), self._chunks.read(data)
        if self._events is not None:
            lines = with_stream_headers(lines)
            self._events.passed(data)
        limits = heads.lines_of(account.headers)
        self._transport.write(b"".join((lines, limits, request.request_id_line, request.cors_lines, ending, data)))

    def continues(self, data: bytes) -> None:
        """Pass on the next bytes of the body."""
        passed = self._account.passes(data)
        if self._chunks is not None:
            passed = self._chunks.read(passed)
        if not passed:
            return
        if self._events is not None:
            self._events.passed(passed)
        self._transport.write(passed)

    def ends(self) -> None:
        """Pass on what is left after the last byte."""
        self._transport.write(self._account.left())
        self._account.ends(self._loop.time(), completed=True)

    def breaks_off(self) -> None:
        """Let the client see that the answer is incomplete, and close its connection."""
        event = self._events.error_event(BROKE_OFF) if self._events is not None else b""
        if event:
            self._transport.write(event)
        if not self._until_close:
            self._transport.close()
        elif event:
            # A reset at once would take the event away from a client that has not read it.
            self._loop.call_later(LINGER_S, reset, self._transport)
        else:
            # An orderly close would look like the end of the body.
            reset(self._transport)
