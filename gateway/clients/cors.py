"""Cross-origin requests of browsers (CORS, in the Fetch standard): which origins may use the gateway. Pure.

Off until origins are allowed. Browsers send a preflight without keys before a request with a key, so it is answered
before keys are checked. Keys are in headers and cookies are not read, so no answer allows credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

MAX_AGE_S = 86400
"""How long a browser may remember the answer to a preflight."""
MAX_REQUESTED = 4096
ANY = "*"

_ORIGIN = re.compile(rb"^origin:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_METHOD = re.compile(rb"^access-control-request-method:", re.IGNORECASE | re.MULTILINE)
_HEADERS = re.compile(rb"^access-control-request-headers:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_TOKENS = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?:[ \t]*,[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+)*")
_EXPOSED = "x-request-id, retry-after"


class Cors:
    """The allowed origins."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        """Allow these origins, such as `https://chat.example.org`; `*` allows all. Raises ValueError."""
        self._origins = frozenset(map(_checked, origins))

    @property
    def is_on(self) -> bool:
        """Whether any origin is allowed."""
        return bool(self._origins)

    def lines(self, fields: bytes) -> bytes:
        """Return the header lines of each answer to a request with these header lines."""
        if not self._origins:
            return b""
        vary = b"" if ANY in self._origins else b"Vary: Origin\r\n"
        allowed = self._allowed(fields)
        if not allowed:
            return vary
        exposed = f"Access-Control-Expose-Headers: {_EXPOSED}\r\n".encode()
        return b"Access-Control-Allow-Origin: " + allowed + b"\r\n" + exposed + vary

    def preflight(self, method: str, fields: bytes) -> bytes | None:
        """Return the header lines of the answer to a preflight; None for other requests and for other origins."""
        if method != "OPTIONS" or not self._origins or _METHOD.search(fields) is None:
            return None
        allowed = self._allowed(fields)
        if not allowed:
            return None
        lines = [
            b"Access-Control-Allow-Origin: " + allowed,
            b"Access-Control-Allow-Methods: GET, POST, OPTIONS",
            f"Access-Control-Max-Age: {MAX_AGE_S}".encode(),
            b"Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        ]
        requested = _values(_HEADERS, fields)
        if len(requested) == 1 and len(requested[0]) <= MAX_REQUESTED and _TOKENS.fullmatch(requested[0]):
            lines.append(b"Access-Control-Allow-Headers: " + requested[0])
        return b"\r\n".join(lines) + b"\r\n"

    def _allowed(self, fields: bytes) -> bytes:
        """Return the value that allows the origin of a request; empty if there is none or it is not allowed."""
        found = _values(_ORIGIN, fields)
        if len(found) != 1:
            return b""
        if ANY in self._origins:
            return ANY.encode()
        return found[0] if found[0].decode("ascii", "replace") in self._origins else b""


def _values(line: re.Pattern[bytes], fields: bytes) -> list[bytes]:
    # Not stripped by the pattern: that takes time in proportion to the square of the number of blanks.
    return [value.strip(b" \t") for value in line.findall(fields)]


def _checked(origin: str) -> str:
    if origin == ANY:
        return origin
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"`{origin}` is not an origin, as in https://chat.example.org, or `*` for all")
    if "@" in parts.netloc or not origin.isascii() or origin != origin.lower():
        raise ValueError(f"`{origin}` is not an origin in the form that browsers send: lower case, without a user")
    return origin
