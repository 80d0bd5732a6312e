"""The account of one request: who sent it, to which model, when, and what it cost.

`connection` makes one for each request that goes to a model, and passes the answer through it.
"""

from __future__ import annotations

import re
from typing import Protocol

from agent.proxy.framing import Chunked, ResponseHead, Sized
from gateway.access.caller import Caller
from gateway.accounting.answer_meters import BodyMeter, Meter, StreamMeter
from gateway.accounting.ledger import Reservation
from gateway.accounting.limits import Cost
from gateway.accounting.request_meter import GENERATING, Expected
from gateway.accounting.tokens import NOTHING, Tokens
from gateway.price import FREE, MOST_SUM, Price

_STREAM = re.compile(rb"^content-type:[ \t]*text/event-stream", re.IGNORECASE | re.MULTILINE)
_ENCODED = re.compile(rb"^content-encoding:[ \t]*+(?!identity)", re.IGNORECASE | re.MULTILINE)


class Accounts(Protocol):
    """Collects the accounts of requests."""

    def finished(self, account: Account) -> None:
        """Called once for each account, when its request has ended."""


class Account:
    """One request. Times are those of the event loop, in seconds."""

    __slots__ = (
        "_accounts",
        "_meter",
        "admitted",
        "caller",
        "completed",
        "ended_s",
        "estimated",
        "expected",
        "first_byte_s",
        "given_up",
        "headers",
        "model",
        "price",
        "reservation",
        "started_s",
        "status",
        "tokens",
    )

    def __init__(
        self, accounts: Accounts, caller: Caller, model: str, expected: Expected, now: float, price: Price = FREE
    ) -> None:
        """`model` is the service: `namespace/name`."""
        self.admitted = False
        """The limits of the caller allow the request."""
        self.reservation: Reservation | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        """Headers about limits for the answer."""
        self.price = price
        self.caller = caller
        self.model = model
        self.expected = expected
        self.started_s = now
        self.first_byte_s: float | None = None
        self.ended_s: float | None = None
        self.status = 0
        """Of the answer; 0: none."""
        self.completed = False
        """The whole answer came."""
        self.tokens = NOTHING
        """Known at the end."""
        self.estimated = False
        """The engine did not report all tokens, so they are an estimate."""
        self.given_up: list[Price] = []
        """The prices of the backends that got the request and were left before they answered."""
        self._accounts = accounts
        self._meter: Meter | None = None

    def answer_begins(self, head: ResponseHead, data: bytes, now: float) -> bytes:
        """Read the begin of an answer; return the bytes of its body for the client."""
        self.first_byte_s, self.status = now, head.status
        chunked = isinstance(head.body, Chunked)
        if head.status < 400 and _ENCODED.search(head.lines) is None:
            if _STREAM.search(head.lines) is not None:
                # The length of a body with an announced length cannot change.
                drop = self.expected.drop_usage and not isinstance(head.body, Sized)
                self._meter = StreamMeter(chunked=chunked, drop_usage=drop)
            else:
                self._meter = BodyMeter(chunked=chunked)
        return self.passes(data)

    def passes(self, data: bytes) -> bytes:
        """Read the next bytes of the body; return those for the client."""
        return self._meter.passes(data) if self._meter is not None and data else data

    def left(self) -> bytes:
        """Return the bytes of the body that are still held when it ends."""
        return self._meter.left() if isinstance(self._meter, StreamMeter) else b""

    def ends(self, now: float, *, completed: bool, status: int = 0) -> None:
        """Close the account; later calls do nothing. `status`: of the gateway's error, if no engine answered."""
        if self.ended_s is not None:
            return
        self.ended_s, self.completed = now, completed
        self.status = self.status or status
        if self.first_byte_s is not None and self.status < 400:
            self._count()
        self._accounts.finished(self)

    def expected_cost(self) -> Cost:
        """Return what the request may cost at most."""
        expected = self.expected
        return Cost(expected.total, self.price.of(expected.prompt, expected.completion))

    def cost(self) -> Cost:
        """Return what the request did cost, with the prompts at backends that were given up. Known at the end."""
        prompt, completion = self.tokens.prompt or 0, self.tokens.completion or 0
        given_up = sum(price.of(self.expected.prompt, 0) for price in self.given_up)
        tokens = prompt + completion + self.expected.prompt * len(self.given_up)
        return Cost(tokens, min(self.price.of(prompt, completion) + given_up, MOST_SUM))

    def _count(self) -> None:
        meter = self._meter
        if meter is not None:
            meter.ends()
        found = meter.tokens if meter is not None else NOTHING
        generates = self.expected.path in GENERATING
        whole = self.completed and found.prompt is not None and (not generates or found.completion is not None)
        self.estimated = not whole
        if whole or not generates:
            self.tokens = Tokens(self.expected.prompt, 0, 0) | found
            return
        # A stream has about one event for each token. Anthropic's API reports a first number at the begin.
        events = min(meter.events, self.expected.completion) if meter is not None else 0
        completion = max(events, found.completion or 0)
        self.tokens = Tokens(self.expected.prompt, 0, 0) | found | Tokens(completion=completion)
