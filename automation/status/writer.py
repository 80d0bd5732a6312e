"""Write the status of custom resources by server-side apply, and remember what was written until the cache shows it.

After that only the version of the write is kept, by which the loop knows that the status is its own. Each controller
has one writer for each kind. The first write of ours on a status of LLMKube's takes it over
(`status_ownership`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from automation.status.ownership import clear_status, leave_status, written_by_another
from automation.telemetry.tracing import span
from components import naming
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind


class StatusWriter:
    """The statuses of one kind. Thread-safe for different objects.

    `on_written` is told of each write with the object as it was before and the new status.
    """

    def __init__(
        self,
        client: KubeClient,
        kind: Kind,
        *,
        mark: str = "Ready",
        shared: frozenset[str] = frozenset(),
        on_written: Callable[[Json, Json], None] | None = None,
        cached: Callable[[str, str], Json | None] | None = None,
    ) -> None:
        """`mark` is a condition that every status of ours has, and the peer's have not; `shared` both have.

        `cached` gives the object of a namespace and a name as the cache has it. Each write asks it of what was written
        before, so that the statuses which the cache shows by now are let go of.
        """
        self._cached = cached
        self._mark = mark
        self._shared = shared
        self._client = client
        self._kind = kind
        self._on_written = on_written
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], tuple[str, int]] = {}
        """By namespace and name: the object's uid, and the version that the last write gave it."""
        self._unseen: dict[tuple[str, str], Json] = {}
        """Statuses that the cache may not show yet."""

    def latest(self, cr: Json) -> Json:
        """Give the custom resource with the status that we wrote last, while the cache has not seen that write."""
        metadata = cr["metadata"]
        key = (metadata["namespace"], metadata["name"])
        with self._lock:
            own = self._written.get(key)
            if own is None or _shows(cr, own):
                self._unseen.pop(key, None)
                return cr
            status = self._unseen.get(key)
        return {**cr, "status": status} if status is not None else cr

    def write(self, cr: Json, status: Json) -> bool:
        """Write the status of `cr`, an object as `latest` gave it. False when there is no such object any more.

        Raises ApiError when the API server cannot take it.
        """
        metadata = cr["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        body = {
            "apiVersion": cr["apiVersion"],
            "kind": cr["kind"],
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        try:
            with span("status write", kind=self._kind.kind, namespace=namespace, name=name):
                if written_by_another(cr.get("status"), self._mark):
                    clear_status(self._client, self._kind, cr)
                written = self._client.apply(
                    self._kind, namespace, body, field_manager=naming.FIELD_MANAGER, force=True, subresource="status"
                )
        except (NotFound, Conflict):
            # Deleted, or deleted and made again since the cache saw it: the new object has a pass of its own.
            return False
        version = int(written["metadata"]["resourceVersion"])
        with self._lock:
            self._written[(namespace, name)] = (uid, version)
            self._unseen[(namespace, name)] = written.get("status") or {}
        self._drop_seen()
        if self._on_written is not None:
            self._on_written(cr, status)
        return True

    def has_written(self, namespace: str, name: str) -> bool:
        """Whether a status of this object was written by this loop."""
        with self._lock:
            return (namespace, name) in self._written

    def leave(self, cr: Json) -> None:
        """Leave the status of `cr`, as the cache has it, to another controller; see `status_ownership.leave_status`.

        Raises ApiError: Conflict while the cache has not seen our last write.
        """
        with suppress(NotFound):
            leave_status(self._client, self._kind, cr, shared=self._shared)
        self.drop_object(cr["metadata"]["namespace"], cr["metadata"]["name"])

    def drop_object(self, namespace: str, name: str) -> None:
        """Let go of an object that is gone."""
        with self._lock:
            self._written.pop((namespace, name), None)
            self._unseen.pop((namespace, name), None)

    def _drop_seen(self) -> None:
        """Let go of the statuses that the cache shows by now. Few are left each time, since the cache is soon there."""
        if self._cached is None:
            return
        with self._lock:
            unseen = list(self._unseen)
        for key in unseen:
            cr = self._cached(*key)
            with self._lock:
                own = self._written.get(key)
                if own is None or cr is None or _shows(cr, own):
                    self._unseen.pop(key, None)


def _shows(cr: Json, written: tuple[str, int]) -> bool:
    """Tell whether an object of the cache is at least as new as a write, or another object of that name."""
    metadata = cr["metadata"]
    return bool(metadata["uid"] != written[0] or int(metadata["resourceVersion"]) >= written[1])
