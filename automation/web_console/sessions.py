"""Who may use the console: the person who opens its one-time link.

The link has a random token. Its first use makes a session in a cookie and ends the token. Writes need a second token
that only pages of this session contain, so that other sites cannot write by the person's browser.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable

COOKIE = "herdsman-console"
LIFE_S = 8 * 3600.0
"""How long a session lives after its start."""


class Sessions:
    """The link and the sessions of one console. They end with the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._ends: dict[str, float] = {}
        self._link = secrets.token_urlsafe(32)

    @property
    def link_token(self) -> str:
        """The token of the link; empty after its use."""
        return self._link

    def redeem(self, token: str) -> str | None:
        """Return a new session for the token of the link, once; None for any other text."""
        if not self._link or not hmac.compare_digest(token.encode(), self._link.encode()):
            return None
        self._link = ""
        session = secrets.token_urlsafe(32)
        self._ends[session] = self._clock() + LIFE_S
        return session

    def is_valid(self, session: str) -> bool:
        """Return whether a session exists and has not ended."""
        return self._clock() < self._ends.get(session, float("-inf"))

    def end(self, session: str) -> None:
        """End a session now."""
        self._ends.pop(session, None)

    def form_token(self, session: str) -> str:
        """Return the token of this session's forms."""
        return hmac.new(self._key, session.encode(), "sha256").hexdigest()

    def is_form_token(self, session: str, token: str) -> bool:
        """Return whether a form was made for this session."""
        return hmac.compare_digest(token.encode(), self.form_token(session).encode())
