"""One client's connection: reads its requests in turn and forwards bytes between client and engine without delay.

`server` makes one for each connection. It asks its `service` whether an engine runs and sends the request through an
`upstream`. Runs in the event loop's thread. When the client disconnects, its request is cancelled and the connection to
the engine is closed.
"""

from __future__ import annotations

import asyncio
import os
from typing import cast

from agent.proxy.answers import ErrorCode, error_response
from agent.proxy.connections import enable_keepalive, reset
from agent.proxy.framing import Malformed, RequestHead, ResponseHead, UntilClose
from agent.proxy.incoming import Incoming, KeptRequest
from agent.proxy.service import Service
from agent.proxy.upstream import Target, Upstream

REPLAY_MAX = 64 * 1024
"""Largest part of a request, in bytes, that is kept for a second try until the engine answers."""
CONNECTING_MAX = 256 * 1024
"""Largest part of a request, in bytes, that is read while the connection to the engine is established."""
AHEAD_MAX = 64 * 1024
"""Most bytes that a client may send beyond its current request."""
LINGER_S = 2.0
"""How long a refused client may continue to send its body, so that it can read the error response."""


class Client(asyncio.Protocol):
    """One connection. `request` is the request that is being answered; later ones wait in `_incoming`."""

    __slots__ = (
        "_advancing",
        "_answering",
        "_clogged",
        "_close_after",
        "_connecting",
        "_discarding",
        "_full",
        "_incoming",
        "_kept",
        "_paused",
        "_replayed",
        "_response_until_close",
        "_service",
        "_transport",
        "_upstream",
        "kept_bytes",
        "request",
        "waits_since",
    )

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.request: RequestHead | None = None
        self.waits_since = service.loop.time()
        """Since when the connection has had no request."""
        self.kept_bytes = 0
        """How many bytes of a waiting request are kept."""
        self._incoming = Incoming()
        self._kept = KeptRequest()
        """The request so far, as long as it may have to be sent (again)."""
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._answering = False
        """The head of the response was forwarded."""
        self._response_until_close = False
        self._replayed = False
        self._close_after = False
        self._discarding = False
        self._advancing = False
        self._paused = False
        self._clogged = False
        """The client does not accept more of the response for now."""
        self._full = False
        """The engine does not accept more of the request for now."""

    # --- the connection ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        enable_keepalive(self._transport)
        service = self._service
        if len(service.clients) >= service.limits.max_connections:
            self._discarding = True
            service.count_refusal(ErrorCode.TOO_MANY_CONNECTIONS)
            message = f"{len(service.clients)} connections are open already"
            retry_s = service.limits.retry_after_s
            self._transport.write(
                error_response(503, ErrorCode.TOO_MANY_CONNECTIONS, message, retry_after_s=retry_s, close=True)
            )
            self._transport.close()
            return
        service.clients.add(self)
        peer = self._transport.get_extra_info("peername")
        if not service.admit(str(peer[0]) if peer else "", self._admitted):
            self._transport.pause_reading()

    def _admitted(self, admitted: bool) -> None:
        """Continue with an admitted connection. Others get a 403 response and are closed."""
        if self._transport.is_closing():
            return
        if admitted:
            self._transport.resume_reading()
            return
        self._discarding = True
        self._service.count_refusal(ErrorCode.SOURCE_NOT_ADMITTED)
        message = "the NetworkPolicy of this service does not admit the client"
        self._transport.write(error_response(403, ErrorCode.SOURCE_NOT_ADMITTED, message, close=True))
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._incoming.add(data)
        self._advance()

    def eof_received(self) -> bool:
        # An HTTP client that closes its sending side has left.
        self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._service.clients.discard(self)
        self._incoming.clear()
        self._discarding = True
        if self.request is not None:
            self._cancel()
            self._over()

    def pause_writing(self) -> None:
        self._clogged = True
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        self._clogged = False
        if self._upstream is not None:
            self._upstream.transport.resume_reading()
        self._advance()

    def end(self) -> None:
        """Close the connection and cancel its current request."""
        if self.request is None:
            self._transport.close()
        else:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if it has no request."""
        if self.request is None and not self._incoming:
            self._transport.close()

    def close_if_late(self, now: float) -> None:
        """Close the connection if it has had no complete request for too long."""
        late = now - self.waits_since > self._service.limits.client_idle_s
        if late and self.request is None and not self._transport.get_write_buffer_size():
            self._transport.abort()

    # --- requests ---------------------------------------------------------------------------------------------

    @property
    def method(self) -> bytes:
        """The method of the current request."""
        return self.request.method if self.request is not None else b""

    @property
    def request_is_whole(self) -> bool:
        """The whole request was received and forwarded."""
        request = self.request
        return request is None or request.body is None or request.body.done

    def _advance(self) -> None:
        """Read as much of the input as can be used now."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._incoming and not self._discarding:
                if self.request is None:
                    # A client that does not read the last response gets no further response.
                    if self._clogged or not self._begin_request():
                        break
                elif not self.request_is_whole:
                    self._pass_body()
                else:
                    break
        except Malformed as error:
            self._reject(error)
        finally:
            self._advancing = False
        self._steer_reading()

    def _begin_request(self) -> bool:
        """Begin with the next request. Returns False if its head is incomplete."""
        found = self._incoming.next_request()
        if found is None:
            return False
        self.request, data = found
        self._close_after = not self.request.keep_alive
        self._service.request_started()
        self._kept.begin(data)
        if self._service.runs:
            self.dispatch()
        else:
            self._hold()
        return True

    def _pass_body(self) -> None:
        assert self.request is not None
        assert self.request.body is not None
        part = self._incoming.next_part(self.request.body)
        kept, upstream = self._kept, self._upstream
        if kept.can_be_sent:
            kept.add(part)
        if upstream is not None:
            if kept.size > REPLAY_MAX:
                kept.discard()
            upstream.transport.write(part)
        elif kept.can_be_sent and self._connecting is None:
            self._keep_more(len(part))

    def _hold(self) -> None:
        self.kept_bytes = 0
        refused = self._service.hold_request(self) or self._service.count_kept_bytes(self, self._kept.size)
        if refused is not None:
            self.refuse(*refused)

    def _keep_more(self, more: int) -> None:
        """Keep more of a waiting request, up to the limits."""
        refused = self._service.count_kept_bytes(self, more)
        if refused is not None:
            self.refuse(*refused)

    def dispatch(self) -> None:
        """Send the request, as far as it was received, to an engine, over an idle connection if there is one."""
        assert self.request is not None
        self.kept_bytes = 0
        # The second try uses a new connection, because another idle one may be just as stale.
        upstream = None if self._replayed else self._service.pool.pop_idle()
        if upstream is not None:
            self._send(upstream)
        else:
            self._connecting = self._service.loop.create_task(self._connect(self._service.next_target()))

    async def _connect(self, target: Target) -> None:
        try:
            upstream = await self._service.pool.connect(target)
        except (OSError, TimeoutError) as error:
            self._connecting = None
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no answer"
            self.refuse(503, ErrorCode.UPSTREAM_UNREACHABLE, f"the engine cannot be reached: {why}")
            return
        self._connecting = None
        self._send(upstream)
        self._steer_reading()

    def _send(self, upstream: Upstream) -> None:
        data = self._kept.joined()
        if upstream.used and len(data) <= REPLAY_MAX:
            self._kept.begin(data)
        else:
            self._kept.discard()
        self._upstream = upstream
        upstream.client = self
        upstream.transport.write(data)

    def upstream_is_full(self, full: bool) -> None:
        """Record whether the engine accepts more of the request."""
        self._full = full
        self._steer_reading()

    def _steer_reading(self) -> None:
        """Pause or resume reading from the client, depending on the free space."""
        if self._discarding or self._transport.is_closing():
            return
        whole = self.request_is_whole
        waits = self.request is not None or self._clogged
        pause = (whole and waits and len(self._incoming) > AHEAD_MAX) or (not whole and self._full)
        if not pause and self._connecting is not None and not whole:
            pause = self._kept.size > CONNECTING_MAX
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # --- responses: called by the upstream --------------------------------------------------------------------

    def interim_response(self, head: bytes) -> None:
        """Forward a 100 Continue or another 1xx response. HTTP/1.0 clients do not support them."""
        assert self.request is not None
        if not self.request.old:
            self._transport.write(head)

    def response_begins(self, head: ResponseHead, data: bytes) -> None:
        """Forward the head of a response and the first bytes of its body."""
        assert self.request is not None
        self._kept.discard()
        self._answering = True
        self._response_until_close = isinstance(head.body, UntilClose)
        if head.old or self._response_until_close or self._service.leaving or not self.request_is_whole:
            self._close_after = True
        ending = b"\r\n"
        if self._close_after:
            ending = b"Connection: close\r\n\r\n"
        elif self.request.old:
            ending = b"Connection: keep-alive\r\n\r\n"
        self._transport.write(head.lines + ending + data)

    def response_data(self, data: bytes) -> None:
        """Forward the next bytes of the body."""
        self._transport.write(data)

    def response_ends(self) -> None:
        """Finish the request after its complete response."""
        self._upstream = None
        self._answered(close=self._close_after)

    def response_failed(self, why: str, *, stale: bool = False) -> None:
        """Handle a missing response. `stale`: the engine may have closed the connection before it read the request."""
        self._upstream = None
        if self.request is None:
            return
        can_replay = stale and self._kept.can_be_sent and not self._replayed and self.request.idempotent
        if can_replay and self._service.runs:
            self._replayed, self._full = True, False
            self.dispatch()
            return
        self.refuse(502, ErrorCode.UPSTREAM_FAILED, why)

    def response_breaks_off(self) -> None:
        """Handle an incomplete response, so that the client can detect it."""
        self._upstream = None
        self._over()
        self._discarding = True
        if self._response_until_close:
            # An orderly close would look like the end of the body.
            reset(self._transport)
        else:
            self._transport.close()

    # --- ends -------------------------------------------------------------------------------------------------

    def refuse(self, status: int, code: ErrorCode, message: str) -> None:
        """Answer the current request with an error of the proxy."""
        request = self.request
        if request is None or self._transport.is_closing():
            return
        close = self._close_after or not self.request_is_whole or request.old or self._service.leaving
        retry_s = self._service.limits.retry_after_s if status in (502, 503) else None
        self._service.count_refusal(code)
        self._transport.write(
            error_response(
                status, code, message, retry_after_s=retry_s, close=close, bodiless=request.method == b"HEAD"
            )
        )
        self._answered(close=close)

    def _answered(self, *, close: bool) -> None:
        """Finish an answered request, and continue with the next one if the connection allows it."""
        whole = self.request_is_whole
        self._over()
        if not whole:
            self._linger()
        elif close:
            self._discarding = True
            self._transport.close()
        else:
            self._advance()

    def _reject(self, error: Malformed) -> None:
        """Answer an invalid request and close the connection, because the start of the next request is unknown."""
        self._service.count_refusal(ErrorCode.INVALID_REQUEST)
        answered = self._answering
        self._cancel()
        if self.request is not None:
            self._over()
        if answered:
            self._transport.abort()
            return
        self._transport.write(error_response(error.status, ErrorCode.INVALID_REQUEST, error.why, close=True))
        self._linger()

    def _linger(self) -> None:
        """Close the sending side, and give the client time to read the response before the connection is closed."""
        self._discarding = True
        self._incoming.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._service.loop.call_later(LINGER_S, self._transport.abort)

    def _cancel(self) -> None:
        """Cancel the request, whether it waits, connects or is being answered."""
        self._service.release_request(self)
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._upstream is not None:
            self._upstream.abandon()
            self._upstream = None

    def _over(self) -> None:
        """Reset the state of the finished request."""
        self.request = None
        self._kept.discard()
        self._answering = self._replayed = self._full = False
        self.waits_since = self._service.loop.time()
        self._service.request_ended()
