"""The errors of the Kubernetes API, converted to types at this border only.

Raised by `kubeapi.rest`, `kubeapi.discovery` and `kubeapi.config`; caught by their callers. Errors of urllib3, ssl,
json and the `kubernetes` package never pass this border.

    KubeError
      ConfigInvalid            no usable kubeconfig or in-cluster configuration
        NotConfigured          there is no kubeconfig
      ApiError                 status, reason, message, causes, retry_after_s
        BadRequest             400
        Unauthorized           401
        Forbidden              403
        NotFound               404
          KindNotServed        discovery knows no such kind
        Conflict               409: an old resourceVersion, a uid that differs, fields another manager owns
        AlreadyExists          409
        Gone                   410: a resourceVersion or list position that the server forgot
        Invalid                422: causes name the fields
        TooManyRequests        429
        ServerError            5xx
        Unreachable            no (complete) answer: refused, reset, timed out, TLS
        NotLeading             not sent: this process may not write now
        Unreadable             the object exists, but a cache of this process could not read it
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class KubeError(Exception):
    """Base of all errors of this package."""


class ConfigInvalid(KubeError):
    """There is no configuration, or it has no usable cluster and user."""


class NotConfigured(ConfigInvalid):
    """There is no kubeconfig, and the process runs in no pod."""


@dataclass(frozen=True)
class Cause:
    """One cause of a refusal: the path of the field, the message, and the API's reason."""

    field: str
    message: str
    reason: str


class ApiError(KubeError):
    """The API server refused, failed, or did not answer (then `status` is 0)."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        causes: tuple[Cause, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.reason} ({self.status}): {self.message}" if self.status else f"{self.reason}: {self.message}"


class BadRequest(ApiError):
    """400: the server could not read the request; the object may have a field that does not exist."""


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or expired."""


class Forbidden(ApiError):
    """403: RBAC or an admission plugin refuses this caller."""


class NotFound(ApiError):
    """404: no such object, or no such path."""


class KindNotServed(NotFound):
    """The server's current discovery documents contain no such kind: its CRD is not installed."""


class Conflict(ApiError):
    """409: another client wrote first, or owns the fields; for an apply, `causes` name managers and fields."""


class AlreadyExists(ApiError):
    """409: an object of this name exists."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object breaks a rule of its schema or of its kind; `causes` name the fields."""


class TooManyRequests(ApiError):
    """429: the client must wait `retry_after_s` before it tries again."""


class ServerError(ApiError):
    """5xx: the server failed; the same request may succeed later."""


class Unreachable(ApiError):
    """There was no complete answer. Whether a write took effect is unknown."""

    def __init__(
        self, message: str, *, reset: bool = False, timed_out: bool = False, misdirected: bool = False
    ) -> None:
        super().__init__(0, "Unreachable", message)
        self.reset = reset
        """The connection broke after it was established, so the server may work: a read may be repeated."""
        self.timed_out = timed_out
        """The request was sent, and no answer arrived in time."""
        self.misdirected = misdirected
        """No server has the name in the URL, or the server that answers does not match the certificates."""


class NotLeading(ApiError):
    """A write was not sent, because the client's owner does not allow this process to write now."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "NotLeading", message)


class Unreadable(ApiError):
    """An informer has no copy of an object that exists, because its transform raised for it."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreadable", message)


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_of_status(status: Mapping[str, Any], *, code: int = 0, retry_after_s: float | None = None) -> ApiError:
    """Return the typed error of a `Status` object from a failed request or a watch's ERROR event."""
    code = int(status.get("code") or code or 500)
    reason = str(status.get("reason") or "") or _REASONS.get(code, "Unknown")
    message = str(status.get("message") or reason)
    details = status.get("details") or {}
    causes = tuple(
        Cause(field=str(c.get("field") or ""), message=str(c.get("message") or ""), reason=str(c.get("reason") or ""))
        for c in details.get("causes") or ()
    )
    if retry_after_s is None and details.get("retryAfterSeconds"):
        retry_after_s = float(details["retryAfterSeconds"])
    kind = _BY_STATUS.get(code, ServerError if code >= 500 else ApiError)
    if code == 409 and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(code, reason, message, causes, retry_after_s)


def error_of_response(code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the typed error of a failed response; a body that is no `Status` is the message, up to 500 characters."""
    retry_after_s: float | None = None
    with contextlib.suppress(ValueError):  # absent, or an HTTP date, which the API server does not send
        retry_after_s = float(headers.get("Retry-After") or "")
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": body.decode("utf-8", "replace").strip()[:500]}
    return error_of_status({**status, "code": code}, retry_after_s=retry_after_s)


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Gone",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
