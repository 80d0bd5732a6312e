"""The keys of clients: `hd-<id>-<secret>`. Pure.

The cluster holds the SHA-256 of a key, and not the key. A fast hash suffices, because the secret has 160 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.access.caller import Caller

_ID_BYTES = 6
_SECRET_BYTES = 20
_FORM = re.compile(r"hd-([0-9a-f]{12})-[0-9a-f]{40}")


def new_key() -> tuple[str, str]:
    """Make a key. Return its id, which is no secret, and the key."""
    key_id = secrets.token_hex(_ID_BYTES)
    return key_id, f"hd-{key_id}-{secrets.token_hex(_SECRET_BYTES)}"


def digest(key: str) -> str:
    """Return the hash of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True)
class Key:
    """What the gateway knows of a key."""

    caller: Caller
    digest: str = field(repr=False)
    expires_s: float | None = None
    """Seconds since 1970; None: never."""


@dataclass(frozen=True)
class KeyRing:
    """All keys that are not revoked."""

    keys: dict[str, Key] = field(default_factory=dict)
    """The keys by their ids."""
    unreadable: int = 0
    """Secrets of keys that cannot be read. They open nothing, but they count as keys."""

    @classmethod
    def of(cls, keys: Iterable[Key], unreadable: int = 0) -> KeyRing:
        """Index keys by their ids."""
        return cls({key.caller.key_id: key for key in keys}, unreadable)

    def __bool__(self) -> bool:
        return bool(self.keys) or self.unreadable > 0

    def find(self, presented: str) -> Key | None:
        """Return the key that a client presents; None if there is none, or if it was revoked. Expired keys too."""
        form = _FORM.fullmatch(presented)
        known = self.keys.get(form[1]) if form is not None else None
        if known is None or not hmac.compare_digest(known.digest, digest(presented)):
            return None
        return known
