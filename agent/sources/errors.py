"""What can go wrong with a model's file, each with the reason that a condition or a host's report shows.

Raised by `agent.server.models` (`remote`, `download`, `gguf_header`); caught by `agent.server.processes.worker` and
`automation.models.model_probe`. Errors of urllib3, ssl and the operating system are translated into these.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Every reason a file is not there, a closed list."""

    UNAUTHORIZED = "SourceUnauthorized"
    """The server wants credentials (401, 403, 407)."""
    NOT_FOUND = "SourceNotFound"
    """No such file (404, 410, a missing path)."""
    UNTRUSTED = "SourceUntrusted"
    """The server's certificate is not valid for us, or a redirect would leave TLS."""
    UNREACHABLE = "SourceUnreachable"
    """No (complete) answer: DNS, refused, reset, timed out, 429, 5xx."""
    REFUSED = "SourceRefused"
    """Not allowed to look: a private address, or a path outside the allowed roots."""
    UNEXPECTED = "SourceUnexpected"
    """The server answered something that a file server does not say."""
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    SIZE_MISMATCH = "SizeMismatch"
    NOT_GGUF = "NotGguf"
    """The file is there and is not a GGUF file that we can read."""
    NO_SPACE = "NoSpace"
    """The disk, a quota or a file size limit is exhausted."""
    STORE_FAILED = "StoreFailed"
    """The store's directory cannot be read or written."""
    PLAN_INVALID = "FilePlanInvalid"
    """The plan names a file that would lie outside its directory."""
    CANCELLED = "Cancelled"


class FileError(Exception):
    """A file is not there. `message` names the file, what is wrong and, where there is one, the remedy."""

    reason: Reason
    transient = False
    """True: trying again later, unchanged, may work."""

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
    """`retry_after_s` is what the server asked for, if it did."""

    reason = Reason.UNREACHABLE
    transient = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SourceChanged(SourceUnreachable):
    """The file became another one between two requests; what was read of the first is worthless."""


class ChecksumMismatch(FileError):
    """`actual` is the SHA-256 of the bytes that came, in lower-case hex."""

    reason = Reason.CHECKSUM_MISMATCH

    def __init__(self, message: str, *, actual: str = "") -> None:
        super().__init__(message)
        self.actual = actual


class SizeMismatch(FileError):
    reason = Reason.SIZE_MISMATCH


class NoSpace(FileError):
    """Somebody has to free space; Herdsman tries again by itself."""

    reason = Reason.NO_SPACE
    transient = True


class StoreFailed(FileError):
    reason = Reason.STORE_FAILED
    transient = True


class PlanInvalid(FileError):
    reason = Reason.PLAN_INVALID


class Cancelled(FileError):
    """The caller asked to stop. What was downloaded stays for the next time."""

    reason = Reason.CANCELLED
    transient = True


class GgufInvalid(FileError):
    """The bytes are not a GGUF header that we can read.

    `conclusive` is False where the file may well be one that a newer engine reads: an unknown version.
    """

    reason = Reason.NOT_GGUF

    def __init__(self, message: str, *, conclusive: bool = True) -> None:
        super().__init__(message)
        self.conclusive = conclusive


class NeedMoreBytes(Exception):
    """The header goes on past the bytes that were there; at least `needed` bytes of the file are necessary."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"at least {needed} bytes of the file are necessary")
        self.needed = needed
