"""Collects what the requests of this gateway cost. Belongs to the event loop's thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.accounting.account import Account
from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_job import Outcome, Usage, UsageKey
from gateway.accounting.limits import headers, refusal
from gateway.accounting.metrics import Metrics
from gateway.engines.backends import Backends
from gateway.errors import GatewayError

HOUR_S = 3600


class Book:
    """The accounts of all requests."""

    def __init__(self, backends: Backends, ledger: Ledger | None = None) -> None:
        """Without a ledger nobody has limits, and usage is not kept."""
        self.metrics = Metrics(backends, ledger)
        self.ledger = ledger

    def admit(self, account: Account, proceed: Callable[[GatewayError | None], None]) -> None:
        """Check the limits of a request. `proceed` is called once, at once or soon, with the error if it is refused."""
        limits = account.caller.limits
        if self.ledger is None or not limits:
            self._admit(account)
            proceed(None)
            return

        waiting = [proceed]

        def answered(outcome: Outcome) -> None:
            # The reservation keeps this function until the answer ends. It must not keep the request's body, too.
            proceed = waiting.pop()
            if outcome.refused_by is not None:
                amount = account.expected_cost().of(outcome.refused_by.limit.unit)
                proceed(refusal(outcome.refused_by, amount, outcome.standings, outcome.now_s))
                return
            account.headers = headers(outcome.standings, outcome.now_s)
            self._admit(account)
            proceed(None)

        reservation = self.ledger.reserve(limits, account.expected_cost(), answered)
        account.reservation = reservation
        if account.ended_s is not None:
            # The request ended while the ledger answered.
            self.ledger.settle(reservation, account.cost())

    def finished(self, account: Account) -> None:
        """Record what a request has cost."""
        if self.ledger is not None and account.reservation is not None:
            self.ledger.settle(account.reservation, account.cost())
        if not account.admitted:
            return
        self.metrics.finished(account)
        if self.ledger is not None:
            self.ledger.add_usage(_usage_key(account), _usage(account))

    def refused(self, error: GatewayError) -> None:
        """Record an error of the gateway."""
        self.metrics.refused(error.code)

    def _admit(self, account: Account) -> None:
        account.admitted = True
        self.metrics.started(account)


def _usage_key(account: Account) -> UsageKey:
    hour, caller = int(time.time()) // HOUR_S * HOUR_S, account.caller
    return UsageKey(hour, caller.key_id, caller.name, caller.team, account.model)


def _usage(account: Account) -> Usage:
    tokens = account.tokens
    answered = account.first_byte_s is not None and account.status < 400
    return Usage(
        requests=1,
        failed=int(not answered),
        incomplete=int(answered and not account.completed),
        estimated=int((answered and account.estimated) or bool(account.given_up)),
        prompt_tokens=(tokens.prompt or 0) + account.expected.prompt * len(account.given_up),
        cached_tokens=tokens.cached or 0,
        completion_tokens=tokens.completion or 0,
        nano_usd=account.cost().nano_usd,
    )
