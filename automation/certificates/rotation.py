"""Replaces the certificate of a server that the API server calls, without a moment at which a call fails.

The API server gets the authorities of both certificates. When every API server has them, the server changes to the new
certificate, and then the API server gets only the new authority. Used by the conversion webhook and the external
metrics API.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

RENEW_AFTER = 0.5
"""A certificate is replaced after this part of its lifetime."""
SETTLE_S = 10.0
"""Time after the write of an object until every API server has it."""


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class CertificateRotation:
    """The certificate in use, and the next one while it is announced. For one thread."""

    def __init__(
        self,
        issue: Callable[[datetime.datetime, datetime.timedelta], dict[str, bytes]],
        *,
        lifetime: datetime.timedelta,
        settle_s: float = SETTLE_S,
        clock: Callable[[], datetime.datetime] = _utc_now,
    ) -> None:
        """`issue` makes the files of a certificate from the present time and the lifetime."""
        self._issue = issue
        self._lifetime = lifetime
        self._settle_s = settle_s
        self._clock = clock
        self._next: dict[str, bytes] = {}
        self._told_at: float | None = None
        now = clock()
        self.served = issue(now, lifetime)
        """The files of the certificate in use."""
        self.renewal = now + lifetime * RENEW_AFTER
        """When the next certificate is due."""

    @property
    def authorities(self) -> bytes:
        """PEM of the authorities that the API server must trust now."""
        return self.served["ca.crt"] + self._next.get("ca.crt", b"")

    @property
    def due_in_s(self) -> float:
        """Seconds until the next certificate is due; 0 if it is."""
        return max(0.0, (self.renewal - self._clock()).total_seconds())

    def begin_if_due(self) -> None:
        """Make the next certificate if it is time. Its authority is among `authorities` from now on."""
        if not self._next and self._clock() >= self.renewal:
            self._next = self._issue(self._clock(), self._lifetime)

    def announced(self) -> float | None:
        """Record that the API server was told all `authorities`.

        Returns None if no certificate waits, else the seconds until `served` changes: 0 means that it changed now.
        """
        if not self._next:
            return None
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
        left_s = self._told_at + self._settle_s - now
        if left_s > 0:
            return left_s
        self.served, self._next, self._told_at = self._next, {}, None
        self.renewal = self._clock() + self._lifetime * RENEW_AFTER
        return 0.0
