"""Has certificates stand before the pods that serve with them ask for them, and renewed while nothing else happens.

Called by the controller in each pass, for services whose workloads name a certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from automation.certificates.issuing import CertificateIssuer
from automation.reconcile.desire import Wanted
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

RECHECK_S = 12 * 3600.0
"""A service that nobody touches is looked at this often, so that no certificate runs out."""


class Certifying:
    """The certificates of all services. Thread-safe for different services."""

    def __init__(self, issuer: CertificateIssuer, *, requeue: Callable[[ServiceKey, float], None]) -> None:
        self._issuer = issuer
        self._requeue = requeue

    def certified(self, key: ServiceKey, cr: Json, wanted: Wanted) -> Wanted:
        """Issue what is needed; what stands in the way is told with what cannot be honoured. Raises ApiError."""
        desired = wanted.desired
        workloads = desired.workloads if desired is not None and not desired.suspended else None
        if desired is None or workloads is None or workloads.certificate is None:
            return wanted
        self._requeue(key, RECHECK_S)
        problem = self._issuer.ensure(key, cr, workloads.certificate, desired)
        return wanted if problem is None else replace(wanted, unhonoured=(*wanted.unhonoured, problem))

    def forget(self, key: ServiceKey) -> None:
        """Let go of a service that is gone."""
        self._issuer.forget(key)
