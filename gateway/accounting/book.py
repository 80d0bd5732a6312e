"""Collects what the requests of this gateway cost. Belongs to the event loop's thread."""

from __future__ import annotations

from gateway.accounting.account import Account
from gateway.accounting.metrics import Metrics
from gateway.backends import Backends
from gateway.errors import GatewayError


class Book:
    """The accounts of all requests."""

    def __init__(self, backends: Backends) -> None:
        self.metrics = Metrics(backends)

    def started(self, account: Account) -> None:
        """Record that a request is sent to a model."""
        self.metrics.started(account)

    def finished(self, account: Account) -> None:
        """Record what a request has cost."""
        self.metrics.finished(account)

    def refused(self, error: GatewayError) -> None:
        """Record an error of the gateway."""
        self.metrics.refused(error.code)
