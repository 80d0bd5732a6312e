"""The flow of one service, top to bottom: key → observe → desired → plan → engine → status.

A worker of `loop` calls `reconcile` with a key; nothing here blocks on the engine: a change is handed to the `Batcher`,
whose outcome enqueues the key again. The error's type decides what follows: `SpecInvalid` waits for an edit, `NotYet`
for the world, a failed batch is retried with back-off, an API error requeues the pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from automation.backoff import backoff_s
from automation.engine.batches import Batcher
from automation.engine.port import ServiceOutcome
from automation.events import EventRecorder
from automation.observe import Observed, observe, service_facts
from automation.plan import LastRun, LiveObject, make_plan
from automation.status_writer import StatusWriter
from automation.want import want
from automation.watch import World
from components import naming
from components.render import RenderOptions
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from program.desired.facts import Problem, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.llmkube.service_status import service_status

Object = dict[str, Any]
log = structlog.get_logger(__name__)

# The engine needs half a second for one service and some seconds for a hundred; a status that only says "applying" for
# that long is a write for nothing, times the number of services.
QUIET_S = 10.0
# A cache follows its own write within milliseconds; past this it is a real difference.
CACHE_LAG_S = 3.0
# A host says nothing when it dies; look again when its heartbeat would have grown stale (LLMKube: every 90 s).
HOSTED_RECHECK_S = 90.0
# After this many failures in a row the service is Stalled: Herdsman goes on trying, a person should look.
STALLED_AFTER = 5

# Phases that the Event about the applied objects already tells of.
UNREMARKABLE = ("Pending", "Creating", "Progressing")

_KINDS = {
    "Deployment": kinds.DEPLOYMENTS,
    "Service": kinds.SERVICES,
    "HorizontalPodAutoscaler": kinds.AUTOSCALERS,
    "HostProcess": kinds.HOST_PROCESSES,
}


@dataclass(frozen=True)
class EngineRun:
    """The last outcome of the engine for one service."""

    fingerprint: str
    at: datetime
    problem: Problem | None = None
    failures: int = 0
    retry_at: datetime | None = None


@dataclass(frozen=True)
class Submission:
    """What was handed to the batcher and has no outcome yet."""

    fingerprint: str
    at: datetime
    asked: tuple[object, ...]
    """What the user asks for, as `_asked` gives it."""


def _now() -> datetime:
    return datetime.now(UTC)


class Controller:
    """Reconciles services of the LLMKube dialect. One instance per loop; `reconcile` runs in any worker thread."""

    def __init__(
        self,
        *,
        client: KubeClient,
        world: World,
        batcher: Batcher,
        options: RenderOptions,
        recorder: EventRecorder,
        requeue: Callable[[ServiceKey, float], None],
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._client = client
        self._world = world
        self._batcher = batcher
        self._options = options
        self._recorder = recorder
        self._requeue = requeue
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[ServiceKey, EngineRun] = {}
        self._submitted: dict[ServiceKey, Submission] = {}
        self._statuses = StatusWriter(client, kinds.INFERENCE_SERVICES)
        self._generations: dict[ServiceKey, int] = {}

    # --- one pass -------------------------------------------------------------------------------------------------

    def reconcile(self, key: ServiceKey) -> None:
        """Bring one service closer to what its custom resource says, and say in its status how far it is."""
        now = self._clock()
        cr = self._world.services.get(key.namespace, key.name)
        if cr is None or "deletionTimestamp" in cr["metadata"]:
            self._remove(key)
            return
        model = self._world.models.get(key.namespace, str(cr["spec"].get("modelRef", "")))
        if self._is_quiet(key, cr, model, now=now):
            return
        observed = observe(self._world, key, owner=cr["metadata"]["uid"])
        wanted = want(self._world, key, cr, model, observed, options=self._options, now=now)
        objects_exist = False
        problem = wanted.problem
        if wanted.desired is not None and wanted.rendered is not None:
            exist = self._act(key, wanted.rendered, observed, asked=_asked(cr, model), now=now)
            objects_exist = exist and bool(wanted.rendered.objects)
            problem = self._engine_problem(key, wanted.rendered)
            self._release_ready_pods(wanted.desired, observed)
            if wanted.desired.host_placement is not None:
                self._requeue(key, HOSTED_RECHECK_S)
        if wanted.retry_after_s is not None:
            self._requeue(key, wanted.retry_after_s)
        facts = service_facts(
            observed,
            desired=wanted.desired,
            cr=cr,
            model=model,
            applying=self._batcher.busy(key),
            objects_exist=objects_exist,
            problem=problem,
            unhonoured=wanted.unhonoured,
            now=now,
        )
        self._report(key, cr, wanted.desired, facts, now=now)

    # --- acting ---------------------------------------------------------------------------------------------------

    def _is_quiet(self, key: ServiceKey, cr: Object, model: Object | None, *, now: datetime) -> bool:
        """Tell whether the engine is at work on just what is asked for: its objects appear one by one, and its outcome
        brings the key back. After `QUIET_S` the status says that it takes its time."""
        with self._lock:
            submitted = self._submitted.get(key)
        if submitted is None or submitted.asked != _asked(cr, model):
            return False
        quiet_for_s = QUIET_S - (now - submitted.at).total_seconds()
        if quiet_for_s <= 0:
            return False
        self._requeue(key, quiet_for_s)
        return True

    def _act(
        self,
        key: ServiceKey,
        rendered: RenderedService,
        observed: Observed,
        *,
        asked: tuple[object, ...],
        now: datetime,
    ) -> bool:
        """Carry out the plan; True when every object is there as rendered."""
        run = self._runs.get(key)
        last = LastRun(run.fingerprint, run.problem is None) if run is not None else None
        plan = make_plan(rendered, observed.live, last=last)
        if plan.action == "sweep":
            self._sweep(key, plan.leftovers)
            return True
        with self._lock:
            submitted = self._submitted.get(key)
        if submitted is not None and submitted.fingerprint == rendered.fingerprint:
            return plan.action == "none"
        if plan.action == "none":
            if not self._drifted(key, rendered, observed):
                return True
            plan = replace(plan, action="apply", why="the live object was changed by somebody else")
        if run is not None and run.fingerprint == rendered.fingerprint:
            if run.retry_at is not None and now < run.retry_at:
                self._requeue(key, (run.retry_at - now).total_seconds())
                return False
            if run.problem is None and now < run.at + timedelta(seconds=CACHE_LAG_S):
                # Applied a moment ago; the caches will show it, and their event brings the key back.
                self._requeue(key, CACHE_LAG_S)
                return False
        log.debug("Submitted to the engine", why=plan.why)
        with self._lock:
            self._submitted[key] = Submission(rendered.fingerprint, now, asked)
        self._batcher.submit(rendered)
        return False

    def _remove(self, key: ServiceKey) -> None:
        """Have the engine delete what it made for a service that is gone. The garbage collector works beside it.

        What the engine does not know, because its state was lost, is deleted here.
        """
        self._statuses.forget(key.namespace, key.name)
        with self._lock:
            self._generations.pop(key, None)
            self._runs.pop(key, None)
            waiting = self._submitted.pop(key, None)
        if waiting is not None or self._batcher.holds(key):
            self._batcher.remove(key)
            return
        leftovers = observe(self._world, key, owner=None).live
        if leftovers and self._is_gone(key):
            self._sweep(key, leftovers)

    def _is_gone(self, key: ServiceKey) -> bool:
        """Ask the API server, since a cache may be behind what made the objects."""
        try:
            self._client.get(kinds.INFERENCE_SERVICES, key.namespace, key.name)
        except NotFound:
            return True
        return False

    def _sweep(self, key: ServiceKey, leftovers: tuple[LiveObject, ...]) -> None:
        for leftover in leftovers:
            kind = _KINDS[leftover.name.kind]
            try:
                self._client.delete(kind, key.namespace, leftover.name.name, uid=leftover.uid)
            except NotFound:
                continue
            log.info("Deleted a leftover", kind=leftover.name.kind, name=leftover.name.name)

    def _drifted(self, key: ServiceKey, rendered: RenderedService, observed: Observed) -> bool:
        """Tell whether somebody changed the last object's spec in a field that is ours.

        The generation says that something changed since the engine's last run, or that we do not know because we have
        just started; a dry run of our own apply says whether that touches us (an autoscaler's replica count does not).
        """
        if not rendered.objects:
            return False
        last = rendered.objects[-1]
        live = next((o for o in observed.live if o.name == (last.kind, last.name)), None)
        if live is None:
            return False
        with self._lock:
            known = self._generations.get(key)
            just_applied = known is None and key in self._runs
        if known != live.generation and not just_applied:
            applied = self._client.apply(
                _KINDS[last.kind],
                key.namespace,
                last.manifest,
                field_manager=naming.FIELD_MANAGER,
                force=True,
                dry_run=True,
            )
            if int(applied["metadata"].get("generation", 0)) != live.generation:
                # Not remembered as seen: the next pass must find the drift again until the engine has repaired it.
                return True
        with self._lock:
            self._generations[key] = live.generation
        return False

    def _release_ready_pods(self, desired: DesiredService, observed: Observed) -> None:
        """Let the node autoscaler move pods that serve: `do-not-disrupt` protects only the long start.

        The annotation goes from the pod, not from the template, where its removal would restart what just became ready.
        """
        if naming.ANNOTATION_DO_NOT_DISRUPT in desired.pod.annotations:
            return
        for pod in observed.pods:
            metadata = pod["metadata"]
            if pod["ready"] and naming.ANNOTATION_DO_NOT_DISRUPT in metadata["annotations"]:
                body = {"metadata": {"uid": metadata["uid"], "annotations": {naming.ANNOTATION_DO_NOT_DISRUPT: None}}}
                try:
                    self._client.patch(kinds.PODS, metadata["namespace"], metadata["name"], body)
                except NotFound:
                    continue

    # --- the engine's answer --------------------------------------------------------------------------------------

    def on_outcome(self, key: ServiceKey, outcome: ServiceOutcome) -> None:
        """Record what the engine did; called by the Batcher, in its thread."""
        now = self._clock()
        if self._batcher.busy(key):
            # Edited during the run: a newer submission waits, and what is remembered of the service is about that one.
            return
        with self._lock:
            submitted = self._submitted.pop(key, None)
            before = self._runs.get(key)
            if submitted is None:
                return
            fingerprint = submitted.fingerprint
            if outcome.error is None:
                self._runs[key] = EngineRun(fingerprint, now)
                # The engine's own change is not drift: learn the new generation from the next pass.
                self._generations.pop(key, None)
            else:
                failures = 1
                if before is not None and before.fingerprint == fingerprint and before.problem is not None:
                    failures = before.failures + 1
                delay_s = backoff_s(failures, base_s=1.0, cap_s=300.0, jitter=0.2)
                self._runs[key] = EngineRun(
                    fingerprint,
                    now,
                    problem=Problem(
                        reason=outcome.error.reason,
                        message=outcome.error.message,
                        terminal=failures >= STALLED_AFTER,
                    ),
                    failures=failures,
                    retry_at=now + timedelta(seconds=delay_s),
                )
        cr = self._world.services.get(key.namespace, key.name)
        if cr is not None:
            self._record(cr, outcome)
        self._requeue(key, 0.0)

    def _record(self, cr: Object, outcome: ServiceOutcome) -> None:
        if outcome.error is not None:
            self._recorder.record(cr, type="Warning", reason=outcome.error.reason, message=outcome.error.message)
            return
        done = [f"{change.op}d {change.kind} {change.name}" for change in outcome.changes if change.op != "same"]
        if done:
            text = ", ".join(done)
            self._recorder.record(cr, type="Normal", reason="Applied", message=text[0].upper() + text[1:])

    def _engine_problem(self, key: ServiceKey, rendered: RenderedService) -> Problem | None:
        run = self._runs.get(key)
        if run is None or run.fingerprint != rendered.fingerprint:
            return None
        return run.problem

    # --- reporting ------------------------------------------------------------------------------------------------

    def _report(
        self, key: ServiceKey, cr: Object, desired: DesiredService | None, facts: ServiceFacts, *, now: datetime
    ) -> None:
        """Write the status, once and only if it says something new."""
        with self._lock:
            submitted = self._submitted.get(key)
        if submitted is not None and facts.problem is None and (now - submitted.at).total_seconds() < QUIET_S:
            self._requeue(key, QUIET_S)
            return
        current = self._statuses.latest(cr)
        status = service_status(current, desired, facts, now=now)
        if status == current.get("status"):
            return
        if not self._statuses.write(current, status):
            return
        before, after = (current.get("status") or {}).get("phase"), status.get("phase")
        if before != after:
            log.info("Changed phase", before=before, after=after, ready=f"{facts.ready_replicas}")
            if after not in UNREMARKABLE:
                self._recorder.record(
                    cr, type="Warning" if after == "Failed" else "Normal", reason=str(after), message=_summary(status)
                )


def _asked(cr: Object, model: Object | None) -> tuple[object, ...]:
    """What decides the rendered objects, cheap to compare: versions instead of contents where there are any."""
    metadata = cr["metadata"]
    about_model = (model or {}).get("metadata") or {}
    return metadata["uid"], metadata.get("generation"), metadata.get("annotations"), about_model.get("resourceVersion")


def _summary(status: Object) -> str:
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready")
    return str(ready["message"]) if ready else str(status.get("phase", ""))
