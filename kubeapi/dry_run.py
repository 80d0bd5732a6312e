"""A client whose writes the API server checks and does not store, for `--dry-run` of commands.

The server checks permissions, admission and validation of each write as it would without the dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import urllib3

from kubeapi.client import KubeClient
from kubeapi.config import Access
from kubeapi.errors import AlreadyExists
from kubeapi.json_types import Json
from kubeapi.kinds import NAMESPACES, Kind

_READS = frozenset({"GET", "HEAD"})
_REVIEWS = "/apis/authorization.k8s.io/"
"""The API of access reviews: a POST there stores nothing, and takes no dry run."""


MAX_READS = 3
"""How often an object is read for one dry run while other clients write it."""


def is_same_version(read: Json, answer: Json) -> bool:
    """Return whether a dry run was made over the version of the object that was read before it.

    The answer of a dry run has the resourceVersion of the stored object. If it differs, another client wrote the object
    after it was read, and a comparison would show that client's change as the dry run's.
    """
    return bool(read["metadata"].get("resourceVersion") == answer["metadata"].get("resourceVersion"))


class DryRunClient(KubeClient):
    """A KubeClient that stores nothing. `changes` names each write that would change an object, in their order.

    A later write may depend on an earlier one, which the server did not store. Objects that were deleted before can be
    created again, and `create` records an object in a namespace that would be created without a check.
    """

    def __init__(self, access: Access, *, give_up_s: float | None = None) -> None:
        super().__init__(access, give_up_s=give_up_s)
        self.changes: list[str] = []

    def _send(
        self, method: str, path: str, query: Mapping[str, str | None] | None, *rest: Any, **options: Any
    ) -> urllib3.BaseHTTPResponse:
        if method not in _READS and not path.startswith(_REVIEWS):
            query = {**(query or {}), "dryRun": "All"}
        return super()._send(method, path, query, *rest, **options)

    def create(self, kind: Kind, namespace: str | None, obj: Json, **options: Any) -> Json:
        """Record that an object would be created. Raises AlreadyExists, Invalid."""
        name = obj["metadata"]["name"]
        try:
            created = (
                obj
                if f"create {NAMESPACES.kind} {namespace}" in self.changes
                else super().create(kind, namespace, obj, **options)
            )
        except AlreadyExists:
            if _text("delete", kind, namespace, name) not in self.changes:
                raise
            created = obj
        self._record("create", kind, namespace, name)
        return created

    def apply(self, kind: Kind, namespace: str | None, obj: Json, **options: Any) -> Json:
        """Record what a server-side apply would do. Raises as `KubeClient.apply`."""
        send = partial(super().apply, kind, namespace, obj, **options)
        return self._try(kind, namespace, obj["metadata"]["name"], send)

    def patch(self, kind: Kind, namespace: str | None, name: str, body: Any, **options: Any) -> Json:
        """Record what a patch would do. Raises as `KubeClient.patch`."""
        return self._try(kind, namespace, name, partial(super().patch, kind, namespace, name, body, **options))

    def delete(self, kind: Kind, namespace: str | None, name: str, **options: Any) -> None:
        """Record that an object would be deleted. Raises as `KubeClient.delete`."""
        # The server ignores the query of a deletion that has a body.
        super().delete(kind, namespace, name, **{**options, "dry_run": True})
        self._record("delete", kind, namespace, name)

    def _try(self, kind: Kind, namespace: str | None, name: str, send: Callable[[], Json]) -> Json:
        """Send a dry run, record whether it would create or change the object, and return the object after it."""
        for _ in range(MAX_READS):
            before = self.find(kind, namespace, name)
            after = send()
            if before is None or is_same_version(before, after):
                break
        if before is None:
            self._record("create", kind, namespace, name)
        elif _content(before) != _content(after):
            self._record("change", kind, namespace, name)
        return after

    def _record(self, verb: str, kind: Kind, namespace: str | None, name: str) -> None:
        text = _text(verb, kind, namespace, name)
        if text not in self.changes:
            self.changes.append(text)


def _text(verb: str, kind: Kind, namespace: str | None, name: str) -> str:
    return f"{verb} {kind.kind} {namespace}/{name}" if namespace else f"{verb} {kind.kind} {name}"


def _content(obj: Json) -> Json:
    metadata = obj.get("metadata") or {}
    kept = {name: metadata.get(name) or {} for name in ("labels", "annotations", "ownerReferences", "finalizers")}
    return {**{key: value for key, value in obj.items() if key not in ("metadata", "status")}, "metadata": kept}
