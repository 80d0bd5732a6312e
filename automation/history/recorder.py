"""Writes a revision for each version of a service that the engine has applied. Called by the controller with outcomes.

A thread writes the revisions, so that no pass waits. A revision that cannot be written is tried again by the next pass
that finds its version applied. A new service and each change cost one request; the first change after a restart costs a
list as well.

A loop that is killed may have applied a version without a revision. The next loop reads which services have revisions,
and the time of the edit that the newest one records. It records the versions that a pass finds applied without one. So
the first revisions of many new services may be written after their objects (ADR 59).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog

from automation.cache.owners import selector_of
from automation.engine.outcomes import describe_changes
from automation.engine.port import ServiceOutcome
from automation.history import revision
from automation.history.revision import Outcome
from automation.history.upgrade import UNSETTLED, prune, renew
from automation.workqueue.precedence import Precedence
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
FOUND = "Found applied, without a revision"
"""The text for the changes of a version that an earlier loop applied."""


@dataclass(frozen=True)
class _Entry:
    key: ServiceKey
    cr: Json
    models: tuple[Json, ...]
    outcome: Outcome
    asked_s: float
    """When it was recorded, by the monotonic clock."""
    is_new: bool
    """Whether no version of its service was recorded before, by this loop or another one."""
    can_wait: bool
    """Whether a loop that is started later would record it too."""


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
        self,
        client: KubeClient,
        *,
        kept: int = KEPT,
        on_dropped: Callable[[], None] = lambda: None,
        most: int = MOST,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`kept` revisions of each service stay; 0 writes none.

        `on_dropped` is called for each version that is not recorded because `most` others wait to be written. First
        versions wait while `is_busy` returns True, but not while a later version waits.
        """
        self._client = client
        self._kept = kept
        self._on_dropped = on_dropped
        self._dropping = False
        self._pruned: set[ServiceKey] = set()
        """Services of which this loop has removed the revisions that an earlier, higher limit left."""
        self._queue: queue.Queue[_Entry | _Renewal | None] = queue.Queue(most)
        self._lock = threading.Lock()
        self._has_listed = False
        """Whether the revisions that earlier loops wrote were read."""
        self._changed_at: dict[str, str] = {}
        """The custom resources with a revision, also with one that waits to be written, by uid. For those of earlier
        loops, the value is the time of the edit that the newest revision records, until a pass has compared it. It is
        `UNSETTLED` after a failed run or write."""
        self._unsure: dict[ServiceKey, tuple[Json, tuple[Json, ...]]] = {}
        """Applied services, with their models, that were found before the revisions were read."""
        self._urgent = 0
        """The number of waiting versions that only this loop can record."""
        self._precedence = Precedence(lambda: is_busy() and not self._urgent)
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
            # A run can fail after its writes. A pass that finds them applied corrects the revision.
            is_new = self._note(cr, settled=not result.error or revision.made_pods(result.error))
            self._put(key, cr, models, result, is_new=is_new, can_wait=is_new and outcome.error is None)

    def record_applied(self, key: ServiceKey, cr: Json, models: Callable[[], Iterable[Json]]) -> None:
        """Record the version of a service whose objects exist, if no revision says that. Returns at once."""
        if not self._kept or self._changed_at.get(cr["metadata"]["uid"]) == "":
            return
        with self._lock:
            if not self._has_listed:
                self._unsure[key] = (cr, tuple(models()))
                return
            recorded = self._changed_at.get(cr["metadata"]["uid"])
            self._changed_at[cr["metadata"]["uid"]] = ""
        if recorded is None or recorded not in ("", revision.changed_at(cr)):
            found = Outcome(FOUND, "", timedelta(0))
            self._put(key, cr, models(), found, is_new=recorded is None, can_wait=True)

    def record_resource(self, cr: Json, *, changes: str, error: str) -> None:
        """Record a version of a ModelRouter, ModelPool or LoRAAdapter, and why it is not used; empty if it is.

        Returns at once. Does nothing for a version that is recorded already.
        """
        if self._kept:
            is_new = self._note(cr, settled=True)
            self._put(key_of(cr), cr, (), Outcome(changes, error, timedelta(0)), is_new=is_new, can_wait=False)

    def _note(self, cr: Json, *, settled: bool) -> bool:
        """Note that this loop records the custom resource; returns whether it surely has no revision yet."""
        uid = cr["metadata"]["uid"]
        with self._lock:
            is_new = self._has_listed and uid not in self._changed_at
            self._changed_at[uid] = "" if settled else UNSETTLED
        return is_new

    def _put(
        self, key: ServiceKey, cr: Json, models: Iterable[Json], outcome: Outcome, *, is_new: bool, can_wait: bool
    ) -> None:
        with self._lock:
            self._urgent += not can_wait
        try:
            self._queue.put_nowait(_Entry(key, cr, tuple(models), outcome, self._precedence.now(), is_new, can_wait))
            self._dropping = False
        except queue.Full:
            with self._lock:
                self._urgent -= not can_wait
            self._on_dropped()
            if not self._dropping:
                log.warning("Recorded no revision, because too many are waiting to be written", service=str(key))
            self._dropping = True

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service. The garbage collector deletes its revisions."""
        last = self._last.pop(key, None)
        with self._lock:
            self._unsure.pop(key, None)
            if last is not None:
                self._changed_at.pop(last.owner, None)
        self._pruned.discard(key)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what is left, for at most `timeout_s` seconds."""
        self._stopped.set()
        self._precedence.end()
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, _Renewal):
                self._renew(entry)
                continue
            if entry.can_wait:
                self._precedence.give_way(entry.asked_s)
            try:
                self._write(entry)
            except KubeError as error:
                self._write_again(entry)
                log.warning("Could not record a revision", service=str(entry.key), error=str(error))
            except Exception:
                self._write_again(entry)
                log.exception("Could not record a revision because of a defect of Herdsman", service=str(entry.key))
            finally:
                with self._lock:
                    self._urgent -= not entry.can_wait

    def _write_again(self, entry: _Entry) -> None:
        """Let the next pass that finds the version applied record it."""
        self._last.pop(entry.key, None)
        with self._lock:
            self._changed_at[entry.cr["metadata"]["uid"]] = UNSETTLED

    def _renew(self, asked: _Renewal) -> None:
        try:
            pruned = prune(self._client, kept=self._kept, namespaces=asked.namespaces, has=asked.has)
            if pruned.deleted:
                log.info("Removed revisions beyond the limit", removed=pruned.deleted, limit=self._kept)
            self._compare_applied(pruned.changed_at)
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

    def _compare_applied(self, changed_at: Mapping[str, str]) -> None:
        """Remember what earlier loops recorded, and record the applied services for which that is not enough."""
        with self._lock:
            self._changed_at = {**changed_at, **self._changed_at}
            self._has_listed = True
            unsure, self._unsure = self._unsure, {}
        for key, (cr, models) in unsure.items():
            self.record_applied(key, cr, partial(tuple, models))

    def _write(self, entry: _Entry) -> None:
        data = revision.data_of(entry.cr, entry.models)
        if revision.size_bytes(data) > LONGEST_DATA:
            log.warning("Recorded no revision, because the spec is too large", service=str(entry.key))
            return
        owner, digest, failed = entry.cr["metadata"]["uid"], fingerprint_of(data), bool(entry.outcome.error)
        last = self._last.get(entry.key)
        if last is None or last.owner != owner:
            # The name is nearly always free. It may belong to a deleted service of the same name.
            if entry.is_new and self._create(entry, 1, data, digest):
                return
            last = self._find(entry.key, owner)
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
