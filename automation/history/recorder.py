"""Writes a revision for each version of a service that the engine has applied. Called by the controller with outcomes.

A thread writes the revisions, so that no pass waits. A revision that cannot be written is tried again at the service's
next outcome. A new service and each change cost one request; the first change after a restart costs a list as well.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from automation.cache.owners import selector_of
from automation.engine.outcomes import describe_changes
from automation.engine.port import ServiceOutcome
from automation.history import revision
from automation.history.revision import Outcome
from automation.history.upgrade import prune, renew
from components.rendered import fingerprint_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, KubeError, NotFound
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.dialects.registry import key_of

log = structlog.get_logger(__name__)

KEPT = 10
"""Revisions of a service; as Deployments keep ReplicaSets."""
LONGEST_DATA = 256 * 1024
"""Bytes of the largest version that is recorded."""
RENEW_AGAIN_S = 60.0
"""Seconds after a failure until the renewal of old revisions continues."""
MOST = 10_000
"""Versions that may wait to be written."""


@dataclass(frozen=True)
class _Entry:
    key: ServiceKey
    cr: Json
    models: tuple[Json, ...]
    outcome: Outcome


@dataclass(frozen=True)
class _Renewal:
    namespaces: tuple[str, ...]
    has: Callable[[str], bool]


@dataclass(frozen=True)
class _Last:
    """The newest revision of a service."""

    owner: str
    number: int
    digest: str
    failed: bool


class RevisionRecorder:
    """Remembers the newest revision of each service that changed while this loop runs. Thread-safe."""

    def __init__(
        self, client: KubeClient, *, kept: int = KEPT, on_dropped: Callable[[], None] = lambda: None, most: int = MOST
    ) -> None:
        """`kept` revisions of each service stay; 0 writes none.

        `on_dropped` is called for each version that is not recorded because `most` others wait to be written.
        """
        self._client = client
        self._kept = kept
        self._on_dropped = on_dropped
        self._dropping = False
        self._pruned: set[ServiceKey] = set()
        """Services of which this loop has removed the revisions that an earlier, higher limit left."""
        self._queue: queue.Queue[_Entry | _Renewal | None] = queue.Queue(most)
        self._last: dict[ServiceKey, _Last] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="revisions", daemon=True)
        self._thread.start()

    def renew(self, *, namespaces: tuple[str, ...] = (), has: Callable[[str], bool] = lambda _: True) -> None:
        """Delete the revisions beyond the limit and rewrite those in an older form, in the thread; see `upgrade`.

        Only revisions in `namespaces` (none: in all) whose namespace `has` accepts are touched. Returns at once.
        """
        with suppress(queue.Full):
            self._queue.put_nowait(_Renewal(namespaces, has))

    def record(
        self, key: ServiceKey, cr: Json, models: Iterable[Json], outcome: ServiceOutcome, *, duration: timedelta
    ) -> None:
        """Record the outcome of a version; `duration` is the time since its submission. Returns at once.

        Does nothing for a version that is recorded already, or for a run that changed nothing.
        """
        changes = describe_changes(outcome.changes)
        if self._kept and (changes or outcome.error is not None):
            result = Outcome(changes, outcome.error.message if outcome.error is not None else "", duration)
            self._put(_Entry(key, cr, tuple(models), result))

    def record_resource(self, cr: Json, *, changes: str, error: str) -> None:
        """Record a version of a ModelRouter, ModelPool or LoRAAdapter, and why it is not used; empty if it is.

        Returns at once. Does nothing for a version that is recorded already.
        """
        if self._kept:
            self._put(_Entry(key_of(cr), cr, (), Outcome(changes, error, timedelta(0))))

    def _put(self, entry: _Entry) -> None:
        try:
            self._queue.put_nowait(entry)
            self._dropping = False
        except queue.Full:
            self._on_dropped()
            if not self._dropping:
                log.warning("Recorded no revision, because too many are waiting to be written", service=str(entry.key))
            self._dropping = True

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service. The garbage collector deletes its revisions."""
        self._last.pop(key, None)
        self._pruned.discard(key)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what is left, for at most `timeout_s` seconds."""
        self._stopped.set()
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, _Renewal):
                self._renew(entry)
                continue
            try:
                self._write(entry)
            except KubeError as error:
                self._last.pop(entry.key, None)
                log.warning("Could not record a revision", service=str(entry.key), error=str(error))
            except Exception:
                self._last.pop(entry.key, None)
                log.exception("Could not record a revision because of a defect of Herdsman", service=str(entry.key))

    def _renew(self, asked: _Renewal) -> None:
        try:
            if removed := prune(self._client, kept=self._kept, namespaces=asked.namespaces, has=asked.has):
                log.info("Removed revisions beyond the limit", removed=removed, limit=self._kept)
            count = renew(self._client, namespaces=asked.namespaces, has=asked.has, pause=self._stopped.wait)
        except KubeError as error:
            log.warning(
                "Could not rewrite all revisions that another version of Herdsman wrote; trying again later",
                error=str(error),
            )
            again = threading.Timer(
                RENEW_AGAIN_S, self.renew, kwargs={"namespaces": asked.namespaces, "has": asked.has}
            )
            again.daemon = True
            again.start()
        except Exception:
            log.exception("Could not renew revisions because of a defect of Herdsman")
        else:
            if count:
                log.info("Rewrote the revisions that another version of Herdsman wrote", count=count)

    def _write(self, entry: _Entry) -> None:
        data = revision.data_of(entry.cr, entry.models)
        if revision.size_bytes(data) > LONGEST_DATA:
            log.warning("Recorded no revision, because the spec is too large", service=str(entry.key))
            return
        owner, digest, failed = entry.cr["metadata"]["uid"], fingerprint_of(data), bool(entry.outcome.error)
        last = self._last.get(entry.key)
        if last is None or last.owner != owner:
            # The name is nearly always free. If it is not, a list shows the newest revision.
            last = None if self._create(entry, 1, data, digest) else self._find(entry.key, owner)
            if last is None:
                return
        if last.digest == digest:
            if last.failed and not failed:
                self._amend(entry, last)
            return
        number = last.number + 1
        while not self._create(entry, number, data, digest):
            number += 1
        self._prune(entry.key)

    def _create(self, entry: _Entry, number: int, data: Json, digest: str) -> bool:
        """Write a revision. False when its number is taken."""
        body = revision.manifest(entry.cr, number, data, entry.outcome)
        try:
            self._client.create(kinds.CONTROLLER_REVISIONS, entry.key.namespace, body)
        except AlreadyExists:
            return False
        except NotFound:
            return True  # the namespace is gone, and the service with it
        failed = bool(entry.outcome.error)
        self._last[entry.key] = _Last(entry.cr["metadata"]["uid"], number, digest, failed)
        return True

    def _find(self, key: ServiceKey, owner: str) -> _Last:
        """Return the newest revision by the API server; number 0 if all belong to another service."""
        newest = next(iter(revision.read_all(self._list(key), owner=owner)), None)
        if newest is None:
            return _Last(owner, 0, "", failed=False)
        last = _Last(owner, newest.number, newest.digest, failed=not newest.is_applied)
        self._last[key] = last
        return last

    def _amend(self, entry: _Entry, last: _Last) -> None:
        """Record in the revision of a version that failed before that it is applied now."""
        body = {"metadata": {"annotations": revision.outcome_annotations(entry.outcome)}}
        name = revision.name_of(entry.key, last.number)
        with suppress(NotFound):
            self._client.patch(kinds.CONTROLLER_REVISIONS, entry.key.namespace, name, body)
        self._last[entry.key] = _Last(last.owner, last.number, last.digest, failed=False)

    def _prune(self, key: ServiceKey) -> None:
        if (last := self._last.get(key)) is None or last.number <= self._kept:
            return
        beyond = [last.number - self._kept]
        if key not in self._pruned:
            beyond = [old.number for old in revision.read_all(self._list(key), owner=last.owner)[self._kept :]]
        for number in beyond:
            with suppress(NotFound):
                self._client.delete(kinds.CONTROLLER_REVISIONS, key.namespace, revision.name_of(key, number))
        self._pruned.add(key)

    def _list(self, key: ServiceKey) -> list[Json]:
        selector = selector_of(key.dialect, (key.name,))
        return list(self._client.list(kinds.CONTROLLER_REVISIONS, key.namespace, label_selector=selector)["items"])
