"""Notices clients that send or read nothing, or send a request so slowly that they only keep their connection.

`connection` has one for its client.
"""

from __future__ import annotations

from gateway.limits import GatewayLimits


class ClientPace:
    """When a client sent the bytes of its present request. Times are those of the event loop, in seconds."""

    __slots__ = ("_began_at", "_clogged_at", "_limits", "_moved_at")

    def __init__(self, limits: GatewayLimits, now: float) -> None:
        self._limits = limits
        self._moved_at = now
        """When the client last sent a byte that was waited for."""
        self._began_at: float | None = None
        """When the first byte of the request came; None before it."""
        self._clogged_at: float | None = None
        """When the client stopped to read an answer; None while it reads."""

    def moved(self, now: float) -> None:
        """Record bytes of a request."""
        self._moved_at = now
        if self._began_at is None:
            self._began_at = now

    def answered(self, now: float, *, has_more: bool) -> None:
        """Begin with the next request. `has_more`: some of its bytes are here already."""
        self._moved_at = now
        self._began_at = now if has_more else None

    def clogs(self, now: float | None) -> None:
        """Record that the client does not read its answer; None: it reads again."""
        self._clogged_at = now

    @property
    def is_clogged(self) -> bool:
        """The client does not accept more of the answer for now."""
        return self._clogged_at is not None

    def is_stuck(self, now: float) -> bool:
        """Return whether the client read nothing of an answer for too long."""
        since = self._moved_at if self._clogged_at is None else self._clogged_at
        return now - since > self._limits.gap_s

    def is_idle(self, now: float) -> bool:
        """Return whether no byte came for too long."""
        return now - self._moved_at > self._limits.client_idle_s

    def is_slow_head(self, now: float) -> bool:
        """Return whether a head that is not complete takes too long."""
        return self._began_at is not None and now - self._began_at > self._limits.head_s

    def is_slow_body(self, now: float, received: int) -> bool:
        """Return whether a body that is not complete comes too slowly; `received` are its bytes so far."""
        allowed_s = self._limits.client_idle_s + received / self._limits.body_rate
        return self._began_at is not None and now - self._began_at > allowed_s
