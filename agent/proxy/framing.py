"""Finds the beginning and the end of HTTP/1.1 messages (RFC 9112). Without I/O; called by `client` and `upstream`.

Heads are parsed strictly, because request smuggling exploits differences between two parsers. A head is forwarded as
received, without the headers that concern one connection (RFC 9110, section 7.6.1). For bodies only the length is
tracked.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

MAX_HEAD = 32 * 1024
"""Longest head of a request or a response, in bytes."""
MAX_LINE = 4 * 1024
"""Longest line in a chunked body besides the data: a chunk size with extensions, or a trailer."""
MAX_TRAILERS = 16 * 1024

HEAD_END = b"\r\n\r\n"

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([^\x00-\x20\x7f]+) HTTP/1\.([01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\x00\r\n]*)?\r\n")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":[^\x00\r\n]*\r\n)*\r\n")
_TELLING = re.compile(
    rb"^(connection|keep-alive|proxy-connection|upgrade|http2-settings|content-length|transfer-encoding):([^\r\n]*)\r\n",
    re.IGNORECASE | re.MULTILINE,
)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00\r\n]*)?\r\n")
_TRAILER = re.compile(_TOKEN + rb":[^\x00\r\n]*\r\n")
_DIGITS = re.compile(rb"[0-9]{1,18}")

_PER_CONNECTION = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"http2-settings"})
# Headers that a client cannot remove by listing them in Connection.
_END_TO_END = frozenset(
    {b"authorization", b"content-length", b"content-type", b"expect", b"host", b"transfer-encoding"}
)
_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})


class Malformed(Exception):
    """A message that cannot be forwarded. `status` is the status of the response to its sender."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.why = why
        self.status = status


class Body(Protocol):
    """Tracks one body to its end."""

    done: bool

    def consume(self, data: bytes, at: int = 0) -> int:
        """Read `data` from index `at`. Returns the index after the last byte of this body. Raises Malformed."""
        ...


class Sized:
    """A body of a known length."""

    __slots__ = ("done", "left")

    def __init__(self, length: int) -> None:
        self.left = length
        self.done = length == 0

    def consume(self, data: bytes, at: int = 0) -> int:
        step = min(self.left, len(data) - at)
        self.left -= step
        self.done = self.left == 0
        return at + step


class UntilClose:
    """A body that ends with the connection, for responses only."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def consume(self, data: bytes, at: int = 0) -> int:  # noqa: ARG002 - `Body`'s signature
        return len(data)


class Chunked:
    """A chunked body with its trailers."""

    __slots__ = ("_left", "_line", "_trailers", "done")

    def __init__(self) -> None:
        self.done = False
        self._left = 0
        """Remaining bytes of the current chunk, including the line end after it."""
        self._line = b""
        self._trailers = -1
        """Bytes of trailers so far; negative before the last chunk."""

    @property
    def between_chunks(self) -> bool:
        """Whether another chunk may follow here."""
        return not self._left and not self._line and self._trailers < 0

    def consume(self, data: bytes, at: int = 0) -> int:
        end = len(data)
        while at < end and not self.done:
            if not self._left and not self._line and self._trailers < 0 and (after := _after_chunk(data, at)):
                at = after
            elif self._left > 2:
                step = min(self._left - 2, end - at)
                self._left -= step
                at += step
            elif self._left:
                if data[at] != (0x0D if self._left == 2 else 0x0A):
                    raise Malformed("a chunk is longer than its declared size")
                self._left -= 1
                at += 1
            else:
                at = self._read_line(data, at)
        return at

    def _read_line(self, data: bytes, at: int) -> int:
        found = data.find(b"\n", at, at + MAX_LINE - len(self._line))
        if found < 0:
            self._line += data[at : at + MAX_LINE]
            if len(self._line) >= MAX_LINE:
                raise Malformed("a line of a chunked body is too long")
            return len(data)
        line, self._line = self._line + data[at : found + 1], b""
        if self._trailers < 0:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                self._line = line  # nothing can follow here
                raise Malformed("a chunk has no valid size")
            length = int(size[1], 16)
            if length:
                self._left = length + 2
            else:
                self._trailers = 0
        elif line == b"\r\n":
            self.done = True
        else:
            self._trailers += len(line)
            if _TRAILER.fullmatch(line) is None or self._trailers > MAX_TRAILERS:
                raise Malformed("the trailers are not valid")
        return found + 1


def _after_chunk(data: bytes, at: int) -> int:
    """Return the index after a chunk that is whole in `data`; 0 for any other, which `Chunked` reads in its parts.

    Engines send each event of a stream as one chunk, and nearly always all of it arrives together.
    """
    size = _CHUNK_SIZE.match(data, at)
    if size is None or (begin := size.end()) - at > MAX_LINE:
        return 0
    length = int(size[1], 16)
    after = begin + length + 2
    return after if length and data[after - 2 : after] == b"\r\n" else 0


class RequestHead(NamedTuple):
    """The properties of a request that its head contains."""

    method: bytes
    lines: bytes
    """The head to forward, without the empty line at its end."""
    body: Body | None
    """None: the request has no body."""
    old: bool
    """The request uses HTTP/1.0."""
    keep_alive: bool
    """The client wants to reuse the connection."""

    @property
    def idempotent(self) -> bool:
        return self.method in _IDEMPOTENT


class ResponseHead(NamedTuple):
    """The properties of a response that its head contains."""

    status: int
    lines: bytes
    body: Body | None
    old: bool
    keep_alive: bool


def read_request(head: bytes) -> RequestHead:
    """Parse a request head, including the empty line. Raises Malformed."""
    start = _REQUEST_LINE.match(head)
    if start is None:
        raise Malformed("the request line is not valid HTTP/1.1")
    method, old = start[1], start[3] == b"0"
    if method == b"CONNECT":
        raise Malformed("CONNECT is not supported", 501)
    lines, lengths, codings, connection = _read_fields(head, start.end())
    body: Body | None = None
    if codings:
        if old or codings != [b"chunked"] or lengths:
            # Refuse a body with both a length and a coding, or with an unsupported coding, instead of guessing its
            # length.
            raise Malformed("the length of the body is ambiguous", 400 if lengths or old else 501)
        body = Chunked()
    elif lengths:
        if len(lengths) > 1:
            raise Malformed("there are two Content-Length headers")
        length = _length_of(lengths)
        body = Sized(length) if length else None
    keep_alive = b"keep-alive" in connection if old else b"close" not in connection
    return RequestHead(method, lines, body, old, keep_alive)


def read_response(head: bytes, method: bytes) -> ResponseHead:
    """Parse the head of a response to a request with `method`, including the empty line. Raises Malformed."""
    start = _STATUS_LINE.match(head)
    if start is None:
        raise Malformed("the status line is not valid HTTP/1.1")
    status, old = int(start[2]), start[1] == b"0"
    lines, lengths, codings, connection = _read_fields(head, start.end())
    keep_alive = b"keep-alive" in connection if old else b"close" not in connection
    body: Body | None
    if method == b"HEAD" or status < 200 or status in (204, 304):
        body = None
    elif codings:
        if lengths:
            raise Malformed("the length of the body is ambiguous")
        body = Chunked() if codings[-1] == b"chunked" else UntilClose()
    elif lengths:
        length = _length_of(lengths)
        body = Sized(length) if length else None
    else:
        body = UntilClose()
    return ResponseHead(status, lines, body, old, keep_alive and not isinstance(body, UntilClose))


def _read_fields(head: bytes, at: int) -> tuple[bytes, list[bytes], list[bytes], list[bytes]]:
    """Return the head to forward, and the values of Content-Length, Transfer-Encoding and Connection."""
    if _FIELDS.fullmatch(head, at) is None:
        raise Malformed("a header is not valid")
    lengths: list[bytes] = []
    codings: list[bytes] = []
    connection: list[bytes] = []
    unwanted = False
    for name, value in _TELLING.findall(head, at):
        name = name.lower()
        if name == b"content-length":
            lengths += _words(value)
        elif name == b"transfer-encoding":
            codings += _words(value)
        else:
            unwanted = True
            if name == b"connection":
                connection += _words(value)
    lines = _without(head, at, {*_PER_CONNECTION, *connection} - _END_TO_END) if unwanted else head[:-2]
    return lines, lengths, codings, connection


def _without(head: bytes, at: int, names: set[bytes]) -> bytes:
    kept = [line for line in head[at:-4].split(b"\r\n") if line.partition(b":")[0].lower() not in names]
    return head[:at] + b"".join(line + b"\r\n" for line in kept)


def _words(value: bytes) -> list[bytes]:
    return [word.strip(b" \t").lower() for word in value.split(b",")]


def _length_of(values: list[bytes]) -> int:
    if len(set(values)) != 1 or _DIGITS.fullmatch(values[0]) is None:
        raise Malformed("Content-Length is not one number")
    return int(values[0])
