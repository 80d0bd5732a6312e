"""Decides in each pass what to do about the changes of other clients: repair, report, or ignore them.

The controller calls it with the plan of a pass. While the caches show that Herdsman owns all its fields, no request is
sent. Otherwise the object is read from the API server, because the cache may be older than Herdsman's last write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from automation.drift.contest import Contests
from automation.drift.field_drift import ObjectDrift, describe_drift, fields_of, may_have_drifted
from automation.reconcile.plan import LastRun, LiveObject, ObjectName, Plan
from components.providers.ignored_objects import IgnoredFields
from components.rendered import RenderedObject, RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from program.desired.facts import Problem
from program.desired.keys import ServiceKey

KINDS = {kind.kind: kind for kind in (*kinds.WELL_KNOWN, *kinds.OPTIONAL)}

REPORTED, CONTESTED = "DriftReported", "DriftContested"


@dataclass(frozen=True)
class Considered:
    """The plan of a pass, with the repairs of drift."""

    plan: Plan
    rendered: RenderedService
    """The objects to submit. They leave out the fields whose drift is only reported."""
    repair: tuple[ObjectDrift, ...] = ()
    """The drift that the plan repairs, as read from the API server."""
    wait_s: float = 0.0
    """Seconds until a contested field may be repaired."""


@dataclass(frozen=True)
class _Look:
    """The drift that was found at one state of the caches."""

    of: tuple[object, ...]
    drifts: tuple[ObjectDrift, ...]


class DriftWatch:
    """Finds the drift of each service, and remembers what is reported and repaired. Thread-safe."""

    def __init__(
        self,
        client: KubeClient,
        *,
        requeue: Callable[[ServiceKey, float], None] = lambda _key, _delay_s: None,
        ignored: IgnoredFields | None = None,
    ) -> None:
        """`ignored` gets, before each submission, the fields of each object that other clients own."""
        self._client = client
        self._requeue = requeue
        self._ignored = ignored or IgnoredFields()
        self._contests = Contests()
        self._lock = threading.Lock()
        self._looks: dict[ServiceKey, _Look] = {}
        self._reported: dict[ServiceKey, tuple[ObjectDrift, ...]] = {}
        self._repairing: dict[ServiceKey, tuple[ObjectDrift, ...]] = {}

    def consider(
        self,
        plan: Plan,
        rendered: RenderedService,
        live: Iterable[LiveObject],
        *,
        last: LastRun | None,
        known: frozenset[str],
        now: datetime,
    ) -> Considered:
        """Find drift where the rendered version was applied before, and change the plan accordingly.

        A change of the service itself is applied as planned and overwrites the drift that was only reported. A further
        try of refused accessories does not. `known` are the kinds that the caches hold. Raises ApiError.
        """
        key, objects = rendered.key, {each.name: each for each in live}
        applied_here = last is not None and last.ok and last.fingerprint == rendered.fingerprint
        hashes = {rendered.fingerprint} if applied_here else {each.applied_hash for each in objects.values()}
        applied = max((rendered.applied_by(each) for each in hashes), key=len, default=())
        if plan.action == "sweep" or plan.leftovers or not rendered.objects or not applied or rendered.shared:
            with self._lock:
                self._reported.pop(key, None)
            return Considered(plan, rendered)
        drifts = self._look(rendered, applied, objects, known)
        reported = tuple(drifted for drifted in drifts if _is_only_reported(drifted, rendered))
        repair = tuple(drifted for drifted in drifts if drifted not in reported)
        with self._lock:
            if reported:
                self._reported[key] = reported
            else:
                self._reported.pop(key, None)
        if repair:
            why = f"other clients changed fields of Herdsman: {describe_drift(repair)}"
            wait_s = self._contests.wait_s(key, repair, now=now)
            to_do = replace(plan, action="apply", why=why, only_accessories=False)
            return Considered(to_do, _leaving(rendered, reported), repair, wait_s)
        if len(applied) < len(rendered.objects):
            return Considered(replace(plan, only_accessories=True), _leaving(rendered, reported))
        if plan.action == "apply" and not reported:
            return Considered(plan, rendered)  # the caches are older than the last write
        return Considered(replace(plan, action="none"), rendered)

    def submitted(self, considered: Considered, *, now: datetime) -> None:
        """Note what is submitted to the engine."""
        key = considered.rendered.key
        self._ignored.note(considered.rendered.objects)
        if considered.repair:
            self._contests.note_repairs(key, considered.repair, now=now)
            if (remaining_s := self._contests.remaining_s(key, now=now)) > 0:
                # The status has the condition of the contested field until then.
                self._requeue(key, remaining_s)
        with self._lock:
            self._looks.pop(key, None)
            self._repairing.pop(key, None)
            if considered.repair:
                self._repairing[key] = considered.repair

    def settled(self, key: ServiceKey) -> str:
        """Return the text of an Event on the repairs of the last engine run; empty where it repaired nothing."""
        with self._lock:
            self._looks.pop(key, None)
            repaired = self._repairing.pop(key, ())
        return f"Repaired fields that other clients changed: {describe_drift(repaired)}" if repaired else ""

    def problems(self, key: ServiceKey, *, now: datetime) -> tuple[Problem, ...]:
        """Return the problems of drift for the status: contested fields, and drift that is only reported."""
        contested = tuple(
            Problem(reason=CONTESTED, message=f"{words}; the loop repairs it with growing pauses")
            for words in self._contests.contested_texts(key, now=now)
        )
        with self._lock:
            reported = self._reported.get(key, ())
        return contested + tuple(Problem(reason=REPORTED, message=_with_time(drifted)) for drifted in reported)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        with self._lock:
            for known in (self._looks, self._reported, self._repairing):
                known.pop(key, None)
        self._contests.drop_service(key)

    def _look(
        self,
        rendered: RenderedService,
        objects: tuple[RenderedObject, ...],
        live: dict[ObjectName, LiveObject],
        known: frozenset[str],
    ) -> tuple[ObjectDrift, ...]:
        names = [ObjectName(each.kind, each.name) for each in objects]
        seen = tuple(
            (each.ignore, each.on_drift, found and (found.uid, found.owned, found.content, found.generation))
            for each, name in zip(objects, names, strict=True)
            for found in (live.get(name),)
        )
        of = (rendered.fingerprint, known, *seen)
        with self._lock:
            before = self._looks.get(rendered.key)
        if before is not None and before.of == of:
            return before.drifts
        drifts, certain = [], True
        for obj, name in zip(objects, names, strict=True):
            found = live.get(name)
            if found is not None and not may_have_drifted(obj, found.owned):
                continue
            if found is None and name.kind not in known:
                continue
            drifted = self._read(obj, rendered.key.namespace)
            if drifted is not None:
                drifts.append(drifted)
            elif found is None:
                certain = False  # the object exists, and the cache does not have it yet
        with self._lock:
            if certain:
                self._looks[rendered.key] = _Look(of, tuple(drifts))
            else:
                self._looks.pop(rendered.key, None)
        return tuple(drifts)

    def _read(self, obj: RenderedObject, namespace: str) -> ObjectDrift | None:
        try:
            live = self._client.get(KINDS[obj.kind], namespace, obj.name)
        except NotFound:
            return ObjectDrift(obj.kind, obj.name, deleted=True)
        if live["metadata"].get("deletionTimestamp"):
            return ObjectDrift(obj.kind, obj.name, deleted=True)
        fields = fields_of(obj, live)
        return ObjectDrift(obj.kind, obj.name, fields) if fields else None


def _is_only_reported(drifted: ObjectDrift, rendered: RenderedService) -> bool:
    """Return whether the policy only reports this drift. The object with the applied hash is always made again."""
    if drifted.deleted and (drifted.kind, drifted.name) == (rendered.objects[-1].kind, rendered.objects[-1].name):
        return False
    return any(
        each.on_drift == "report" for each in rendered.objects if (each.kind, each.name) == (drifted.kind, drifted.name)
    )


def _leaving(rendered: RenderedService, reported: tuple[ObjectDrift, ...]) -> RenderedService:
    """Return the service without the deleted objects and changed fields that are only reported."""
    if not reported:
        return rendered
    left = {(each.kind, each.name): each for each in reported}
    objects = []
    for obj in rendered.objects:
        drifted = left.get((obj.kind, obj.name))
        if drifted is None:
            objects.append(obj)
        elif not drifted.deleted:
            objects.append(replace(obj, ignore=(*obj.ignore, *(field.path for field in drifted.fields))))
    return replace(rendered, objects=tuple(objects))


def _with_time(drifted: ObjectDrift) -> str:
    return f"{drifted} (since {drifted.since})" if drifted.since else str(drifted)
