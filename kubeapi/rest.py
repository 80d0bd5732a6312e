"""Requests to one API server by path, as raw JSON over one connection pool, with credentials and retries.

The base of `kubeapi.client`, which adds kinds and objects. Calls `kubeapi.config` for access, `kubeapi.discovery` for
the paths of kinds, and the API server by urllib3. Failures are raised as the types of `kubeapi.errors`.

Retries are few, because the caller can decide better. A read is repeated once if its connection broke. After a 429 the
request waits, for at most `MAX_THROTTLED_S` in all. All other errors are raised at once.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3
import urllib3.exceptions

from kubeapi.config import Access, connection_pool
from kubeapi.discovery import ACCEPT, Discovery
from kubeapi.encoding import encoded
from kubeapi.errors import (
    ApiError,
    ConfigInvalid,
    NotFound,
    NotLeading,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_of_response,
)
from kubeapi.exchange import Exchange, read_bounded
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header for an object's metadata only."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept header for the metadata of all objects of a collection."""

CONNECT_TIMEOUT_S = 5.0
MAX_THROTTLED_S = 30.0
"""Longest total wait of one call after 429 answers, in seconds; a shorter timeout_s of the call applies too."""
DEFAULT_RETRY_AFTER_S = 1.0
PATH_NOT_FOUND = "404 page not found"
"""The plain text answer for a path that serves no kind. The answer for a missing object is a `Status`."""
RELOAD_INTERVAL_S = 10.0
"""Least time in seconds between two reads of the credentials after a 401."""
CERTIFICATES_CHECK_S = 60.0
"""Seconds between checks of the certificate files; new connections use a renewed certificate."""


class RestClient:
    """One API server, one user. Every method that sends a request may raise any ApiError."""

    def __init__(
        self, access: Access, *, sleep: Callable[[float], None] = time.sleep, give_up_s: float | None = None
    ) -> None:
        """`give_up_s`: data that the server does not acknowledge for so long is never delivered (Linux)."""
        self._access = access
        self._sleep = sleep
        self._give_up_s = give_up_s
        self._pool = connection_pool(access, give_up_s=give_up_s)
        self._tls_identity = access.tls_identity()
        self._tls_checked_at = time.monotonic()
        self._reloading = threading.Lock()
        self._reloads = 0
        """The number of times that the credentials were read again."""
        self._server = access.server
        self._discovery = Discovery(lambda path: self.request("GET", path))
        self._lock = threading.Lock()
        self._requests_total = 0
        self._reloaded_at = float("-inf")
        self.on_request: Callable[[str, int], None] | None = None
        """Called after each request with its verb and status (0: no answer). For metrics; must not raise."""
        self.may_write: Callable[[], bool] | None = None
        """Called before each attempt of a request that is no read; if it returns False, the request raises
        NotLeading."""

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._server

    @property
    def access(self) -> Access:
        """The server, trust and credentials; for connections that this client does not make (`port_forward`)."""
        return self._access

    @property
    def requests_total(self) -> int:
        """The number of HTTP requests, retries and watches included."""
        return self._requests_total

    def close(self) -> None:
        """Close the idle connections. Requests in flight finish; stop informers first."""
        self._pool.clear()

    def mapping(self, api_version: str, kind: str) -> Kind:
        """Return the Kind for an apiVersion and kind. Raises KindNotServed after a new request for it."""
        return self._discovery.mapping(api_version, kind)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Json:
        """Send one request and return the JSON object of the answer. Query values of None are left out.

        With `accept` METADATA the answer contains an object's metadata only, also after a write.
        """
        data = self._request(method, path, query, body, content_type, timeout_s, accept)
        try:
            answer = json.loads(data) if data else {}
        except ValueError as error:
            raise Unreachable(f"{method} {path} was answered with data that is not JSON") from error
        if not isinstance(answer, dict):
            raise Unreachable(f"{method} {path} was answered with JSON that is not an object")
        return answer

    def text(self, path: str, *, query: Mapping[str, str | None] | None = None, timeout_s: float = 30.0) -> str:
        """Return an answer that is no JSON: `/readyz`, the log of a pod."""
        return self._request("GET", path, query, None, JSON, timeout_s).decode("utf-8", "replace")

    def stream(
        self, path: str, *, query: Mapping[str, str | None] | None = None, silence_s: float
    ) -> Generator[bytes, None, None]:
        """Yield an endless answer in pieces as they arrive: the log of a pod that is followed.

        Ends when the server ends it. Raises ApiError, and Unreachable if nothing arrives for `silence_s`.
        """
        response = self._open(path, query, silence_s)
        try:
            while piece := response.read1(65536):
                yield piece
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"the stream of {path} ended early: {error}") from error
        finally:
            response.close()

    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
        timeout_s: float,
        max_bytes: int,
    ) -> Exchange:
        """Send one request without retries and return the answer, also a refusal.

        For answers that the API server forwards from pods (`kubeapi.pods`): their errors are no ApiErrors, the answers
        may have any size, and a redirect is not followed. Raises Unreachable, with `timed_out` for a time-out.
        """
        payload = None if body is None else encoded(body)
        deadline = time.monotonic() + timeout_s
        response = self._send(method, path, query, payload, JSON, timeout_s, stream=True)
        return Exchange(response.status, dict(response.headers), *read_bounded(response, max_bytes, deadline))

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None,
        body: Any,
        content_type: str,
        timeout_s: float,
        accept: str = JSON,
    ) -> bytes:
        payload = None if body is None else encoded(body)
        throttled_s = 0.0
        resets = refusals = 0
        while True:
            reloads = self._reloads
            try:
                response = self._send(method, path, query, payload, content_type, timeout_s, accept=accept)
                if response.status < 400:
                    return response.data
                raise _error(response)
            except Unreachable as error:
                # A kept-alive connection may break at its next use. Only a read is certainly harmless if sent twice.
                if method != "GET" or not error.reset or resets:
                    raise
                resets += 1
            except TooManyRequests as error:
                wait_s = error.retry_after_s if error.retry_after_s is not None else DEFAULT_RETRY_AFTER_S
                if throttled_s + wait_s > min(MAX_THROTTLED_S, timeout_s):
                    raise
                throttled_s += max(wait_s, 0.05)
                self._sleep(wait_s)
            except Unauthorized:
                if refusals or not self._reload_credentials(reloads):
                    raise
                refusals += 1
            except NotFound as error:
                if error.message == PATH_NOT_FOUND:
                    self._discovery.clear()
                raise

    def _open(
        self, path: str, query: Mapping[str, str | None] | None, silence_s: float, *, verb: str = ""
    ) -> urllib3.BaseHTTPResponse:
        """Start to read an endless answer; the caller closes it. Raises ApiError."""
        reloads = self._reloads
        response = self._send("GET", path, query, None, JSON, silence_s, stream=True, verb=verb)
        if response.status == 401 and self._reload_credentials(reloads):
            response.close()
            response = self._send("GET", path, query, None, JSON, silence_s, stream=True, verb=verb)
        if response.status >= 400:
            raise _error(response)
        return response

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None,
        payload: bytes | None,
        content_type: str,
        timeout_s: float,
        *,
        accept: str = JSON,
        stream: bool = False,
        verb: str = "",
    ) -> urllib3.BaseHTTPResponse:
        self._check_certificates()
        url = self._server + path
        pairs = {key: value for key, value in (query or {}).items() if value is not None}
        if pairs:
            url += "?" + urlencode(pairs)
        headers = urllib3.HTTPHeaderDict({"Accept": ACCEPT.get(path, accept), "User-Agent": "herdsman"})
        if payload is not None:
            headers["Content-Type"] = content_type
        try:
            authorization = self._access.authorization()
        except ConfigInvalid as error:
            raise Unauthorized(401, "Unauthorized", str(error)) from error
        if authorization:
            headers["Authorization"] = authorization
        for name, value in self._access.impersonation:
            headers.add(name, value)
        if method != "GET" and self.may_write is not None and not self.may_write():
            raise NotLeading(f"{method} {path} was not sent, because another process may hold the Lease now")
        with self._lock:
            self._requests_total += 1
        status = 0
        try:
            response = self._pool.request(
                method,
                url,
                body=payload,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, timeout_s), read=timeout_s),
                retries=False,
                redirect=False,
                preload_content=not stream,
            )
            status = response.status
            return response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reset = isinstance(error, (urllib3.exceptions.ProtocolError, ConnectionResetError, BrokenPipeError))
            late = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            raise Unreachable(
                f"{method} {self._server}{path}: {error}", reset=reset, timed_out=late, misdirected=_misdirected(error)
            ) from error
        finally:
            if self.on_request is not None:
                self.on_request(verb or method, status)

    def _reload_credentials(self, refused: int) -> bool:
        """Read the credentials again after a 401. True if they are newer than those of reload number `refused`.

        If several requests are refused together, one of them reads, and the others use its result.
        """
        with self._reloading:
            if self._reloads != refused:
                return True
            if time.monotonic() - self._reloaded_at < RELOAD_INTERVAL_S:
                return False
            self._reloaded_at = time.monotonic()
            try:
                self._access.reload()
            except ConfigInvalid:
                return False  # the 401 is the better message
            self._reloads += 1
            self._renew_connections()
        return True

    def _check_certificates(self) -> None:
        if time.monotonic() - self._tls_checked_at > CERTIFICATES_CHECK_S and self._reloading.acquire(blocking=False):
            try:
                self._renew_connections()
            finally:
                self._reloading.release()

    def _renew_connections(self) -> None:
        """Use new connections if the certificates have changed; open connections keep the old identity."""
        self._tls_checked_at = time.monotonic()
        try:
            identity = self._access.tls_identity()
            if identity == self._tls_identity:
                return
            pool = connection_pool(self._access, give_up_s=self._give_up_s)
        except ConfigInvalid:
            # A certificate and its key are renewed one after the other; the next check finds both. If an exec plugin
            # fails, the request itself reports it.
            return
        self._tls_identity, old, self._pool = identity, self._pool, pool
        old.clear()


def _misdirected(error: Exception) -> bool:
    """Return whether the URL or the certificates are wrong. A handshake that the server breaks off proves neither."""
    if isinstance(error, urllib3.exceptions.SSLError):
        return not any(isinstance(each, ssl.SSLEOFError | ssl.SSLZeroReturnError) for each in error.args)
    return isinstance(error, urllib3.exceptions.NameResolutionError | urllib3.exceptions.LocationValueError)


def _error(response: urllib3.BaseHTTPResponse) -> ApiError:
    try:
        return error_of_response(response.status, response.headers, response.data)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        return Unreachable(f"the answer ended early: {error}", reset=True)
