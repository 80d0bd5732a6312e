"""Adopts services one by one, and gives them back: annotates a service, and waits until the loop has acted on that.

Called by `herdsman adopt`. The loop does the rest. The adopter does not talk to the loop: it reads the objects that the
loop writes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from automation.adoption.candidates import (
    RELEASED_NOTES,
    Candidate,
    adoption_annotations,
    find_candidate,
    find_resource_candidate,
    has_mark,
    is_applied,
    pods_of,
    read_namespace,
)
from automation.adoption.kept_templates import WORKLOAD_KINDS, read_record, workload_digest
from automation.adoption.owner_references import controller_uid, replace_owner
from automation.adoption.upstream_controller import upstream_of
from automation.reconcile.plan import ObjectName
from components.naming import owner_reference
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, NotFound, Unreachable
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_ADOPT, ANNOTATION_CONTROLLER, ANNOTATION_KEPT_TEMPLATE, Owner
from program.dialects.registry import DIALECTS, LLMKUBE, REFERRERS, key_of, kind_of

FIELD_MANAGER = "herdsman-adopt"
POLL_S = 0.1
SLOW_POLL_S = 1.0
_KINDS = {**WORKLOAD_KINDS, kinds.SERVICES.kind: kinds.SERVICES}
"""Kinds of the objects that llmaz's Service owns."""


@dataclass(frozen=True)
class Result:
    """The result for one service."""

    candidate: Candidate
    state: str
    """`adopted`, `released`, `refreshed`, `skipped`, `failed`."""
    why: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.state == "failed"


class Adopter:
    """Adopts for loops of one class on one cluster. Not thread-safe. Every method may raise ApiError."""

    def __init__(
        self,
        client: KubeClient,
        *,
        controller_class: str,
        timeout_s: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._class = controller_class
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._clock = clock

    def candidates(self, services: Sequence[Json]) -> list[Candidate]:
        """Find out which services may be adopted. Sends a few requests for each namespace and dialect."""
        by_place: dict[tuple[str, str], list[Json]] = defaultdict(list)
        for service in services:
            by_place[service["metadata"]["namespace"], key_of(service).dialect].append(service)
        found: list[Candidate] = []
        for (namespace, dialect), there in sorted(by_place.items()):
            ordered = sorted(there, key=lambda each: str(each["metadata"]["name"]))
            if dialect in REFERRERS:
                said = self._client.get(kinds.NAMESPACES, None, namespace)["metadata"].get("annotations") or {}
                found += [find_resource_candidate(each, said, self._class) for each in ordered]
                continue
            objects = read_namespace(self._client, dialect, namespace)
            for service in ordered:
                found.append(find_candidate(service, objects, self._class))
        return found

    def as_adopted(self, one: Candidate) -> Json:
        """Return the service with the annotations that `adopt` writes, for a preview."""
        metadata = one.cr["metadata"]
        annotations = {**(metadata.get("annotations") or {}), **self._marks(one)}
        return {**one.cr, "metadata": {**metadata, "annotations": annotations}}

    def adopt(self, batch: Sequence[Candidate]) -> list[Result]:
        """Annotate services, and wait until the loop has applied each of them and its pods are the same as before."""
        for one in batch:
            if one.llmaz_service is not None:
                for obj in one.dependents:
                    self._replace_owner(obj, str(one.llmaz_service["metadata"]["uid"]), one.cr)
            self._annotate(one, self._marks(one))
        return self._wait(
            batch,
            self._find_adopted,
            "adopted",
            "no loop adopted it within the timeout: check that `herdsman run` runs with this class",
        )

    def release(self, batch: Sequence[Candidate]) -> list[Result]:
        """Give services back: wait until the loop has released them, and remove Herdsman's annotations.

        Every step can be repeated.
        """
        for one in batch:
            own = {ANNOTATION_ADOPT: None} if one.key.dialect == "kserve" else {}
            released_to = upstream_of(one.key.dialect).released_to
            self._annotate(one, {ANNOTATION_CONTROLLER: released_to, ANNOTATION_KEPT_TEMPLATE: None, **own})
        results = self._wait(
            batch,
            self._find_released,
            "released",
            "no loop released it within the timeout: check that `herdsman run` runs",
        )
        for result in results:
            if not result.failed:
                if result.candidate.key.dialect == "llmaz":
                    self._return_to_llmaz(result.candidate)
                # The last step: a repeated release finds an unfinished one by these annotations.
                self._remove_annotations(result.candidate)
        return results

    def refresh(self, batch: Sequence[Candidate]) -> list[Result]:
        """Restart the pods of adopted services with Herdsman's template."""
        for one in batch:
            self._annotate(one, {ANNOTATION_KEPT_TEMPLATE: None})
        return self._wait(batch, self._find_refreshed, "refreshed", "its Deployment still has the kept template")

    def _marks(self, one: Candidate) -> dict[str, str]:
        return {ANNOTATION_CONTROLLER: self._class, **adoption_annotations(one)}

    def _annotate(self, one: Candidate, annotations: dict[str, Any]) -> None:
        body = {"metadata": {"uid": one.cr["metadata"]["uid"], "annotations": annotations}}
        self._client.patch(kind_of(one.cr), one.key.namespace, one.key.name, body, field_manager=FIELD_MANAGER)

    def _remove_annotations(self, one: Candidate) -> None:
        """Remove Herdsman's annotations from the objects, so that a later adoption does not take them for applied."""
        body = {"metadata": {"annotations": dict.fromkeys(RELEASED_NOTES)}}
        for name in one.workloads:
            try:
                self._client.patch(_KINDS[name.kind], one.key.namespace, name.name, body, field_manager=FIELD_MANAGER)
            except NotFound:
                continue

    def _return_to_llmaz(self, one: Candidate) -> None:
        """Return the objects to the Service of llmaz that owned them. They get no owner if that Service is gone."""
        uid = str(one.cr["metadata"]["uid"])
        groups = [name for name in one.workloads if name.kind == kinds.LEADER_WORKER_SETS.kind]
        for name in (*groups, ObjectName(kinds.SERVICES.kind, f"{one.key.name}-lb")):
            obj = self._get(one, name)
            if obj is not None and controller_uid(obj) == uid:
                self._replace_owner(obj, uid, one.llmaz_service)

    def _replace_owner(self, obj: Json, remove: str, owner: Json | None) -> None:
        add = owner_reference(Owner.of(owner)) if owner is not None else None
        replace_owner(self._client, _KINDS[obj["kind"]], obj, remove=remove, add=add, field_manager=FIELD_MANAGER)

    def _wait(
        self, batch: Sequence[Candidate], find: Callable[[Candidate], Result | None], done: str, late: str
    ) -> list[Result]:
        """Wait until `find` returns a result for each service, or the time is over.

        A result without a state gets `done`. An error concerns only the service for which it was raised.
        """
        began = self._clock()
        waiting = {one.key: one for one in batch}
        results: dict[object, Result] = {}
        while waiting:
            spent = self._clock() - began
            for key, one in list(waiting.items()):
                found = self._look(one, find, late if spent >= self._timeout_s else "")
                if found is not None:
                    state = found.state or done
                    results[key] = Result(one, state, found.why, round(self._clock() - began, 3))
                    del waiting[key]
            if waiting:
                self._sleep(POLL_S if spent < 10 else SLOW_POLL_S)
        return [results[one.key] for one in batch]

    def _look(self, one: Candidate, find: Callable[[Candidate], Result | None], late: str) -> Result | None:
        """Return the result of `find` or of its error; None to look again, which ends when `late` is given."""
        try:
            found = find(one)
            if found is None and late:
                return Result(one, "failed", self._not_ready_text(one) or late)
            return found
        except NotFound:
            return Result(one, "failed", "it was deleted")
        except Unreachable as error:
            return Result(one, "failed", str(error)) if late else None
        except ApiError as error:
            return Result(one, "failed", str(error))

    def _find_adopted(self, one: Candidate) -> Result | None:
        """Return a failure when pods were replaced or the loop stalls; None until the loop has applied the service."""
        if one.key.dialect in REFERRERS:
            return Result(one, "") if has_mark(self._live(one)) else None
        conditions = self._conditions(one)
        for kind in ("Stalled", "ChangePending"):
            if conditions.get(kind, {}).get("status") == "True":
                return Result(one, "failed", str(conditions[kind].get("message")))
        if not self._has_loop_status(one, conditions):
            return None
        named = {
            name: name.kind if one.key.dialect == LLMKUBE else f"{name.kind} {name.name}" for name in one.workloads
        }
        live = {name: self._get(one, name) for name in one.workloads}
        for name, obj in live.items():
            if obj is None or obj["metadata"]["uid"] != one.workloads[name]["metadata"]["uid"]:
                return Result(one, "failed", f"its {named[name]} was deleted or replaced during the adoption")
        if one.workloads and not any(obj is not None and is_applied(obj) for obj in live.values()):
            return None
        template = "pod template" if one.key.dialect == LLMKUBE else "pod templates"
        changed = [
            named[name]
            for name, obj in live.items()
            if obj is not None and workload_digest(obj) != workload_digest(one.workloads[name])
        ]
        if changed:
            of = "its pod template" if one.key.dialect == LLMKUBE else f"the pod template of {', '.join(changed)}"
            return Result(one, "failed", f"{of} was changed: its pods are replaced")
        gone = one.pods - pods_of(self._client, one) if one.workloads else ()
        if gone:
            return Result(
                one, "failed", f"{len(gone)} of its pods were deleted, although its {template} did not change"
            )
        return Result(one, "")

    def _find_released(self, one: Candidate) -> Result | None:
        if one.key.dialect in REFERRERS:
            return None if has_mark(self._live(one)) else Result(one, "")
        return None if self._has_loop_status(one, self._conditions(one)) else Result(one, "")

    def _find_refreshed(self, one: Candidate) -> Result | None:
        live = [self._get(one, name) for name in one.workloads]
        keeps = any(obj is not None and read_record(obj) is not None for obj in live)
        return None if keeps else Result(one, "")

    @staticmethod
    def _has_loop_status(one: Candidate, conditions: dict[str, Json]) -> bool:
        return DIALECTS[one.key.dialect].status_mark in conditions

    def _not_ready_text(self, one: Candidate) -> str:
        """Return reason and message of a condition Ready that is False; empty where there is none."""
        ready = self._conditions(one).get("Ready") or {}
        return f"{ready.get('reason')}: {ready.get('message')}" if ready.get("status") == "False" else ""

    def _conditions(self, one: Candidate) -> dict[str, Json]:
        return {str(each["type"]): each for each in (self._live(one).get("status") or {}).get("conditions") or ()}

    def _live(self, one: Candidate) -> Json:
        found: Json = self._client.get(kind_of(one.cr), one.key.namespace, one.key.name)
        return {**found, "kind": one.cr["kind"]}

    def _get(self, one: Candidate, name: ObjectName) -> Json | None:
        return self._client.find(_KINDS[name.kind], one.key.namespace, name.name)
