"""A serving certificate that is replaced without a gap, for servers whose authority is written into an object.

Used by the conversion webhook (`automation.webhook.webhook`) and the external metrics API
(`automation.external_metrics.serving`). First the object gets the authorities of both certificates, then the server
changes its certificate, then the object gets only the new authority.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence

from automation.certificates.files import LIFETIME, serving_files

RENEW_AFTER = 0.5
"""A certificate is replaced after this part of its lifetime."""
SETTLE_S = 10.0
"""Time after the write of an object until every API server has it."""


class ServingCertificate:
    """The certificate of a server, and the next one while it is replaced. Not thread-safe."""

    def __init__(
        self,
        names: Sequence[str],
        addresses: Sequence[str] = (),
        *,
        lifetime: datetime.timedelta = LIFETIME,
        settle_s: float = SETTLE_S,
        clock: Callable[[], datetime.datetime],
    ) -> None:
        """Make a certificate for these names and IP addresses."""
        self._names = names
        self._addresses = addresses
        self._lifetime = lifetime
        self._settle_s = settle_s
        self._clock = clock
        self._renewal = clock()
        self._next: Mapping[str, bytes] = {}
        """The files of the next certificate, until every API server has its authority; usually empty."""
        self._written_at: float | None = None
        """The time, on the monotonic clock, when the object had the authority of `_next`."""
        self.files: Mapping[str, bytes] = {}
        """The files `tls.crt`, `tls.key` and `ca.crt` of the certificate that the server uses."""
        self._use(self._issue())

    @property
    def authorities(self) -> bytes:
        """PEM of the authorities that the object must have now."""
        return self.files["ca.crt"] + self._next.get("ca.crt", b"")

    @property
    def renewal_s(self) -> float:
        """Seconds until the certificate must be replaced."""
        return max(0.0, (self._renewal - self._clock()).total_seconds())

    def renew_if_due(self) -> None:
        """Make the next certificate if the present one is old. `authorities` has both then."""
        if not self._next and self._clock() >= self._renewal:
            self._next = self._issue()

    def settle(self) -> float | None:
        """Replace the certificate after every API server has the authority of the next certificate. Call it when the
        object has `authorities`.

        Return None while there is no next certificate, else the seconds to wait; 0 means that `files` changed now.
        """
        if not self._next:
            return None
        now = time.monotonic()
        if self._written_at is None:
            self._written_at = now
        left_s = self._settle_s - (now - self._written_at)
        if left_s > 0:
            return left_s
        self._use(self._next)
        return 0.0

    def _issue(self) -> dict[str, bytes]:
        return serving_files(self._names, self._addresses, now=self._clock(), lifetime=self._lifetime)

    def _use(self, files: Mapping[str, bytes]) -> None:
        self.files, self._next, self._written_at = files, {}, None
        self._renewal = self._clock() + self._lifetime * RENEW_AFTER
