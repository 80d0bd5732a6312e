"""Renews the token of a host that joined by an invitation, and ends invitations of the host that are left over.

Started by `agent.server.main`. The agent asks for a new token after a third of the old one's life, so two thirds remain
for failures. Waits are short, because a machine that sleeps must notice at its wake-up that the token is old. The
thread reads the token's file each time: `herdsman host join` may have written another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from agent.server.joining.identity import MODE, Identity
from agent.server.joining.leftovers import end_invitation
from agent.server.joining.token import Claims, TokenWrong, claims_of, request_token
from agent.steps.local import LocalMachine
from agent.steps.machine import MachineError
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KubeError, Unauthorized

LOOK_S = 300.0
"""The longest wait between two looks at the clock."""
RETRY_S = (30.0, 3600.0)
"""The first and the longest wait after a failure; each is twice the one before."""
LEAST_S = 1.0
AGE = 1 / 3
"""The part of its life after which a token is renewed."""
OF_THE_REST = 1 / 4
"""A wait after a failure is at most this part of the remaining life."""

_log = structlog.get_logger(__name__)


def due_at(claims: Claims) -> float:
    """Return the time at which a token should be renewed, in seconds of Unix time."""
    return claims.issued_at + AGE * claims.life_s


def wait_s(claims: Claims | None, now: float, failures: int) -> float:
    """Return the wait until the next look, in seconds. `failures` counts those since the last success."""
    if failures:
        wait = min(RETRY_S[0] * 2.0 ** min(failures - 1, 16), RETRY_S[1])
        if claims is not None and claims.expires_at > now:
            wait = min(wait, OF_THE_REST * (claims.expires_at - now))
        return max(LEAST_S, wait)
    if claims is None:
        return RETRY_S[0]
    return min(LOOK_S, max(LEAST_S, due_at(claims) - now))


class TokenRenewal:
    """Keeps the token of one host valid."""

    def __init__(
        self,
        client: KubeClient,
        identity: Identity,
        *,
        namespace: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` returns Unix time, because a token says its times so."""
        self._client = client
        self._identity = identity
        self._namespace = namespace
        self._clock = clock
        self._failures = 0
        self._invited = True
        """Whether an invitation of this host may be left over."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="token-renewal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause_s = self.look()
            except Exception:
                self._failures += 1
                pause_s = wait_s(None, self._clock(), self._failures)
                _log.exception("Failed to renew the token of this host")
            self._stop.wait(pause_s)

    def look(self) -> float:
        """Renew the token if it is due, and return the wait until the next look in seconds."""
        claims: Claims | None = None
        try:
            claims = self._identity.claims()
            if self._clock() >= due_at(claims):
                claims = self._renew(claims)
            self._failures = 0
            self._end_invitation()
        except (KubeError, MachineError, OSError, TokenWrong) as error:
            self._failures += 1
            if self._failures == 1 or self._failures % 20 == 0:
                _log.warning("Failed to renew the token of this host", error=str(error), hint=self._hint(error))
        return wait_s(claims, self._clock(), self._failures)

    def _renew(self, old: Claims) -> Claims:
        token, expires = request_token(self._client, namespace=self._namespace, account=self._identity.host)
        new = claims_of(token)
        if new.subject != old.subject:
            raise TokenWrong("the API server returned a token of another account")
        # A new file replaces the old one, so that no reader sees half a token.
        LocalMachine().write(str(self._identity.token_file), token.encode(), mode=MODE)
        _log.info("Renewed the token of this host", expires=expires)
        return new

    def _end_invitation(self) -> None:
        if not self._invited:
            return
        try:
            if end_invitation(self._client, self._identity.host, namespace=self._namespace):
                _log.warning("Ended an invitation of this host, which has joined already", host=self._identity.host)
            self._invited = False
        except ApiError as error:
            _log.warning("Failed to end the invitation of this host", error=str(error))

    def _hint(self, error: Exception) -> str:
        if isinstance(error, Unauthorized):
            return (
                f"the token has expired or was revoked: run `herdsman host invite {self._identity.host} --again`, then "
                "`herdsman host join` on this machine"
            )
        return ""
