"""A thread-safe client of one Kubernetes API server: objects by kind, namespace and name.

Called by the provider, the loop, the host agent and the command line. Objects are plain dicts with the API's own field
names. `kubeapi.rest` sends the requests and retries them. A `Watch` is read event by event, and another thread can end
it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import urllib3
import urllib3.exceptions

from kubeapi.config import default_access, kubeconfig_access
from kubeapi.errors import NotFound, Unreachable, error_of_status
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.rest import RestClient


class Watch(Iterator[tuple[str, dict[str, Any]]]):
    """An iterator of (type, object) that ends when the server ends the stream or `stop()` is called."""

    def __init__(self, response: urllib3.BaseHTTPResponse, kind: Kind) -> None:
        self._response = response
        self._kind = kind
        self._stopped = False
        self._events = self._read()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> tuple[str, dict[str, Any]]:
        return next(self._events)

    def stop(self) -> None:
        """End the stream now, also for a thread that waits for the next event. Idempotent."""
        self._stopped = True
        # `shutdown` raises if the response was read to its end; the stream is then over anyway.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()

    def _read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            for line in self._lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise error_of_status(event["object"])
                yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # ValueError: an incomplete line, or a file that was closed during the read.
            if not self._stopped:
                silent = isinstance(error, urllib3.exceptions.ReadTimeoutError)
                message = f"the watch of {self._kind.plural} ended early: {error}"
                raise Unreachable(message, reset=True, timed_out=silent) from error
        finally:
            # A stream that was not read to its end must not return to the pool.
            self._response.close()
            self._response.release_conn()

    def _lines(self) -> Iterator[bytes]:
        pending: list[bytes] = []
        for chunk in self._response.stream():
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                pending.append(part)
                line = b"".join(pending)
                pending.clear()
                if line:
                    yield line
            if rest:
                pending.append(rest)


MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class KubeClient(RestClient):
    """The calls for objects. Each may raise any ApiError; namespace is None for cluster-scoped kinds."""

    @classmethod
    def from_kubeconfig(cls, path: str | None = None, context: str | None = None) -> KubeClient:
        """Return a client for a kubeconfig. Raises ConfigInvalid; no request is made yet."""
        return cls(kubeconfig_access(path, context))

    @classmethod
    def default(
        cls, path: str | None = None, *, context: str | None = None, give_up_s: float | None = None
    ) -> KubeClient:
        """Return a client for the first that exists: `path`, $KUBECONFIG, the pod's service account, ~/.kube/config.

        With a context it is always that of a kubeconfig. Raises ConfigInvalid.
        """
        return cls(default_access(path, context=context), give_up_s=give_up_s)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json:
        """Read one object. Raises NotFound."""
        return self.request("GET", kind.path(namespace, name))

    def find(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Read one object; None if it does not exist, or if the API server does not serve its kind."""
        try:
            return self.get(kind, namespace, name)
        except NotFound:
            return None

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
        """Read a collection; without a namespace, that of all namespaces.

        Returns the list object. Each item gets its apiVersion and kind, which the server leaves out. With `limit`, pass
        `metadata.continue` as `continue_token` to read the rest; that call may raise Gone.
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
        self,
        kind: Kind,
        namespace: str | None,
        obj: Json,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
        strict: bool = False,
    ) -> Json:
        """Create an object and return it as stored. With `strict`, unknown fields are refused and not dropped.

        Raises AlreadyExists, Invalid; BadRequest for unknown fields.
        """
        query = {
            "dryRun": "All" if dry_run else None,
            "fieldManager": field_manager,
            "fieldValidation": "Strict" if strict else None,
        }
        return self.request("POST", kind.path(namespace), query=query, body=obj)

    def replace(self, kind: Kind, namespace: str | None, obj: Json, *, subresource: str | None = None) -> Json:
        """Replace an object.

        If `obj` has a resourceVersion, a write of another client in the meantime raises Conflict.
        """
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
        """Server-side apply: own the fields of `obj`, and remove fields that the manager applied before but not now.

        Returns the object as stored, or in a dry run as it would be. Raises Conflict unless forced; its causes name the
        other managers and the fields. Raises Invalid if the object breaks a rule or changes an immutable field.
        """
        query = {
            "fieldManager": field_manager,
            # An apply refuses unknown fields by the schema in any case. By default the server parses the body a second
            # time, for warnings that nothing here reads.
            "fieldValidation": "Ignore",
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
        dry_run: bool = False,
    ) -> Json:
        """Patch one object; return it as stored, or in a dry run as it would be. Raises NotFound, Conflict, Invalid."""
        path = kind.path(namespace, name, subresource)
        query = {"fieldManager": field_manager, "dryRun": "All" if dry_run else None}
        return self.request("PATCH", path, query=query, body=body, content_type=content_type)

    def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        grace_period_s: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete one object. A pod has `grace_period_s` to end; None means the period of its spec.

        Raises NotFound. Raises Conflict if the object has another uid than `uid`, or if it changed since
        `resource_version`.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
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

        The server ends the stream after `timeout_s`. Iteration raises Gone if the version is too old, and Unreachable
        if the connection breaks or nothing arrives for `inactivity_s`. `Watch.stop()` ends the stream from any thread.
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
        return Watch(self._open(kind.path(namespace), query, silence_s, verb="WATCH"), kind)
