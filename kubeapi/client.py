"""A thread-safe client of one Kubernetes API server that speaks raw JSON over one connection pool.

Called by the provider, the loop, the host agent and the command line. Calls `kubeapi.config` for access,
`kubeapi.discovery` for paths, `kubeapi.watching` for streams and the API server by urllib3. Objects go in and come
out as plain dicts with the API's own field names; failures come out as the types of `kubeapi.errors`.

Retries are few, because the caller knows better: a read is tried again once when its connection broke, and a 429 is
obeyed for as long as `MAX_THROTTLED_S`. Everything else is raised at once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3
import urllib3.exceptions

from kubeapi.config import Access, default_access, in_cluster_access, kubeconfig_access
from kubeapi.connections import connection_pool
from kubeapi.discovery import ACCEPT, Discovery
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
from kubeapi.kinds import Kind
from kubeapi.watching import Watch

Json = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""To be answered with an object's metadata alone."""

CONNECT_TIMEOUT_S = 5.0
MAX_THROTTLED_S = 30.0
"""The longest that one call waits in all because of 429 answers; a shorter timeout_s of the call holds too."""
DEFAULT_RETRY_AFTER_S = 1.0
PATH_NOT_FOUND = "404 page not found"
"""The plain answer to a path that serves no kind, other than that to a name that no object has."""
RELOAD_INTERVAL_S = 10.0
"""Credentials are read again after a 401, but not more often than this."""


class KubeClient:
    """One API server, one user. Every method may raise any ApiError; namespace is None for cluster-scoped kinds."""

    def __init__(
        self, access: Access, *, sleep: Callable[[float], None] = time.sleep, give_up_s: float | None = None
    ) -> None:
        """`give_up_s`: what the server's machine does not acknowledge for so long is never delivered (Linux)."""
        self._access = access
        self._sleep = sleep
        self._pool = connection_pool(access, give_up_s=give_up_s)
        self._server = access.server
        self._discovery = Discovery(lambda path: self.request("GET", path))
        self._lock = threading.Lock()
        self._requests_total = 0
        self._reloaded_at = float("-inf")
        self.on_request: Callable[[str, int], None] | None = None
        """Called after each request with its verb and status (0: no answer). For metrics; must not raise."""
        self.may_write: Callable[[], bool] | None = None
        """Asked right before each request that is no read is sent, each try of it; False makes it a NotLeading."""

    @classmethod
    def from_kubeconfig(cls, path: str | None = None, context: str | None = None) -> KubeClient:
        """Connect as a kubeconfig says. Raises ConfigInvalid; no request is made yet."""
        return cls(kubeconfig_access(path, context))

    @classmethod
    def in_cluster(cls) -> KubeClient:
        """Connect with the service account of the pod that we run in. Raises ConfigInvalid outside a pod."""
        return cls(in_cluster_access())

    @classmethod
    def default(cls, path: str | None = None, *, give_up_s: float | None = None) -> KubeClient:
        """Connect by `path`, $KUBECONFIG, the pod's service account or ~/.kube/config, the first that is there."""
        return cls(default_access(path), give_up_s=give_up_s)

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._server

    @property
    def requests_total(self) -> int:
        """How many HTTP requests were sent, retries and watches included."""
        return self._requests_total

    def close(self) -> None:
        """Close the idle connections. Requests in flight finish; stop informers first."""
        self._pool.clear()

    # Objects

    def mapping(self, api_version: str, kind: str) -> Kind:
        """Find the Kind that serves an apiVersion and kind. Raises KindNotServed after asking the server afresh."""
        return self._discovery.mapping(api_version, kind)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json:
        """Read one object. Raises NotFound."""
        return self.request("GET", kind.path(namespace, name))

    def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
        continue_token: str | None = None,
        resource_version: str | None = None,
    ) -> Json:
        """Read a collection, of all namespaces when none is given.

        Returns the list object; each item carries its apiVersion and kind, which the server leaves out. With `limit`
        the rest is read by passing `metadata.continue` as `continue_token`, which may raise Gone.
        """
        query = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": str(limit) if limit else None,
            "continue": continue_token,
            "resourceVersion": resource_version,
        }
        answer = self.request("GET", kind.path(namespace), query=query)
        items = answer.get("items") or []
        for item in items:
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.kind)
        answer["items"] = items
        return answer

    def create(
        self, kind: Kind, namespace: str | None, obj: Json, *, dry_run: bool = False, field_manager: str | None = None
    ) -> Json:
        """Create an object and return it as stored. Raises AlreadyExists, Invalid."""
        query = {"dryRun": "All" if dry_run else None, "fieldManager": field_manager}
        return self.request("POST", kind.path(namespace), query=query, body=obj)

    def replace(self, kind: Kind, namespace: str | None, obj: Json, *, subresource: str | None = None) -> Json:
        """Replace an object; with a resourceVersion in it, Conflict is raised if somebody wrote meanwhile."""
        return self.request("PUT", kind.path(namespace, obj["metadata"]["name"], subresource), body=obj)

    def apply(
        self,
        kind: Kind,
        namespace: str | None,
        obj: Json,
        *,
        field_manager: str,
        force: bool = False,
        dry_run: bool = False,
        subresource: str | None = None,
    ) -> Json:
        """Server-side apply: make the fields of `obj` ours and remove those that we applied before and not now.

        Returns the object as stored (or, in a dry run, as it would be). Raises Conflict, whose causes name the other
        managers and the fields, unless forced; Invalid when the object breaks a rule or changes an immutable field.
        """
        query = {
            "fieldManager": field_manager,
            "force": "true" if force else None,
            "dryRun": "All" if dry_run else None,
        }
        path = kind.path(namespace, obj["metadata"]["name"], subresource)
        return self.request("PATCH", path, query=query, body=obj, content_type=APPLY_PATCH)

    def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> Json:
        """Patch one object and return it as stored. Raises NotFound, Conflict, Invalid."""
        path = kind.path(namespace, name, subresource)
        return self.request("PATCH", path, query={"fieldManager": field_manager}, body=body, content_type=content_type)

    def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        dry_run: bool = False,
    ) -> None:
        """Delete one object.

        Raises NotFound; Conflict when `uid` is given and the object is another one by now, or when `resource_version`
        is given and somebody wrote to it meanwhile.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if any(preconditions.values()):
            options["preconditions"] = {name: value for name, value in preconditions.items() if value}
        if dry_run:
            options["dryRun"] = ["All"]
        self.request("DELETE", kind.path(namespace, name), body=options)

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str | None = None,
        timeout_s: float = 270.0,
        inactivity_s: float | None = None,
    ) -> Watch:
        """Open a stream of (type, object) since `resource_version`; types are ADDED, MODIFIED, DELETED and BOOKMARK.

        The stream ends by itself after `timeout_s`. Iterating raises Gone when the version is too old, Unreachable
        when the connection breaks or nothing came for `inactivity_s`. `Watch.stop()` ends it from any thread.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(timeout_s))),
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "resourceVersion": resource_version,
        }
        silence_s = inactivity_s if inactivity_s is not None else timeout_s + 15.0
        path = kind.path(namespace)
        response = self._send("GET", path, query, None, JSON, silence_s, stream=True, verb="WATCH")
        if response.status == 401 and self._reload_credentials():
            response.close()
            response = self._send("GET", path, query, None, JSON, silence_s, stream=True, verb="WATCH")
        if response.status >= 400:
            raise _error(response)
        return Watch(response, kind)

    # Requests

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
        """Send one request and return the JSON object that it is answered with. Query values of None are left out.

        With `accept` METADATA the answer holds no more of an object than its metadata, whatever was written.
        """
        data = self._request(method, path, query, body, content_type, timeout_s, accept)
        try:
            answer = json.loads(data) if data else {}
        except ValueError as error:
            raise Unreachable(f"{method} {path} was answered with something that is no JSON") from error
        if not isinstance(answer, dict):
            raise Unreachable(f"{method} {path} was answered with JSON that is no object")
        return answer

    def text(self, path: str, *, query: Mapping[str, str | None] | None = None, timeout_s: float = 30.0) -> str:
        """Read something that is no JSON: `/readyz`, the log of a pod."""
        return self._request("GET", path, query, None, JSON, timeout_s).decode("utf-8", "replace")

    def stream(
        self, path: str, *, query: Mapping[str, str | None] | None = None, silence_s: float
    ) -> Generator[bytes, None, None]:
        """Read an answer that has no end, piece by piece as it comes: the log of a pod that is followed.

        Ends when the server ends it. Raises ApiError, and Unreachable when nothing came for `silence_s`.
        """
        response = self._send("GET", path, query, None, JSON, silence_s, stream=True)
        try:
            if response.status >= 400:
                raise _error(response)
            while piece := response.read1(65536):
                yield piece
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"the stream of {path} broke off: {error}") from error
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
        """Send one request, never a second time, and return whatever it is answered with, refusals too.

        For what the API server passes on from others (`kubeapi.pods`): their errors are no ApiErrors, their answers
        may be of any size, and a redirect is not followed. Raises Unreachable, which tells a time-out apart.
        """
        payload = None if body is None else json.dumps(body, separators=(",", ":")).encode()
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
        payload = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        throttled_s = 0.0
        resets = refusals = 0
        while True:
            try:
                response = self._send(method, path, query, payload, content_type, timeout_s, accept=accept)
                if response.status < 400:
                    return response.data
                raise _error(response)
            except Unreachable as error:
                # A kept-alive connection may die just as it is used. Only a read is sure to be harmless twice.
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
                if refusals or not self._reload_credentials():
                    raise
                refusals += 1
            except NotFound as error:
                if error.message == PATH_NOT_FOUND:
                    self._discovery.clear()
                raise

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
        url = self._server + path
        pairs = {key: value for key, value in (query or {}).items() if value is not None}
        if pairs:
            url += "?" + urlencode(pairs)
        headers = {"Accept": ACCEPT.get(path, accept), "User-Agent": "herdsman"}
        if payload is not None:
            headers["Content-Type"] = content_type
        try:
            authorization = self._access.authorization()
        except ConfigInvalid as error:
            raise Unauthorized(401, "Unauthorized", str(error)) from error
        if authorization:
            headers["Authorization"] = authorization
        if method != "GET" and self.may_write is not None and not self.may_write():
            raise NotLeading(f"{method} {path} was not sent: the lease may be another's by now")
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
            raise Unreachable(f"{method} {self._server}{path}: {error}", reset=reset, timed_out=late) from error
        finally:
            if self.on_request is not None:
                self.on_request(verb or method, status)

    def _reload_credentials(self) -> bool:
        with self._lock:
            if time.monotonic() - self._reloaded_at < RELOAD_INTERVAL_S:
                return False
            self._reloaded_at = time.monotonic()
        try:
            self._access.reload()
        except ConfigInvalid:
            return False  # the 401 is the better message
        return True


def _error(response: urllib3.BaseHTTPResponse) -> ApiError:
    try:
        return error_of_response(response.status, response.headers, response.data)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        return Unreachable(f"the answer broke off: {error}", reset=True)
