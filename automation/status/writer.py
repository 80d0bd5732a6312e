"""Writes the status of custom resources by server-side apply, and keeps each status until the cache has it.

After that it keeps only the version of the write, from which the loop knows that it wrote the status. Each controller
has one writer for each kind. The first write over a status of another controller takes it over (`ownership`).
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

    `on_written` is called after each write, with the object as it was before and the new status.
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
        """`mark` is a condition that every status of Herdsman has and no status of the upstream controller.

        `shared` both write.

        `cached` returns an object from the cache by namespace and name. Each write uses it to drop earlier statuses
        that the cache has by now.
        """
        self._cached = cached
        self._mark = mark
        self._shared = shared
        self._client = client
        self._kind = kind
        self._on_written = on_written
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], tuple[str, int]] = {}
        """By namespace and name: the object's uid, and its version after the last write."""
        self._unseen: dict[tuple[str, str], Json] = {}
        """Statuses that the cache may not have yet."""

    def latest(self, cr: Json) -> Json:
        """Return the custom resource, with the status of the last write if the cache does not have that write yet."""
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
        """Write the status of `cr`, an object that `latest` returned. False when there is no such object any more.

        Raises ApiError when the API server refuses the write or does not answer.
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
            # The object was deleted, or deleted and created again. A new object is reconciled separately.
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
        """Return whether this loop wrote a status of this object."""
        with self._lock:
            return (namespace, name) in self._written

    def leave(self, cr: Json) -> None:
        """Leave the status of `cr`, as the cache has it, to another controller; see `ownership.leave_status`.

        Raises ApiError, which is Conflict while the cache does not have the last write yet.
        """
        with suppress(NotFound):
            leave_status(self._client, self._kind, cr, shared=self._shared)
        self.drop_object(cr["metadata"]["namespace"], cr["metadata"]["name"])

    def drop_object(self, namespace: str, name: str) -> None:
        """Drop the records of a deleted object."""
        with self._lock:
            self._written.pop((namespace, name), None)
            self._unseen.pop((namespace, name), None)

    def _drop_seen(self) -> None:
        """Drop the statuses that the cache has by now. Few stay, because the cache is soon up to date."""
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
    """Return whether an object of the cache is at least as new as a write, or another object of that name."""
    metadata = cr["metadata"]
    return bool(metadata["uid"] != written[0] or int(metadata["resourceVersion"]) >= written[1])
