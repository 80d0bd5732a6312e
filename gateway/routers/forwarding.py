"""One request at a router: tries its backends in order, and sends copies to shadows.

`connection` makes a RoutedExchange in the place of an `Exchange`, and treats it as one. Another backend is tried only
before the first byte of an answer. Runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from agent.proxy.framing import ResponseHead
from gateway.access.caller import Caller
from gateway.accounting.request_meter import Expected
from gateway.clients import heads
from gateway.clients.request_body import RequestBody
from gateway.engines.backends import Backends
from gateway.engines.engine_body import engine_body
from gateway.engines.exchange import Exchange, Requester
from gateway.errors import INTERNAL, GatewayError
from gateway.limits import GatewayLimits
from gateway.names import ServiceName
from gateway.price import FREE, Price, nano_usd
from gateway.routers.audit import AuditLine
from gateway.routers.legs import Copy, Leg
from gateway.routers.provider_call import KEY_REFUSED, ProviderCall
from gateway.routers.provider_requests import provider_request
from gateway.routers.runtime import RouterState
from gateway.routers.selection import Choice
from program.desired.router import RouterBackend
from program.dialects.engine_access import SecretName

COPIES = 16
"""Most copies of one router that are under way; further requests are not copied."""
COPIED_MAX = 64 << 20
"""Most bytes of the copies of all routers; further requests are not copied."""
TRY_NEXT = 429
"""This status and those from 500 on have the next backend tried."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Routed:
    """A request for a router."""

    state: RouterState
    head: heads.Head
    """With the path of OpenAI's API."""
    body: RequestBody
    choice: Choice
    audit_line: AuditLine
    """What the audit says of the request, without its outcome."""
    expected: Expected
    """What the request may cost."""
    caller: Caller
    """The client, with the router's budgets among its limits."""

    @property
    def label(self) -> str:
        """The router, for the account."""
        return f"routers/{self.state.router.namespace}/{self.state.router.name}"

    @property
    def price(self) -> Price:
        """The highest price of a candidate, which is reserved."""
        prices = [price_of(each) for each in self.choice.candidates]
        return Price(max(each.prompt for each in prices), max(each.completion for each in prices))

    def over_limit(self, error: GatewayError) -> AuditLine:
        """Return the line of the audit for a request that a limit refused."""
        return replace(self.audit_line, status=error.status, outcome="over_limit")


def price_of(backend: RouterBackend) -> Price:
    """Return the price of a backend's tokens."""
    return Price(nano_usd(backend.prompt_usd), nano_usd(backend.completion_usd))


class RoutedExchange:
    """One request at a router, from the choice of a backend until its answer ends."""

    def __init__(
        self,
        requester: Requester,
        routed: Routed,
        backends: Backends,
        limits: GatewayLimits,
        loop: asyncio.AbstractEventLoop,
        gives_up: Callable[[Price], None],
    ) -> None:
        """`gives_up` gets the price of a backend whose work is stopped before its answer."""
        self.answering = False
        """The answer has begun."""
        self._requester = requester
        self._routed = routed
        self._backends = backends
        self._limits = limits
        self._loop = loop
        self._gives_up = gives_up
        self._choice = routed.choice
        self._left = list(routed.choice.candidates)
        self._errors: list[str] = []
        self._leg: Leg | None = None
        self._copies: set[Copy] = set()
        self._began_at = loop.time()
        self._status = 0
        self._is_over = False

    @property
    def price(self) -> Price:
        """The price of the backend that answers."""
        return price_of(self._leg.backend) if self._leg is not None else FREE

    def start(self) -> None:
        """Try the first backend, and send the copies."""
        for backend in self._choice.copies:
            self._copy(backend)
        self._next()

    def cancel(self) -> None:
        """Stop the work for the request, and its copies. The requester is not called any more."""
        if self._leg is not None:
            self._leg.cancel()
            self._routed.state.left(self._leg.backend.name)
        for copy in tuple(self._copies):
            copy.cancel()
        self._end("client_left", self._status)

    def pause(self) -> None:
        """Read no more of the answer for now."""
        if self._leg is not None and self._leg.call is not None:
            self._leg.call.pause()

    def resume(self) -> None:
        """Read the answer again."""
        if self._leg is not None and self._leg.call is not None:
            self._leg.call.resume()

    def close_if_late(self, now: float) -> None:
        """Enforce the limits for the first byte of an answer and for its pauses."""
        if self._leg is not None and self._leg.call is not None:
            self._leg.call.close_if_late(now)

    # --- backends -------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        backend = self._left.pop(0)
        router = self._routed.state.router
        limits_s = (self._choice.timeout_s, backend.timeout_s, router.header_timeout_s)
        timeout_s = next((each for each in limits_s if each is not None), None)
        self._leg = Leg(self, backend, self._loop)
        self._routed.state.started(backend.name)
        if timeout_s is not None:
            self._leg.timer = self._loop.call_later(timeout_s, self._late, self._leg, timeout_s)
        limits = self._limits
        if timeout_s is not None:
            limits = replace(limits, first_byte_s=timeout_s + 60.0)  # the timer ends it before
        self._send(backend, self._leg, limits)

    def _send(self, backend: RouterBackend, leg: Leg, limits: GatewayLimits) -> None:
        routed, state = self._routed, self._routed.state
        head, body = routed.head, routed.body
        if backend.external is not None:
            secret = state.secrets.get(backend.external.secret, {} if not backend.external.secret else _NOT_READ)
            try:
                request = provider_request(backend.external, head.path, body, secret)
            except Exception:
                log.exception("Could not make the request for a provider", backend=backend.name)
                request = INTERNAL
            if isinstance(request, GatewayError):
                leg.no_answer(request)
                return
            connections = self._backends.routers.connections
            call = ProviderCall(leg, request, connections, limits, self._loop, leg.gives_up, old_client=head.old)
            leg.call = call
            call.start()
            return
        service = ServiceName(state.router.namespace, backend.service)
        found = self._backends.of(service)
        if found is None:
            message = f"there is no InferenceService `{service}`"
            leg.no_answer(GatewayError(503, "no_replica", message, retry_after_s=limits.retry_after_s))
            return
        names = found.route.model.engine_names
        name = names[0] if names else backend.service
        payload = engine_body(body, path=head.path, name=name, model_fields=found.route.model_fields)
        key = body.prefix() if found.route.prefix_hash and head.path in heads.PROMPT_PATHS else ""
        # A copy neither wakes a service nor keeps it awake: no client waits for its answer.
        counts = not isinstance(leg, Copy)
        exchange = Exchange(leg, found, limits, self._loop, leg.gives_up, counts=counts)
        leg.call = exchange
        exchange.start(head.method.encode(), head.outgoing(len(payload)), payload, f"\0{key}" if key else "")

    def _late(self, leg: Leg, timeout_s: float) -> None:
        waits = isinstance(leg.call, Exchange) and leg.call.is_waiting
        if waits and not self._left:
            # Its service starts, and no other backend could answer. The wait has a limit of its own.
            leg.timer = self._loop.call_later(timeout_s, self._late, leg, timeout_s)
            return
        leg.cancel()
        if waits:
            error = GatewayError(503, _WAKE_TIMEOUT, f"the service did not start within {timeout_s:g} s")
        else:
            error = GatewayError(504, "upstream_timeout", f"the backend did not begin to answer within {timeout_s:g} s")
        self.failed(leg, error)

    def _copy(self, backend: RouterBackend) -> None:
        state, routers, size = self._routed.state, self._backends.routers, len(self._routed.body.unchanged())
        if state.copies.number < COPIES and routers.copied_bytes + size <= COPIED_MAX:
            self._send(backend, Copy(state, routers, size, self._copies, backend, self._loop), self._limits)

    # --- called by a leg ------------------------------------------------------------------------------------------

    def begins(self, leg: Leg, head: ResponseHead, data: bytes) -> None:
        """Pass on the beginning of an answer, or try the next backend."""
        state = self._routed.state
        if head.status >= 500 or head.status == TRY_NEXT:
            state.failed(leg.backend.name)
            if self._left:
                leg.cancel()
                self._errors.append(f"`{leg.backend.name}` answered with status {head.status}")
                self._next()
                return
        else:
            state.succeeded(leg.backend.name, self._loop.time() - leg.began_at)
        self.answering, self._status = True, head.status
        self._routed = replace(self._routed, body=_SENT)
        self._requester.answer_begins(head, data)

    def gives_up(self, backend: RouterBackend) -> None:
        """Have the request charged to the client although the backend's answer is not awaited any more."""
        self._gives_up(price_of(backend))

    def continues(self, data: bytes) -> None:
        """Pass on the next bytes of an answer."""
        self._requester.answer_data(data)

    def ends(self) -> None:
        """Finish after the whole answer."""
        self._end("ok", self._status)
        self._leg = None
        self._requester.answer_ends()

    def breaks_off(self, leg: Leg) -> None:
        """Let the requester see that the answer is incomplete."""
        self._routed.state.failed(leg.backend.name)
        self._end("broken_off", self._status)
        self._leg = None
        self._requester.answer_breaks_off()

    def failed(self, leg: Leg, error: GatewayError) -> None:
        """Try the next backend, or say why none answers."""
        if self.answering:
            self.breaks_off(leg)
            return
        if error.code == KEY_REFUSED and leg.backend.external is not None:
            router = self._routed.state.router
            self._routed.state.read_again([SecretName(router.namespace, leg.backend.external.secret)])
        if error.status >= 500 and error.code != _WAKE_TIMEOUT:
            self._routed.state.failed(leg.backend.name)
        else:
            self._routed.state.left(leg.backend.name)
        self._errors.append(f"`{leg.backend.name}`: {error.message}")
        if self._left:
            self._next()
            return
        self._leg = None
        if len(self._errors) > 1:
            message = f"no backend of the router answered; {'; '.join(self._errors)}"
            error = GatewayError(503, "all_backends_failed", message, retry_after_s=self._limits.retry_after_s)
        kept_local = self._choice.sensitive or self._choice.fail_closed
        self._end("fail_closed_runtime" if kept_local else "all_backends_failed", error.status, leg.backend)
        self._requester.no_answer(error)

    def _end(self, outcome: str, status: int, backend: RouterBackend | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if backend is None and self._leg is not None:
            backend = self._leg.backend
        line = replace(
            self._routed.audit_line,
            rule=self._choice.rule,
            backend=backend.name if backend is not None else "",
            tier=("local" if backend.is_local else "cloud") if backend is not None else "",
            status=status,
            outcome=outcome,
            seconds=self._loop.time() - self._began_at,
        )
        self._backends.routers.audit.write(self._routed.state.router, line)


_WAKE_TIMEOUT = "wake_timeout"
"""Code of the error of a service that sleeps or starts, which is healthy."""
_SENT = RequestBody("", "", {})
"""Stands for a body that is not needed any more, because the answer has begun."""
_NOT_READ = "the gateway has not read the Secret of the provider yet"
