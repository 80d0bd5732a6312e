"""Checks whether clients can reach a process at the address that its Service uses.

Called by `publisher` before it reports a process as ready. Health checks use the address on which engines listen. If
the published address is different, a connection to that address is tested as well.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from agent.contract import ProcessReason, ProcessReport
from agent.server.processes.ports import is_free

TIMEOUT_S = 1.0
AGAIN_S = 20.0
"""How long a successful test counts."""


class ReachabilityCheck:
    """The published address of one agent's host. Used by one thread at a time."""

    def __init__(
        self,
        address: str,
        *,
        listen: str,
        pinned: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address` is the agent's, `listen` the engines', and `pinned` returns the Host's `spec.address`, if set."""
        self._address = address
        self._listen = listen
        self._pinned = pinned
        self._clock = clock
        self._answered: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()

    def __call__(self, report: ProcessReport) -> ProcessReport:
        """Return the report of a ready process, as not ready with a reason if the published address does not answer."""
        published = self._published()
        if report.port is None or published == self._listen:
            return report
        if self._answers(published, report.port):
            return report
        return report.model_copy(
            update={
                "ready": False,
                "reason": ProcessReason.ADDRESS_NOT_ANSWERING,
                "message": f"the process listens on {self._listen}, but {published}:{report.port}, the address in its "
                f"Service, does not answer; start the agent with `--listen {published}`",
            }
        )

    def _published(self) -> str:
        """Return the address in Services. An address that another machine translates cannot be tested from here."""
        pinned = self._pinned()
        return pinned if pinned and _is_own(pinned) else self._address

    def _answers(self, address: str, port: int) -> bool:
        with self._lock:
            if self._clock() - self._answered.get((address, port), float("-inf")) < AGAIN_S:
                return True
        try:
            socket.create_connection((address, port), timeout=TIMEOUT_S).close()
        except OSError:
            with self._lock:
                self._answered.pop((address, port), None)
            return False
        with self._lock:
            self._answered = {which: at for which, at in self._answered.items() if self._clock() - at < AGAIN_S}
            self._answered[(address, port)] = self._clock()
        return True


def _is_own(address: str) -> bool:
    try:
        return is_free(address, 0)
    except ValueError:
        return False
