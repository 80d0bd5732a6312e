"""One request at the replicas of its model: chooses a replica, tries another one after a failure, passes the answer on.

`connection` makes an exchange for each request, and receives its answer. Another replica is tried only before the first
byte of an answer. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Set
from typing import Protocol

from agent.proxy.framing import ResponseHead
from agent.proxy.upstream import Target, Upstream
from gateway.engines.backends import Backend
from gateway.engines.balancer import Endpoint
from gateway.errors import GatewayError, adapter_not_loaded
from gateway.limits import GatewayLimits

REFUSALS = (429, 503)
"""An engine that answers so has not begun with the request."""
UNAUTHORIZED = 401
NOT_FOUND = 404
"""vLLM answers so before it begins, if it has not loaded the adapter."""


class Requester(Protocol):
    """Receives the answer to a request, piece by piece."""

    def answer_begins(self, head: ResponseHead, data: bytes) -> None:
        """Called with the head of the answer and the first bytes of its body."""

    def answer_data(self, data: bytes) -> None:
        """Called with the next bytes of the body."""

    def answer_ends(self) -> None:
        """Called when the answer is complete."""

    def answer_breaks_off(self) -> None:
        """Called when the answer remains incomplete."""

    def no_answer(self, error: GatewayError) -> None:
        """Called when no replica answers."""


class Exchange:
    """One request, from the choice of a replica until its answer ends."""

    def __init__(
        self,
        requester: Requester,
        backend: Backend,
        limits: GatewayLimits,
        loop: asyncio.AbstractEventLoop,
        gives_up: Callable[[], None] = lambda: None,
        *,
        counts: bool = True,
    ) -> None:
        """`gives_up` is called when a replica that got the request is stopped before its answer.

        `counts`: it is a client's request, which keeps the service awake, and waits while no replica runs.
        """
        self.backend = backend
        self.answering = False
        """The answer has begun."""
        self.moved_at = loop.time()
        """When the replica was asked, or last sent a byte."""
        self._requester = requester
        self._limits = limits
        self._loop = loop
        self._stopped = gives_up
        self._is_clients = counts
        self._is_active = False
        self._method = b""
        self._head = b""
        self._body = b""
        self._key = ""
        self._adapter = ""
        self._only: frozenset[Target] | None = None
        self._tried: set[Target] = set()
        self._authorization = b""
        """The header line with the key that the replica got."""
        self._refused_keys: set[bytes] = set()
        """The header lines that the replica refused."""
        self._attempt: _Attempt | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the request waits for a replica to start."""
        return self.backend.waiting.has(self)

    def start(
        self,
        method: bytes,
        head: bytes,
        body: bytes,
        key: str,
        *,
        adapter: str = "",
        only: frozenset[Target] | None = None,
    ) -> None:
        """Send a request; `head` lacks its Host line, and `key` is what the choice of a replica depends on.

        `adapter` is the adapter of a LoRAAdapter that the request is for. `only` are the replicas that may get it;
        None: all.
        """
        self.backend.used_at = self._loop.time()
        access = self.backend.route.access
        if access.problem:
            message = f"no request can be sent to `{self.backend.route.model.service}`: {access.problem}"
            self._requester.no_answer(
                GatewayError(503, "engine_not_accessible", message, retry_after_s=self._limits.retry_after_s)
            )
            return
        self._adapter, self._only = adapter, only
        self._method, self._head, self._body, self._key = method, head, body, key
        if self._is_clients:
            self.backend.waiting.total += 1
        self._try()

    def cancel(self) -> None:
        """Close the connection to the replica, so that it stops its work. The requester is not called any more."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            if attempt.upstream is not None and not self.answering:
                self._stopped()
            attempt.end()
        self.backend.waiting.remove(self)
        self._count_end()

    def pause(self) -> None:
        """Read no more of the answer for now."""
        if self._attempt is not None and self._attempt.upstream is not None:
            self._attempt.upstream.transport.pause_reading()

    def resume(self) -> None:
        """Read the answer again."""
        self.moved_at = self._loop.time()
        if self._attempt is not None and self._attempt.upstream is not None:
            self._attempt.upstream.transport.resume_reading()

    def close_if_late(self, now: float) -> None:
        """Enforce the limits for the first byte of an answer and for its pauses."""
        silent_s = now - self.moved_at
        if self._attempt is None or silent_s <= (self._limits.gap_s if self.answering else self._limits.first_byte_s):
            return
        self.backend.balancer.failed(self._attempt.endpoint)
        self.cancel()
        if self.answering:
            self._requester.answer_breaks_off()
            return
        message = f"the engine did not begin to answer within {self._limits.first_byte_s:g} s"
        self._requester.no_answer(GatewayError(504, "upstream_timeout", message))

    # --- replicas -------------------------------------------------------------------------------------------------

    def _try(self) -> None:
        endpoint = self.backend.balancer.choose(self._key, self._excluded())
        if endpoint is None:
            self._wait()
            return
        self._count_begin()
        self._tried.add(endpoint.target)
        self._refused_keys = set()
        self._ask(endpoint, self.backend.authorization(endpoint.target) or b"")

    def _ask(self, endpoint: Endpoint, authorization: bytes) -> None:
        self.moved_at = self._loop.time()
        self._authorization = authorization
        self._attempt = _Attempt(self, endpoint, self._method)
        self._attempt.start(self.backend, self._head + authorization, self._body, self._loop)

    def _wait(self) -> None:
        """Wait for a replica if the service may start one, else answer with an error."""
        holding, error = self.backend.route.holding, self._no_replica()
        self._count_end()
        if self._is_clients and holding is not None and self._only is None and not self._tried:
            if (refused := self.backend.waiting.add(self, holding)) is None:
                return
            error = refused
        self._requester.no_answer(error)

    def goes_on(self) -> None:
        """Send the request: a replica is ready."""
        self._try()

    def gives_up(self, error: GatewayError) -> None:
        """Answer that no replica became ready."""
        self._requester.no_answer(error)

    def _count_begin(self) -> None:
        if self._is_clients and not self._is_active:
            self._is_active = True
            self.backend.waiting.active += 1

    def _count_end(self) -> None:
        if self._is_active:
            self._is_active = False
            self.backend.waiting.active -= 1

    def _excluded(self) -> Set[Target]:
        if self._only is None:
            return self._tried
        others = (each.target for each in self.backend.balancer.endpoints if each.target not in self._only)
        return self._tried.union(others)

    def _no_replica(self) -> GatewayError:
        model, retry_s = self.backend.route.model, self._limits.retry_after_s
        if self._adapter and not self._tried:
            return adapter_not_loaded(self._adapter, model.service, retry_after_s=retry_s)
        if self._tried:
            message = f"no replica of `{model.service}` could be reached"
            return GatewayError(503, "upstream_unreachable", message, retry_after_s=retry_s)
        message = f"no replica of `{model.service}` runs; its state is {model.state}"
        return GatewayError(503, "no_replica", message, retry_after_s=retry_s)

    def _can_retry(self) -> bool:
        excluded = self._excluded()
        return len(self._tried) < self._limits.attempts and any(
            endpoint.target not in excluded for endpoint in self.backend.balancer.endpoints
        )

    # --- called by an attempt -------------------------------------------------------------------------------------

    def begins(self, attempt: _Attempt, head: ResponseHead, data: bytes) -> None:
        """Pass on the beginning of an answer, or try another replica after a refusal."""
        self.moved_at = self._loop.time()
        if head.status >= 500:
            self.backend.balancer.failed(attempt.endpoint)
        else:
            self.backend.balancer.succeeded(attempt.endpoint)
        lacks_adapter = bool(self._adapter) and head.status == NOT_FOUND
        if (head.status in REFUSALS or lacks_adapter) and self._can_retry():
            attempt.end()
            self._try()
            return
        if lacks_adapter:
            # The replica was started anew, and the cluster does not know it yet. The adapter exists.
            attempt.end()
            self._attempt = None
            self._count_end()
            retry_s, service = self._limits.retry_after_s, self.backend.route.model.service
            self._requester.no_answer(adapter_not_loaded(self._adapter, service, retry_after_s=retry_s))
            return
        if head.status == UNAUTHORIZED and self._authorization:
            self._key_refused(attempt)
            return
        self.backend.accepts(attempt.endpoint.target, self._authorization)
        self.answering = True
        self._body = b""  # it is not sent again
        self._requester.answer_begins(head, data)

    def _key_refused(self, attempt: _Attempt) -> None:
        """Try another key, then another replica: a replica takes a new key only when it is replaced."""
        attempt.end()
        self._attempt = None
        self._refused_keys.add(self._authorization)
        other = self.backend.authorization(attempt.endpoint.target, self._refused_keys)
        if other is not None:
            self._ask(attempt.endpoint, other)
            return
        # The client would take the answer for a refusal of its own key.
        self.backend.refused()
        if self._can_retry():
            self._try()
        else:
            self._count_end()
            message = f"the engine of `{self.backend.route.model.service}` refused the gateway's key"
            self._requester.no_answer(GatewayError(502, "engine_refused_key", message))

    def continues(self, data: bytes) -> None:
        """Pass on the next bytes of an answer."""
        self.moved_at = self._loop.time()
        self._requester.answer_data(data)

    def ends(self) -> None:
        """Finish after the whole answer."""
        self._attempt = None
        self._count_end()
        self._requester.answer_ends()

    def fails(self, attempt: _Attempt, error: GatewayError) -> None:
        """Try another replica if no byte of an answer came."""
        if self.answering:
            self.breaks_off(attempt)
            return
        self._attempt = None
        self.backend.balancer.failed(attempt.endpoint)
        if self._can_retry():
            self._try()
        else:
            self._count_end()
            self._requester.no_answer(error)

    def breaks_off(self, attempt: _Attempt) -> None:
        """Let the requester see that the answer is incomplete."""
        self._attempt = None
        self.backend.balancer.failed(attempt.endpoint)
        self._count_end()
        self._requester.answer_breaks_off()


class _Attempt:
    """The request at one replica. After its end it ignores everything that still arrives from there."""

    def __init__(self, exchange: Exchange, endpoint: Endpoint, method: bytes) -> None:
        self.endpoint = endpoint
        self.method = method
        self.upstream: Upstream | None = None
        self._exchange: Exchange | None = exchange
        self._balancer = exchange.backend.balancer
        self._connecting: asyncio.Task[None] | None = None
        self._trial = self._balancer.started(endpoint)

    def start(self, backend: Backend, head: bytes, body: bytes, loop: asyncio.AbstractEventLoop) -> None:
        """Send the request over an idle connection, or over a new one."""
        address, port = self.endpoint.target
        host = f"[{address}]" if ":" in address else address
        data = b"".join((head, f"Host: {host}:{port}\r\n\r\n".encode(), body))
        pool = backend.pool(self.endpoint.target)
        if (upstream := pool.pop_idle()) is not None:
            self._send(upstream, data)
        else:
            self._connecting = loop.create_task(self._connect(backend, data))

    def end(self) -> None:
        """Close the connection to the replica."""
        if self._connecting is not None:
            self._connecting.cancel()
        upstream = self.upstream
        self._over()
        if upstream is not None:
            upstream.abandon()

    async def _connect(self, backend: Backend, data: bytes) -> None:
        try:
            upstream = await backend.pool(self.endpoint.target).connect(self.endpoint.target)
        except (OSError, TimeoutError) as error:
            self._connecting = None
            if isinstance(error, ssl.SSLCertVerificationError):
                backend.refused()
            service, retry_s = backend.route.model.service, 5.0
            message = f"a replica of `{service}` cannot be reached: {error}"
            self._fail(GatewayError(503, "upstream_unreachable", message, retry_after_s=retry_s))
            return
        self._connecting = None
        self._send(upstream, data)

    def _send(self, upstream: Upstream, data: bytes) -> None:
        self.upstream = upstream
        upstream.client = self
        upstream.transport.write(data)

    def _fail(self, error: GatewayError) -> None:
        if (exchange := self._over()) is not None:
            exchange.fails(self, error)

    def _over(self) -> Exchange | None:
        exchange, self._exchange = self._exchange, None
        self.upstream = None
        if exchange is not None:
            self._balancer.ended(self.endpoint, trial=self._trial)
        return exchange

    # --- called by the upstream -----------------------------------------------------------------------------------

    @property
    def request_is_whole(self) -> bool:
        """A request is sent only when it is whole."""
        return True

    def upstream_is_full(self, full: bool) -> None:
        """Do nothing: the request is in the buffer of the connection already."""

    def interim_response(self, head: bytes) -> None:
        """Do nothing: the gateway has answered `Expect: 100-continue` itself."""

    def response_begins(self, head: ResponseHead, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.begins(self, head, data)

    def response_data(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.continues(data)

    def response_ends(self) -> None:
        if (exchange := self._over()) is not None:
            exchange.ends()

    def response_failed(self, why: str, *, stale: bool = False) -> None:  # noqa: ARG002 - `Receiver`'s signature
        self._fail(GatewayError(502, "upstream_failed", why, retry_after_s=5.0))

    def response_breaks_off(self) -> None:
        if (exchange := self._over()) is not None:
            exchange.breaks_off(self)
