"""The proxy's own error responses, in OpenAI's format, which client libraries parse and retry. Without I/O."""

from __future__ import annotations

import json
from enum import StrEnum

_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class ErrorCode(StrEnum):
    """The `code` of an error, from a closed list for clients and metrics."""

    INVALID_REQUEST = "invalid_request"
    BODY_TOO_LARGE = "body_too_large"
    """The service sleeps, and the body is larger than the proxy may keep until the service runs."""
    TOO_MANY_HELD = "too_many_held_requests"
    """The maximum number of requests already waits for the service."""
    WAKE_TIMEOUT = "wake_timeout"
    """The service did not start in time."""
    START_FAILED = "start_failed"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_FAILED = "upstream_failed"
    """Before its response the engine closed the connection or sent something that is not HTTP."""
    SHUTTING_DOWN = "shutting_down"
    SOURCE_NOT_ADMITTED = "source_not_admitted"
    """The service's NetworkPolicy does not admit the client's address."""
    TOO_MANY_CONNECTIONS = "too_many_connections"


def error_response(
    status: int,
    code: ErrorCode,
    message: str,
    *,
    retry_after_s: float | None = None,
    close: bool,
    bodiless: bool = False,
) -> bytes:
    """Return a complete response. `bodiless` is for HEAD: the headers of the response to GET, without the body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code.value}
    body = json.dumps({"error": error}).encode() + b"\n"
    lines = [
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if retry_after_s is not None:
        lines.append(f"Retry-After: {max(1, round(retry_after_s))}")
    if close:
        lines.append("Connection: close")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return head if bodiless else head + body
