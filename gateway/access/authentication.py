"""Checks the key of each request. `connection` calls it as soon as it has read the head of a request. Does no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.access.caller import ANYONE, Caller
from gateway.access.keys import KeyRing
from gateway.clients.heads import Head
from gateway.errors import GatewayError

ALIVE_PATH = "/health"
OPEN_PATHS = frozenset({ALIVE_PATH, "/ready"})
"""Paths that need no key: probes of Kubernetes send none."""
_REALM = 'Bearer realm="herdsman"'


def keys_required(*, loopback: bool, asked: bool) -> bool:
    """Return whether requests need a key even if no key was made. Beyond loopback they always do."""
    return asked or not loopback


class Access:
    """Decides who may use the gateway. Belongs to the event loop's thread."""

    def __init__(self, *, required: bool, ring: KeyRing | None = None, clock: Callable[[], float] = time.time) -> None:
        """`required`: requests need a key even if there is none. `ring` None: the keys are not known yet."""
        self._required = required
        self._clock = clock
        self.ring = ring

    @classmethod
    def open(cls) -> Access:
        """Return an access that needs no key."""
        return cls(required=False, ring=KeyRing())

    def authenticate(self, head: Head) -> Caller | GatewayError:
        """Return who sends a request, or why it is refused."""
        if head.path == ALIVE_PATH or (head.path in OPEN_PATHS and self.ring is not None):
            return ANYONE
        if self.ring is None:
            message = "the gateway has not read the keys of its clients yet"
            return GatewayError(503, "keys_unknown", message, retry_after_s=1.0)
        if not self._required and not self.ring:
            return ANYONE
        if not head.credential:
            message = (
                "you did not provide an API key; send it as `Authorization: Bearer KEY`. "
                "`herdsman key create NAME` makes one"
            )
            return _refused("missing_api_key", message, _REALM)
        key = self.ring.find(head.credential)
        if key is None:
            return _refused("invalid_api_key", "the API key is not correct, or it was revoked", _INVALID)
        if key.expires_s is not None and key.expires_s <= self._clock():
            return _refused("expired_api_key", f"the API key `{key.caller.name}` has expired", _INVALID)
        return key.caller


_INVALID = f'{_REALM}, error="invalid_token"'


def _refused(code: str, message: str, challenge: str) -> GatewayError:
    return GatewayError(401, code, message, headers=(("WWW-Authenticate", challenge),))
