"""Every error that the Kubernetes API can answer with, typed once at this border.

Raised by `kubeapi.rest`, `kubeapi.discovery` and `kubeapi.config`; caught by whoever calls them.
Errors of urllib3, ssl, json and the `kubernetes` package never pass this border.

    KubeError
      ConfigInvalid            no usable kubeconfig or in-cluster configuration
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
    """Base of all that this package raises."""


class ConfigInvalid(KubeError):
    """No configuration was found, or the one found names no usable cluster and user."""


@dataclass(frozen=True)
class Cause:
    """One cause of a refusal: the field's path, what is wrong with it, and the API's word for that."""

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
    """400: the request itself could not be read; the object may name a field that does not exist."""


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or expired."""


class Forbidden(ApiError):
    """403: RBAC or an admission plugin refuses this caller."""


class NotFound(ApiError):
    """404: no such object, or no such path."""


class KindNotServed(NotFound):
    """Discovery, asked afresh, names no such kind: its CRD is not installed."""


class Conflict(ApiError):
    """409: someone else wrote first, or owns the fields; for an apply, `causes` name managers and fields."""


class AlreadyExists(ApiError):
    """409: an object of this name is already there."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object breaks a rule of its schema or of its kind; `causes` name the fields."""


class TooManyRequests(ApiError):
    """429: the server asks to come back after `retry_after_s`."""


class ServerError(ApiError):
    """5xx: the server failed; the same request may succeed later."""


class Unreachable(ApiError):
    """No complete answer came. Whether a write took effect is unknown."""

    def __init__(
        self, message: str, *, reset: bool = False, timed_out: bool = False, misdirected: bool = False
    ) -> None:
        super().__init__(0, "Unreachable", message)
        self.reset = reset
        """The connection broke after it stood, so the server may have been fine: a read may be tried again."""
        self.timed_out = timed_out
        """The request was sent, and no answer came in time."""
        self.misdirected = misdirected
        """No server has the name in the URL, or the one that answers is not the one that the certificates are for."""


class NotLeading(ApiError):
    """A write was not sent, because whoever made the client says that this process may not write now."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "NotLeading", message)


class Unreadable(ApiError):
    """An informer holds no copy of an object that exists, since its transform raised on it."""

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
    """Make the typed error of a `Status` object, as failed requests and watch ERROR events carry it."""
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
    """Make the typed error of a failed response; a body that is no `Status` becomes the message, cut at 500 signs."""
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
