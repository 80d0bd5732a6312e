"""What is kept of a request so that it can still be sent: until there is an engine, and for a second try.

One for each `client`, which decides how much may be kept, and when it is forgotten.
"""

from __future__ import annotations


class Kept:
    """A request as far as it has come; nothing any more once it could not be sent from its beginning."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] | None = None
        self.size = 0
        """Bytes."""

    @property
    def can_be_sent(self) -> bool:
        """All that has come of the request is here."""
        return self._parts is not None

    def begin(self, data: bytes) -> None:
        """Keep a request from its beginning on, in place of any other."""
        self._parts = [data]
        self.size = len(data)

    def add(self, part: bytes) -> None:
        """Keep the next part too; only while it `can_be_sent`."""
        assert self._parts is not None
        self._parts.append(part)
        self.size += len(part)

    def joined(self) -> bytes:
        """All of it; only while it `can_be_sent`."""
        assert self._parts is not None
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def discard(self) -> None:
        self._parts = None
        self.size = 0
