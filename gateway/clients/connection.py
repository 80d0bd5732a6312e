"""One client's connection to the gateway: reads its requests in turn, sends each to a replica, passes the answer back.

`server` makes one for each connection. `heads` reads and writes the heads, `dispatch` decides on each request;
`exchange` has it answered, and `answer` passes the answer on. The body of a request is held until its model is
known; the bytes of an answer are passed on at once. When the client disconnects, the connection to the engine is
closed, so that the engine stops its work. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import structlog

from agent.proxy.connections import enable_keepalive, reset
from agent.proxy.framing import Body, Chunked, Malformed, ResponseHead
from agent.proxy.incoming import Incoming
from gateway.access.authentication import OPEN_PATHS
from gateway.access.caller import ANYONE, Caller
from gateway.access.host_names import of_foreign_page
from gateway.accounting.account import Account
from gateway.clients import heads
from gateway.clients.answer import ClientAnswer
from gateway.clients.pace import ClientPace
from gateway.clients.parts import Gateway
from gateway.dispatch import Forward, Reply, Wake, dispatch
from gateway.engines.exchange import Exchange
from gateway.engines.waking import wake
from gateway.errors import INTERNAL, GatewayError
from gateway.routers.budgets import NO_STORE
from gateway.routers.dispatching import caller_of_token
from gateway.routers.forwarding import Routed, RoutedExchange

AHEAD_MAX = 64 * 1024
"""Most bytes that a client may send beyond its current request."""
LINGER_S = 2.0
"""How long a refused client may continue to send its body, so that it can read the error."""
log = structlog.get_logger(__name__)


class Connection(asyncio.Protocol):
    """One connection. It has at most one request at a time; later ones wait in `_incoming`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._incoming = Incoming()
        self._head: heads.Head | None = None
        """The request that is being read or answered."""
        self._caller: Caller = ANYONE
        """The client behind this request."""
        self._body: Body | None = None
        self._parts: list[bytes] = []
        self._held = 0
        """Bytes of the body that are held."""
        self._exchange: Exchange | RoutedExchange | None = None
        self._account: Account | None = None
        """What the current request costs, from when it is sent to a replica."""
        self._pace = ClientPace(gateway.limits, gateway.loop.time())
        self._client_answer: ClientAnswer | None = None
        """The answer of an engine, from its begin."""
        self._close_after = False
        self._discarding = False
        self._advancing = False
        self._paused = False

    # --- the client ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        enable_keepalive(self._transport)
        gateway = self._gateway
        if len(gateway.connections) >= gateway.limits.max_connections:
            self._close_after = True
            message = f"{len(gateway.connections)} connections are open already"
            self._write_error(GatewayError(503, "too_many_connections", message, retry_after_s=1.0))
            self._discarding = True
            self._transport.close()
            return
        gateway.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        if self._head is None or not self._is_whole:
            self._pace.moved(self._gateway.loop.time())
        self._incoming.add(data)
        self._advance()

    def eof_received(self) -> bool:
        # An HTTP client that closes its sending side has left.
        self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._gateway.connections.discard(self)
        self._incoming.clear()
        self._discarding = True
        try:
            self._cancel()
        finally:
            self._finish()

    def pause_writing(self) -> None:
        self._pace.clogs(self._gateway.loop.time())
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._pace.clogs(None)
        if self._exchange is not None:
            self._exchange.resume()
        self._advance()

    def close_if_idle(self) -> None:
        """Close the connection if it has no request."""
        if self._head is None and not self._incoming:
            self._transport.close()

    def end(self) -> None:
        """Close the connection, and cancel its request."""
        if self._head is None:
            self._transport.close()
        else:
            reset(self._transport)  # an orderly end could look like the end of the answer

    def close_if_late(self, now: float) -> None:
        """Enforce the limits of time: for the client, for the first byte of an answer, for its pauses."""
        if self._discarding or self._pace.is_clogged:
            if self._pace.is_stuck(now):
                reset(self._transport)
            return
        if self._exchange is not None:
            self._exchange.close_if_late(now)
            return
        late = self._pace.is_idle(now)
        if self._head is None:
            late = late or self._pace.is_slow_head(now)
        elif not self._is_whole:
            late = late or self._pace.is_slow_body(now, self._held)
        if late:
            self._transport.abort()

    # --- requests -----------------------------------------------------------------------------------------------

    @property
    def _is_whole(self) -> bool:
        """The current request was received to its end."""
        return self._body is None or self._body.done

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._incoming and not self._discarding and not self._pace.is_clogged:
                if self._head is None:
                    if not self._begin():
                        break
                elif not self._is_whole:
                    assert self._body is not None
                    self._add(self._incoming.next_part(self._body))
                else:
                    break
        except Malformed as error:
            self._reject(GatewayError(error.status, "invalid_request", error.why))
        except Exception:
            log.exception("Could not handle a request")
            self._reject(INTERNAL)
        finally:
            self._advancing = False
        self._steer_reading()

    def _begin(self) -> bool:
        """Begin with the next request. Return False if its head is incomplete."""
        found = self._incoming.next_request()
        if found is None:
            return False
        request, data = found
        head = heads.Head.read(request)
        if self._gateway.cors.is_on:
            head = replace(head, cors_lines=self._gateway.cors.lines(head.fields))
        self._head = head
        self._body, self._close_after = request.body, not request.keep_alive or self._gateway.is_stopping
        if (lines := self._gateway.cors.preflight(head.method, head.fields)) is not None:
            self._transport.write(heads.no_content(lines, head, close=self._close_after))
            self._answered()
            return True
        caller = caller_of_token(head, self._gateway.backends.routers) or self._gateway.access.authenticate(head)
        if caller is ANYONE and self._gateway.checks_hosts and head.path not in OPEN_PATHS:
            caller = of_foreign_page(head) or caller
        if isinstance(caller, GatewayError):
            self._refuse(caller)
            return True
        self._caller = caller
        if head.path in OPEN_PATHS and not self._is_whole:
            # A client without a key could fill the memory for bodies.
            self._refuse(GatewayError(400, "invalid_request", f"{head.path} takes no body"))
            return True
        if head.expects_continue and not self._is_whole:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._add(data[len(request.lines) + 2 :])
        return True

    def _add(self, part: bytes) -> None:
        """Hold the next part of the body, and answer the request once it is whole."""
        gateway = self._gateway
        self._parts.append(part)
        self._held += len(part)
        gateway.body_bytes += len(part)
        if self._held > gateway.limits.max_body:
            message = f"the request's body has more than {gateway.limits.max_body} bytes"
            self._refuse(GatewayError(413, "request_too_large", message))
        elif gateway.body_bytes > gateway.limits.max_bodies:
            message = "the bodies of other requests use all the memory for requests"
            retry_s = gateway.limits.retry_after_s
            self._refuse(GatewayError(503, "overloaded", message, retry_after_s=retry_s))
        elif self._is_whole:
            self._handle()

    def _handle(self) -> None:
        """Answer a whole request, or send it to a replica."""
        assert self._head is not None
        gateway = self._gateway
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        body = heads.unchunked(data) if isinstance(self._body, Chunked) else data
        match dispatch(self._head, body, self._caller, gateway.backends):
            case Reply(answer):
                self._answer(answer)
            case Routed(state=state) if state.router.budgets and gateway.book.ledger is None:
                self._refuse(NO_STORE)
            case Forward() | Routed() as forward:
                self._account = account = self._account_of(forward)
                gateway.book.admit(account, lambda error: self._admitted(account, forward, error))
            case Wake(backend, error):
                wake(backend, gateway.limits, gateway.loop)
                self._refuse(error)
            case GatewayError() as error:
                self._refuse(error)

    def _account_of(self, forward: Forward | Routed) -> Account:
        book, now = self._gateway.book, self._gateway.loop.time()
        caller = forward.caller if isinstance(forward, Routed) else self._caller
        return Account(book, caller, forward.label, forward.expected, now, forward.price)

    def _admitted(self, account: Account, forward: Forward | Routed, error: GatewayError | None) -> None:
        """Send a request to a replica, unless a limit refuses it or its client has left."""
        if self._account is not account:
            return
        try:
            self._proceed(account, forward, error)
        except Exception:
            log.exception("Could not send a request on", model=account.model)
            self._reject(INTERNAL)

    def _proceed(self, account: Account, forward: Forward | Routed, error: GatewayError | None) -> None:
        gateway, unpaid = self._gateway, account.given_up
        if error is not None:
            if isinstance(forward, Routed):
                gateway.backends.routers.audit.write(forward.state.router, forward.over_limit(error))
            self._refuse(error)
        elif isinstance(forward, Routed):
            self._exchange = RoutedExchange(
                self, forward, gateway.backends, gateway.limits, gateway.loop, unpaid.append
            )
            self._exchange.start()
        elif self._head is not None:
            self._exchange = Exchange(
                self, forward.backend, gateway.limits, gateway.loop, lambda: unpaid.append(account.price)
            )
            method, adapter, only = self._head.method.encode(), forward.adapter, forward.only
            self._exchange.start(method, forward.head, forward.payload, forward.key, adapter=adapter, only=only)

    # --- answers: called by the exchange --------------------------------------------------------------------------

    def answer_begins(self, head: ResponseHead, data: bytes) -> None:
        """Pass on the head of an answer and the first bytes of its body."""
        assert self._head is not None
        assert self._account is not None
        self._release_body()
        if isinstance(self._exchange, RoutedExchange):
            self._account.price = self._exchange.price
        self._client_answer = answer = ClientAnswer(
            self._transport, self._account, self._head, head, self._gateway.loop
        )
        self._close_after = self._close_after or answer.closes
        answer.begins(data, close=self._close_after)

    def answer_data(self, data: bytes) -> None:
        """Pass on the next bytes of the body."""
        assert self._client_answer is not None
        self._client_answer.continues(data)

    def answer_ends(self) -> None:
        """Finish the request after its whole answer."""
        assert self._client_answer is not None
        self._exchange = None
        self._client_answer.ends()
        self._answered()

    def answer_breaks_off(self) -> None:
        """Let the client see that the answer is incomplete."""
        answer, self._discarding = self._client_answer, True
        self._finish()
        assert answer is not None
        answer.breaks_off()

    def no_answer(self, error: GatewayError) -> None:
        """Answer with the reason why no replica does."""
        self._refuse(error)

    # --- ends -----------------------------------------------------------------------------------------------------

    def _answer(self, body: bytes) -> None:
        """Answer the current request with JSON of the gateway."""
        assert self._head is not None
        self._transport.write(heads.response(200, body, self._head, close=self._close_after))
        self._answered()

    def _refuse(self, error: GatewayError) -> None:
        """Answer the current request with an error of the gateway."""
        if self._head is None or self._transport.is_closing():
            return
        if self._client_answer is not None:
            reset(self._transport)  # a second answer would be a part of the first one
            return
        if not self._is_whole:
            self._close_after = True
        self._gateway.book.refused(error)
        if self._account is not None:
            self._account.ends(self._gateway.loop.time(), completed=False, status=error.status)
        self._write_error(error)
        self._answered()

    def _write_error(self, error: GatewayError) -> None:
        self._transport.write(heads.refusal(error, self._head or heads.NO_REQUEST, close=self._close_after))

    def _answered(self) -> None:
        """Finish an answered request, and go on with the next one if the connection allows it."""
        whole, close = self._is_whole, self._close_after or self._gateway.is_stopping
        self._finish()
        if not whole:
            self._linger()
        elif close:
            self._discarding = True
            self._transport.close()
        else:
            self._advance()

    def _reject(self, error: GatewayError) -> None:
        """Answer a request and close the connection, because the start of the next request is unknown."""
        answering = self._client_answer is not None
        self._cancel()
        self._close_after = True
        if answering:
            reset(self._transport)
            return
        self._gateway.book.refused(error)
        self._write_error(error)
        self._finish()
        self._linger()

    def _linger(self) -> None:
        """Close the sending side, and give the client time to read the answer before the connection is closed."""
        self._discarding = True
        self._incoming.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._gateway.loop.call_later(LINGER_S, self._transport.abort)

    def _cancel(self) -> None:
        """Stop the engine's work for the request."""
        if self._exchange is not None:
            self._exchange.cancel()
            self._exchange = None

    def _finish(self) -> None:
        """Reset the state of the request."""
        self._release_body()
        if self._account is not None:
            self._account.ends(self._gateway.loop.time(), completed=False)
        self._head = self._body = self._exchange = self._client_answer = self._account = None
        self._pace.answered(self._gateway.loop.time(), has_more=bool(self._incoming))

    def _release_body(self) -> None:
        self._gateway.body_bytes -= self._held
        self._parts, self._held = [], 0

    def _steer_reading(self) -> None:
        if self._discarding or self._transport.is_closing():
            return
        waits = self._pace.is_clogged or (self._head is not None and self._is_whole)
        pause = waits and len(self._incoming) > AHEAD_MAX
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
