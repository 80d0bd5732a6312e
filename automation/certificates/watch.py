"""Notices certificate Secrets that somebody deleted, within a minute.

Made by `assembly`. The loop may not watch Secrets (docs/adr/0028), so each known one is looked at in turn, by a patch
that changes nothing. A service whose Secret is gone is put into the queue, and its pass makes the Secret again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from automation.certificates.issuing import CertificateIssuer
from kubeapi.errors import ApiError
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)

ROUND_S = 40.0
"""Seconds between two looks at one Secret."""
TICK_S = 1.0
MOST_PER_TICK = 25
"""Looks in a second. With more than a thousand Secrets the time between two looks grows for it."""


class CertificateWatch:
    """Looks at all Secrets that the issuer knows, each once in a while, in a thread of its own."""

    def __init__(
        self,
        issuer: CertificateIssuer,
        *,
        requeue: Callable[[ServiceKey, float], None],
        every_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._requeue = requeue
        self._every_s = every_s
        self._clock = clock
        self._looked: dict[ServiceKey, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificates", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no further look."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def look(self) -> None:
        """Look at the Secrets that are due, those first that were looked at the longest time ago."""
        now, known = self._clock(), self._issuer.known()
        self._looked = {key: self._looked.get(key, now) for key in known}
        due = [key for key in known if now - self._looked[key] >= self._every_s]
        for key in sorted(due, key=self._looked.__getitem__)[:MOST_PER_TICK]:
            self._looked[key] = now
            self._look(key)

    def _run(self) -> None:
        while not self._stopping.wait(TICK_S):
            self.look()

    def _look(self, key: ServiceKey) -> None:
        try:
            if self._issuer.is_gone(key):
                log.info("Missed the certificate of a service", service=str(key))
                self._requeue(key, 0.0)
        except ApiError:
            pass  # the next look asks again, and passes say what is wrong
        except Exception:
            log.exception("Failed to look at a certificate", service=str(key))
