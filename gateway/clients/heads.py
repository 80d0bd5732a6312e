"""The heads of requests and answers, and the paths that the gateway serves. Without I/O; used by `connection`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from urllib.parse import unquote

from agent.proxy.framing import RequestHead
from gateway.errors import GatewayError

FORM_PATHS = frozenset(
    {"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations"}
)
"""The paths of requests whose body is a form with files; the body of all others is JSON."""
MODEL_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/rerank",
        "/v1/score",
        "/tokenize",
        "/detokenize",
        "/v1/audio/speech",
        "/v1/images/generations",
        *FORM_PATHS,
    }
)
"""The paths of requests with a body that names a model. Other paths of engines are not for clients: some of them load
adapters or put an engine to sleep."""
PROMPT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages"})
"""The paths whose requests have a prompt that an engine keeps in its prefix cache."""

_KEYS = frozenset({b"x-api-key", b"api-key"})
"""Headers that hold only a client's key."""
_BEARER = "bearer "

_DROPPED = frozenset(
    {
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"expect",
        # The client's keys are for the gateway, and its cookies for nobody behind it.
        b"authorization",
        *_KEYS,
        b"cookie",
        b"x-request-id",
        # The gateway reads the tokens of answers, so engines must not compress them.
        b"accept-encoding",
    }
)
_CONTENT_TYPE = re.compile(rb"^content-type:([^\r\n]*)\r?$", re.IGNORECASE | re.MULTILINE)
_OWN_LINES = re.compile(rb"^(?:x-request-id|access-control-[a-z-]+):[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
_CHUNK_LINES = re.compile(rb"^(?:transfer-encoding|trailer):[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


@dataclass(frozen=True)
class Head:
    """What the head of a request says."""

    method: str
    target: str
    """Path and query as the client sent them."""
    path: str
    """The path, decoded."""
    fields: bytes
    """The lines to send on."""
    request_id: str
    expects_continue: bool = False
    old: bool = False
    """The request uses HTTP/1.0."""
    cors_lines: bytes = b""
    """The lines of its answer that are for browsers."""
    credential: str = field(default="", repr=False)
    """The client's key: of `Authorization: Bearer`, else of `x-api-key` or `api-key`. Empty: none."""
    host: str = ""
    """The `Host` header: the name, and perhaps the port, by which the client addressed the gateway."""

    @classmethod
    def read(cls, request: RequestHead) -> Head:
        """Read a request's head."""
        start, *lines = request.lines.split(b"\r\n")
        _, target, _ = start.split(b" ")
        kept: list[bytes] = []
        request_id = b""
        expects = False
        credential = bearer = host = ""
        for line in lines:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name not in _DROPPED:
                kept.append(line)
            elif name == b"x-request-id":
                request_id = value.strip()
            elif name == b"expect":
                expects = value.strip().lower() == b"100-continue"
            elif name == b"authorization":
                bearer = _bearer(value)
            elif name == b"host":
                host = value.strip().decode("ascii", "replace")
            elif name in _KEYS:
                credential = value.strip().decode("ascii", "replace")
        if not _REQUEST_ID.fullmatch(request_id):
            # Ids are unique and no secrets, so each needs no system call for random bytes.
            request_id = b"%032x" % random.getrandbits(128)
        text = target.decode("ascii", "replace")
        return cls(
            request.method.decode(),
            text,
            unquote(text.partition("?")[0]),
            b"\r\n".join(kept),
            request_id.decode(),
            expects,
            request.old,
            credential=bearer or credential,
            host=host,
        )

    @property
    def content_type(self) -> bytes:
        """The type of the body; empty if there is no such header, or several."""
        found = _CONTENT_TYPE.findall(self.fields)
        return bytes(found[0]).strip() if len(found) == 1 else b""

    @property
    def request_id_line(self) -> bytes:
        """The header line with the request's id."""
        return f"x-request-id: {self.request_id}\r\n".encode() if self.request_id else b""

    def outgoing(self, length: int) -> bytes:
        """Return the head for a replica, without its Host line, for a body of this length in bytes."""
        start = f"{self.method} {self.target} HTTP/1.1\r\n".encode()
        return b"".join((start, self.fields, self.request_id_line, f"Content-Length: {length}\r\n".encode()))


NO_REQUEST = Head("", "", "", b"", "")
"""Stands for a request whose head could not be read."""


def _bearer(value: bytes) -> str:
    text = value.strip().decode("ascii", "replace")
    return text[len(_BEARER) :].strip() if text[: len(_BEARER)].lower() == _BEARER else ""


def response(
    status: int,
    body: bytes,
    head: Head,
    *,
    close: bool = False,
    retry_after_s: float | None = None,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return a complete answer of the gateway."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if retry_after_s is not None:
        lines.append(f"Retry-After: {max(1, round(retry_after_s))}")
    if close:
        lines.append("Connection: close")
    elif head.old:
        lines.append("Connection: keep-alive")
    text = b"".join(("\r\n".join(lines).encode(), b"\r\n", head.request_id_line, head.cors_lines, b"\r\n"))
    return text if head.method == "HEAD" else text + body


def refusal(error: GatewayError, head: Head, *, close: bool) -> bytes:
    """Return the answer for an error of the gateway."""
    retry_s = error.retry_after_s
    return response(error.status, error.body(), head, close=close, retry_after_s=retry_s, headers=error.headers)


def no_content(lines: bytes, head: Head, *, close: bool) -> bytes:
    """Return an answer without a body, with these header lines."""
    connection = b"Connection: close\r\n" if close else b"Connection: keep-alive\r\n" if head.old else b""
    return b"".join((b"HTTP/1.1 204 No Content\r\n", lines, head.request_id_line, connection, b"\r\n"))


def without_own_lines(lines: bytes) -> bytes:
    """Return the head of an answer without an engine's own id of the request, and its own rules for browsers."""
    return _OWN_LINES.sub(b"", lines)


def without_chunks(lines: bytes) -> bytes:
    """Return the head of an answer without the lines that announce chunks."""
    return _CHUNK_LINES.sub(b"", lines)


def lines_of(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the lines of some headers."""
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)


def with_field(head: Head, name: str, value: str) -> Head:
    """Return a head with one header in the place of the client's own headers of that name, which is in lower case."""
    lines = [line for line in head.fields.split(b"\r\n") if line.partition(b":")[0].lower().decode("latin-1") != name]
    # The lines end with an empty one.
    return replace(head, fields=b"\r\n".join((f"{name}: {value}".encode("latin-1"), *lines)))


def as_mapping(head: Head) -> dict[str, str]:
    """Return the headers that are sent on, by name in lower case; several lines of one name are joined."""
    found: dict[str, str] = {}
    for line in head.fields.split(b"\r\n"):
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            name = name.lower()
            found[name] = f"{found[name]}, {value.strip()}" if name in found else value.strip()
    return found


def unchunked(data: bytes) -> bytes:
    """Return the content of a complete chunked body, which `framing` has checked."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end].partition(b";")[0], 16)
        if not size:
            return b"".join(parts)
        at = end + 2
        parts.append(data[at : at + size])
        at += size + 2
