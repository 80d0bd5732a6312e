"""Errors about a model's file, each with the reason that a condition or a host's report shows.

Raised by `agent.server.models`, `agent.sources` and `automation.models`; caught by `agent.server.processes.worker` and
`automation.models`. Errors of urllib3, ssl and the operating system are converted to these.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reasons for a missing file, a closed list."""

    UNAUTHORIZED = "SourceUnauthorized"
    """The server requires credentials (401, 403, 407)."""
    NOT_FOUND = "SourceNotFound"
    """The file does not exist (404, 410, a missing path)."""
    UNTRUSTED = "SourceUntrusted"
    """The server's certificate is not trusted, or a redirect would leave TLS."""
    UNREACHABLE = "SourceUnreachable"
    """No complete answer: DNS, refused, reset, timed out, 429, 5xx."""
    REFUSED = "SourceRefused"
    """Reading is not allowed: a private address, or a path outside the allowed roots."""
    UNEXPECTED = "SourceUnexpected"
    """The server sent an answer that a file server does not send."""
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    SIZE_MISMATCH = "SizeMismatch"
    NOT_GGUF = "NotGguf"
    """The file exists, but is not a supported GGUF file."""
    NO_SPACE = "NoSpace"
    """The disk, a quota or a file size limit is exhausted."""
    STORE_FAILED = "StoreFailed"
    """The store's directory cannot be read or written."""
    PLAN_INVALID = "FilePlanInvalid"
    """The plan names a file outside of its directory."""
    CANCELLED = "Cancelled"


class FileError(Exception):
    """A file is not available. `message` names the file, the problem and, if there is one, the remedy."""

    reason: Reason
    transient = False
    """True: the same request may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SourceUnauthorized(FileError):
    reason = Reason.UNAUTHORIZED


class SourceNotFound(FileError):
    reason = Reason.NOT_FOUND


class SourceUntrusted(FileError):
    reason = Reason.UNTRUSTED


class SourceRefused(FileError):
    reason = Reason.REFUSED


class SourceUnexpected(FileError):
    reason = Reason.UNEXPECTED


class SourceUnreachable(FileError):
    """`retry_after_s` is the server's Retry-After, if it sent one."""

    reason = Reason.UNREACHABLE
    transient = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SourceChanged(SourceUnreachable):
    """The file changed between two requests, so the bytes that were read before are useless."""


class ChecksumMismatch(FileError):
    """`actual` is the SHA-256 of the received bytes, in lower-case hex."""

    reason = Reason.CHECKSUM_MISMATCH

    def __init__(self, message: str, *, actual: str = "") -> None:
        super().__init__(message)
        self.actual = actual


class SizeMismatch(FileError):
    reason = Reason.SIZE_MISMATCH


class NoSpace(FileError):
    """A person must free space. Herdsman tries again by itself."""

    reason = Reason.NO_SPACE
    transient = True

    def __init__(self, message: str, *, lacking_bytes: int | None = None) -> None:
        """`lacking_bytes` must be freed, beside what can be removed from the store. None: unknown."""
        super().__init__(message)
        self.lacking_bytes = lacking_bytes


class StoreFailed(FileError):
    reason = Reason.STORE_FAILED
    transient = True


class PlanInvalid(FileError):
    reason = Reason.PLAN_INVALID


class Cancelled(FileError):
    """The caller cancelled the download. Received bytes are kept for the next call."""

    reason = Reason.CANCELLED
    transient = True


class GgufInvalid(FileError):
    """The bytes are not a supported GGUF header.

    `conclusive` is False for an unknown version, which a newer engine may support.
    """

    reason = Reason.NOT_GGUF

    def __init__(self, message: str, *, conclusive: bool = True) -> None:
        super().__init__(message)
        self.conclusive = conclusive


class NeedMoreBytes(Exception):
    """The header is longer than the available bytes; at least `needed` bytes of the file are necessary."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"at least {needed} bytes of the file are necessary")
        self.needed = needed
