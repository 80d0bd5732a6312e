"""The HTTP client for servers of models: checked addresses, time limits, typed errors.

Called by `download`, `transfer`, `repository`, `header_probe` and `automation.models`. Calls `source_policy` before
each connection. A host name is resolved once, and the connection goes to exactly that address. Each redirect is checked
like a first request. Proxy settings of the environment are ignored, because a proxy would connect without these checks.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import urllib3
import urllib3.exceptions
from urllib3.util import Timeout

from agent.server.models.source_access import Signer
from agent.sources.deadline import Deadline, Watch
from agent.sources.errors import (
    FileError,
    SourceNotFound,
    SourceRefused,
    SourceUnauthorized,
    SourceUnexpected,
    SourceUnreachable,
    SourceUntrusted,
)
from agent.sources.source_policy import SourcePolicy
from program.desired.web_address import AddressInvalid, WebAddress

MAX_REDIRECTS = 5
CONNECT_TIMEOUT_S = 10.0
_USER_AGENT = "herdsman"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NUMBER = r"[0-9]{1,18}"
_CONTENT_RANGE = re.compile(rf"bytes (?:({_NUMBER})-({_NUMBER})|\*)/({_NUMBER}|\*)")
_READ_ERRORS = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)
_MAX_ADDRESSES = 3


class RemoteFile(NamedTuple):
    """The properties of a file in the headers of a response."""

    size_bytes: int | None
    etag: str | None
    last_modified: str | None
    accepts_ranges: bool

    @property
    def validator(self) -> str | None:
        """The value for If-Range: a strong ETag, else the time of the last change, else None (RFC 9110, 13.1.5)."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified


@dataclass(eq=False)
class SourceResponse:
    """A response whose body was not read yet. Reading raises only FileErrors."""

    status: int
    headers: Mapping[str, str]
    address: WebAddress
    _response: urllib3.BaseHTTPResponse
    _deadline: Deadline | None = None

    def read1(self, size: int) -> bytes:
        """Return received bytes, at most `size`.

        Waits for at least one byte; returns empty bytes at the end of the body.
        """
        try:
            data = self._response.read1(size)
        except _READ_ERRORS as error:
            raise _translated(error, self.address, self._deadline) from None
        if not data and self._deadline is not None and self._deadline.expired:
            # In this case the deadline closed the connection before the end of the body.
            raise self._deadline.missed(self.address.shown)
        return data

    def shutdown(self) -> None:
        """Make a thread in `read1` fail or reach the end of the body. Thread-safe."""
        try:
            self._response.shutdown()
        except _READ_ERRORS:
            return

    def remote_file(self) -> RemoteFile:
        """Return the file's properties from the headers of a 200 or 206."""
        total = _total(self.headers) if self.status in (206, 416) else _length(self.headers)
        return RemoteFile(
            size_bytes=total,
            etag=self.headers.get("ETag"),
            last_modified=self.headers.get("Last-Modified"),
            accepts_ranges=self.status == 206 and total is not None,
        )

    def first_byte(self) -> int:
        """Return the position of a 206's body in the file, or -1 if the server did not send it."""
        match = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        return int(match[1]) if match and match[1] else -1


@contextmanager
def get(
    address: WebAddress,
    *,
    policy: SourcePolicy,
    read_timeout_s: float,
    first: int = 0,
    last: int | None = None,
    if_range: str | None = None,
    whole: bool = False,
    signer: Signer | None = None,
    deadline: Deadline | None = None,
) -> Iterator[SourceResponse]:
    """Request bytes `first` to `last` (inclusive; None means the end) of a file, or the `whole` file.

    `signer` adds credentials for the server of `address` only, not for redirects to other servers. `read_timeout_s`
    limits the time between two bytes, `deadline` the whole request with its body. Yields a SourceResponse with status
    200 (the whole file), 206, or 416. Raises a FileError for any other status. Closes the connection at the end, even
    if the body was not read completely.
    """
    headers = {"User-Agent": _USER_AGENT, "Accept": "*/*", "Accept-Encoding": "identity"}
    if not whole:
        headers["Range"] = f"bytes={first}-{'' if last is None else last}"
        if if_range:
            headers["If-Range"] = if_range
    target = address
    for _ in range(MAX_REDIRECTS + 1):
        proof = signer.headers(target) if signer is not None and target.origin == address.origin else {}
        with deadline.watching() if deadline is not None else contextlib.nullcontext() as watch:
            pool, response = _send(target, policy, {**headers, **proof}, read_timeout_s, deadline, watch)
            try:
                location = response.headers.get("Location")
                if response.status in _REDIRECTS and location:
                    target = _redirected(target, location)
                    continue
                _check_status(response.status, response.headers, target)
                yield SourceResponse(response.status, response.headers, target, response, deadline)
                return
            finally:
                response.close()
                pool.close()
    raise SourceUnexpected(f"{address.shown} redirects more than {MAX_REDIRECTS} times")


def stat(
    address: WebAddress, *, policy: SourcePolicy, timeout_s: float = 30.0, signer: Signer | None = None
) -> RemoteFile:
    """Request a file's size and validators. Uses a range of one byte, because signed URLs often forbid HEAD."""
    with get(
        address, policy=policy, read_timeout_s=timeout_s, last=0, signer=signer, deadline=Deadline(timeout_s)
    ) as answer:
        return answer.remote_file()


def fetch_small(
    address: WebAddress, *, policy: SourcePolicy, max_bytes: int, timeout_s: float = 30.0, signer: Signer | None = None
) -> tuple[bytes, RemoteFile]:
    """Fetch a whole file of at most `max_bytes`. Raises SourceUnexpected if it is larger."""
    deadline = Deadline(timeout_s)
    with get(address, policy=policy, read_timeout_s=timeout_s, whole=True, signer=signer, deadline=deadline) as answer:
        data = io.BytesIO()
        while chunk := answer.read1(1 << 16):
            data.write(chunk)
            if data.tell() > max_bytes:
                raise SourceUnexpected(f"{address.shown} is larger than {max_bytes} bytes")
            deadline.left_s(address.shown)
        return data.getvalue(), answer.remote_file()


def _send(
    address: WebAddress,
    policy: SourcePolicy,
    headers: Mapping[str, str],
    read_timeout_s: float,
    deadline: Deadline | None,
    watch: Watch | None,
) -> tuple[urllib3.HTTPConnectionPool, urllib3.BaseHTTPResponse]:
    """Send one GET to one of the IP addresses that the policy allows for the host of `address`."""
    left_s = deadline.left_s(address.shown) if deadline is not None else None
    failure: FileError | None = None
    for dialled in policy.addresses(address.host, address.effective_port, timeout_s=left_s)[:_MAX_ADDRESSES]:
        left_s = deadline.left_s(address.shown) if deadline is not None else read_timeout_s
        timeout = Timeout(connect=min(CONNECT_TIMEOUT_S, left_s), read=min(read_timeout_s, left_s))
        pool = _pool(address, dialled, timeout, policy)
        if watch is not None:
            pool.ConnectionCls = _watched(pool.ConnectionCls, watch)
        try:
            response = pool.urlopen(
                "GET",
                address.target,
                headers={**headers, "Host": address.authority},
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        except _READ_ERRORS as error:
            pool.close()
            failure = _translated(error, address, deadline)
            if not isinstance(failure, SourceUnreachable):
                raise failure from None
        else:
            return pool, response
    assert failure is not None
    raise failure


def _pool(address: WebAddress, dialled: str, timeout: Timeout, policy: SourcePolicy) -> urllib3.HTTPConnectionPool:
    if address.scheme == "https":
        return urllib3.HTTPSConnectionPool(
            dialled,
            address.effective_port,
            timeout=timeout,
            maxsize=1,
            ssl_context=_tls(policy.ca_file),
            server_hostname=address.host,
        )
    return urllib3.HTTPConnectionPool(dialled, address.effective_port, timeout=timeout, maxsize=1)


@functools.lru_cache(maxsize=8)
def _tls(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise SourceUntrusted(f"the certificates in {ca_file} cannot be read: {error}") from None
    return context


def _redirected(address: WebAddress, location: str) -> WebAddress:
    """Return the target of a redirect. Refuses a redirect from https to http."""
    try:
        target = address.redirected(location)
    except AddressInvalid as error:
        raise SourceRefused(f"{address.shown} redirects to an address that {error}") from None
    if address.scheme == "https" and target.scheme == "http":
        raise SourceUntrusted(f"{address.shown} redirects to {target.shown}, which is not protected by TLS")
    return target


def _check_status(status: int, headers: Mapping[str, str], address: WebAddress) -> None:
    if status in (200, 206, 416):
        return
    if status in (401, 403, 407):
        raise SourceUnauthorized(f"{address.shown} requires credentials (HTTP {status})")
    if status in (404, 410):
        raise SourceNotFound(f"{address.shown} does not exist (HTTP {status})")
    if status in (408, 425, 429) or status >= 500:
        after = headers.get("Retry-After", "")
        retry_after_s = float(after) if re.fullmatch(_NUMBER, after) else None
        raise SourceUnreachable(f"{address.shown} answered HTTP {status}", retry_after_s=retry_after_s)
    raise SourceUnexpected(f"{address.shown} answered HTTP {status}")


def _total(headers: Mapping[str, str]) -> int | None:
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    return int(match[3]) if match and match[3] != "*" else None


def _length(headers: Mapping[str, str]) -> int | None:
    length = headers.get("Content-Length", "")
    return int(length) if re.fullmatch(_NUMBER, length) else None


def _watched(kind: type[Any], watch: Watch) -> type[Any]:
    """Return a class of connections that are watched from their creation, before TLS."""

    class Watched(kind):  # type: ignore[misc] # urllib3 names its connections by protocols
        def _new_conn(self) -> socket.socket:
            made: socket.socket = super()._new_conn()
            watch.add(made)
            return made

    return Watched


def _translated(error: Exception, address: WebAddress, deadline: Deadline | None) -> FileError:
    """Convert a foreign error to a FileError. Only an invalid certificate is final; the network may recover."""
    if deadline is not None and deadline.expired:
        return deadline.missed(address.shown)
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return SourceUntrusted(f"the certificate of {address.shown} is not valid: {seen.verify_message or seen}")
        reason = getattr(seen, "reason", None)
        seen = reason if isinstance(reason, BaseException) else seen.__cause__ or seen.__context__
    return SourceUnreachable(f"{address.shown} cannot be read: {_cause(error)}")


def _cause(error: Exception) -> str:
    text = str(error)
    # urllib3 puts the connection's repr in front; the cause follows its last colon.
    return re.sub(r"^.*?(HTTPS?Connection(Pool)?\([^)]*\)|<[^>]*>): ", "", text).strip() or type(error).__name__
