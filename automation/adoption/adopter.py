"""Takes services over one by one, and gives them back: marks a service, and waits until the loop has acted on the mark.

Called by `herdsman adopt`. It writes annotations of custom resources, and on release takes ours off what runs; all else
is done by the loop, which this never talks to: what it looks at are the objects. What is particular to the dialects
beside LLMKube's is done by `described`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from automation.adoption.candidates import MANAGED_BY_AGENT, Candidate, candidate, is_applied
from automation.adoption.described import (
    FIELD_MANAGER,
    described_candidates,
    give_back,
    give_to_playground,
    marks_of,
    pods_of,
)
from automation.adoption.kept_template import digest_of, record_of
from automation.adoption.kept_workloads import workload_digest
from automation.adoption.upstream_controller import UPSTREAM_CONTROLLERS
from automation.reconcile.plan import ObjectName
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_ADOPT, ANNOTATION_CONTROLLER, ANNOTATION_KEPT_TEMPLATE
from program.dialects.registry import LLMKUBE, dialect_of, kind_of

POLL_S = 0.1
SLOW_POLL_S = 1.0


@dataclass(frozen=True)
class Result:
    """What came of one service."""

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

    # --- looking --------------------------------------------------------------------------------------------------

    def candidates(self, services: Sequence[Json]) -> list[Candidate]:
        """Judge services by what exists for them; a handful of requests for each namespace."""
        by_place: dict[tuple[str, str], list[Json]] = defaultdict(list)
        for service in services:
            by_place[service["metadata"]["namespace"], dialect_of(service)].append(service)
        found: list[Candidate] = []
        for (namespace, dialect), there in sorted(by_place.items()):
            if dialect == LLMKUBE:
                found += self._in(namespace, there)
            else:
                found += described_candidates(self._client, there, self._class)
        return found

    def _in(self, namespace: str, services: list[Json]) -> Iterable[Candidate]:
        said = (self._client.get(kinds.NAMESPACES, None, namespace)["metadata"].get("annotations")) or {}
        models = _by_name(self._client.list(kinds.MODELS, namespace)["items"])
        deployments = _by_name(
            self._client.list(kinds.DEPLOYMENTS, namespace, label_selector=naming.LABEL_SERVICE)["items"]
        )
        pods, slices = defaultdict(list), defaultdict(list)
        for pod in self._client.list(kinds.PODS, namespace, label_selector=naming.LABEL_SERVICE)["items"]:
            pods[pod["metadata"]["labels"][naming.LABEL_SERVICE]].append(pod)
        of_agents = f"{MANAGED_BY_AGENT[0]}={MANAGED_BY_AGENT[1]}"
        for each in self._client.list(kinds.ENDPOINT_SLICES, namespace, label_selector=of_agents)["items"]:
            slices[(each["metadata"].get("labels") or {}).get("kubernetes.io/service-name", "")].append(each)
        for service in sorted(services, key=lambda each: str(each["metadata"]["name"])):
            name = service["metadata"]["name"]
            yield candidate(
                service,
                model=models.get((service.get("spec") or {}).get("modelRef", "")),
                deployment=deployments.get(naming.deployment_name(name)),
                pods=pods[name],
                slices=slices[naming.service_name(name)],
                namespace_annotations=said,
                controller_class=self._class,
            )

    def as_adopted(self, one: Candidate) -> Json:
        """Give the service as it would be marked, for a preview."""
        metadata = one.cr["metadata"]
        notes = {**(metadata.get("annotations") or {}), **self._marks(one)}
        return {**one.cr, "metadata": {**metadata, "annotations": notes}}

    def _marks(self, one: Candidate) -> dict[str, str]:
        if one.key.dialect != LLMKUBE:
            return {ANNOTATION_CONTROLLER: self._class, **marks_of(one)}
        kept = {ANNOTATION_KEPT_TEMPLATE: one.template_digest} if one.template_digest else {}
        return {ANNOTATION_CONTROLLER: self._class, **kept}

    # --- acting ---------------------------------------------------------------------------------------------------

    def adopt(self, batch: Sequence[Candidate]) -> list[Result]:
        """Mark services, and wait until the loop has each of them and its pods are those that ran before."""
        for one in batch:
            give_to_playground(self._client, one)
            self._annotate(one, self._marks(one))
        return self._await(batch, self._taken, "adopted", "no loop took it: is `herdsman run` up, with this class?")

    def release(self, batch: Sequence[Candidate]) -> list[Result]:
        """Hand services back: the loop lets go of them, and nothing of ours stays that the peer would not know."""
        for one in batch:
            own = {ANNOTATION_ADOPT: None} if one.key.dialect == "kserve" else {}
            released_to = UPSTREAM_CONTROLLERS[one.key.dialect].released_to
            self._annotate(one, {ANNOTATION_CONTROLLER: released_to, ANNOTATION_KEPT_TEMPLATE: None, **own})
        results = self._await(batch, self._left, "released", "no loop let go of it: is `herdsman run` up?")
        for result in results:
            if result.failed:
                continue
            if result.candidate.key.dialect != LLMKUBE:
                give_back(self._client, result.candidate)
            elif result.candidate.deployment is not None:
                self._clean(result.candidate)
        return results

    def refresh(self, batch: Sequence[Candidate]) -> list[Result]:
        """Have the pods of adopted services started anew from Herdsman's template."""
        for one in batch:
            self._annotate(one, {ANNOTATION_KEPT_TEMPLATE: None})
        return self._await(batch, self._refreshed, "refreshed", "its Deployment still has the kept template")

    def _annotate(self, one: Candidate, annotations: dict[str, Any]) -> None:
        body = {"metadata": {"uid": one.cr["metadata"]["uid"], "annotations": annotations}}
        self._client.patch(kind_of(one.cr), one.key.namespace, one.key.name, body, field_manager=FIELD_MANAGER)

    def _clean(self, one: Candidate) -> None:
        """Take our notes off the Deployment: a later adoption must not take it for one that was applied."""
        notes = dict.fromkeys((naming.ANNOTATION_APPLIED_HASH, ANNOTATION_KEPT_TEMPLATE))
        body = {"metadata": {"uid": (one.deployment or {})["metadata"]["uid"], "annotations": notes}}
        self._client.patch(kinds.DEPLOYMENTS, one.key.namespace, one.key.name, body, field_manager=FIELD_MANAGER)

    # --- waiting --------------------------------------------------------------------------------------------------

    def _await(
        self, batch: Sequence[Candidate], look: Callable[[Candidate], Result | None], done: str, late: str
    ) -> list[Result]:
        """Look at each until it is as wanted. `look` gives None while there is nothing to say yet."""
        began = self._clock()
        waiting = {one.key: one for one in batch}
        results: dict[object, Result] = {}
        while waiting:
            spent = self._clock() - began
            for key, one in list(waiting.items()):
                found = look(one)
                if found is None and spent >= self._timeout_s:
                    found = Result(one, "failed", self._last_words(one) or late)
                if found is not None:
                    state = found.state or done
                    results[key] = Result(one, state, found.why, round(self._clock() - began, 3))
                    del waiting[key]
            if waiting:
                self._sleep(POLL_S if spent < 10 else SLOW_POLL_S)
        return [results[one.key] for one in batch]

    def _taken(self, one: Candidate) -> Result | None:
        status = self._status(one)
        conditions = _conditions(status)
        for kind in ("Stalled", "ChangePending"):
            if conditions.get(kind, {}).get("status") == "True":
                return Result(one, "failed", str(conditions[kind].get("message")))
        if _mark_of(one) not in conditions:
            return None
        if one.key.dialect != LLMKUBE:
            return self._described_taken(one)
        if one.deployment is None:
            return Result(one, "")
        live = self._deployment(one)
        if live is None or live["metadata"]["uid"] != one.deployment["metadata"]["uid"]:
            return Result(one, "failed", "its Deployment was deleted or made anew meanwhile")
        if not is_applied(live):
            return None
        if digest_of(live["spec"]["template"]) != one.template_digest:
            return Result(one, "failed", "its pod template was changed: its pods are replaced")
        gone = one.pods - self._pods(one)
        if gone:
            return Result(one, "failed", f"{len(gone)} of its pods are gone, though its pod template stayed")
        return Result(one, "")

    def _described_taken(self, one: Candidate) -> Result | None:
        live = {name: self._workload(one, name) for name in one.workloads}
        for name, obj in live.items():
            if obj is None or obj["metadata"]["uid"] != one.workloads[name]["metadata"]["uid"]:
                return Result(one, "failed", f"its {name.kind} {name.name} was deleted or made anew meanwhile")
        if one.workloads and not any(obj is not None and is_applied(obj) for obj in live.values()):
            return None
        changed = [
            f"{name.kind} {name.name}"
            for name, obj in live.items()
            if obj is not None and workload_digest(obj) != workload_digest(one.workloads[name])
        ]
        if changed:
            return Result(one, "failed", f"the pod template of {', '.join(changed)} was changed: its pods are replaced")
        gone = one.pods - pods_of(self._client, one)
        if gone:
            return Result(one, "failed", f"{len(gone)} of its pods are gone, though its pod templates stayed")
        return Result(one, "")

    def _workload(self, one: Candidate, name: ObjectName) -> Json | None:
        kind = kinds.DEPLOYMENTS if name.kind == kinds.DEPLOYMENTS.kind else kinds.LEADER_WORKER_SETS
        try:
            return self._client.get(kind, one.key.namespace, name.name)
        except NotFound:
            return None

    def _left(self, one: Candidate) -> Result | None:
        return None if _mark_of(one) in _conditions(self._status(one)) else Result(one, "")

    def _refreshed(self, one: Candidate) -> Result | None:
        if one.key.dialect != LLMKUBE:
            live_objects = [self._workload(one, name) for name in one.workloads]
            keeps = any(obj is not None and record_of(obj) is not None for obj in live_objects)
            return None if keeps else Result(one, "")
        live = self._deployment(one)
        return Result(one, "") if live is None or record_of(live) is None else None

    def _last_words(self, one: Candidate) -> str:
        """What the loop says of a service that it did not finish; empty where it says nothing."""
        ready = _conditions(self._status(one)).get("Ready") or {}
        return f"{ready.get('reason')}: {ready.get('message')}" if ready.get("status") == "False" else ""

    def _status(self, one: Candidate) -> Json:
        found = self._client.get(kind_of(one.cr), one.key.namespace, one.key.name)
        return dict(found.get("status") or {})

    def _deployment(self, one: Candidate) -> Json | None:
        try:
            return self._client.get(kinds.DEPLOYMENTS, one.key.namespace, naming.deployment_name(one.key.name))
        except NotFound:
            return None

    def _pods(self, one: Candidate) -> frozenset[str]:
        selector = f"{naming.LABEL_SERVICE}={one.key.name}"
        found = self._client.list(kinds.PODS, one.key.namespace, label_selector=selector)["items"]
        return frozenset(str(pod["metadata"]["uid"]) for pod in found if "deletionTimestamp" not in pod["metadata"])


def _by_name(items: Iterable[Json]) -> dict[str, Json]:
    return {str(item["metadata"]["name"]): item for item in items}


def _mark_of(one: Candidate) -> str:
    """Name a condition that the loop's status has, and the peer's has not."""
    return "Ready" if one.key.dialect == LLMKUBE else "Reconciling"


def _conditions(status: Json) -> dict[str, Json]:
    return {str(each["type"]): each for each in status.get("conditions") or ()}
