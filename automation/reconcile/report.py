"""Computes the status of a service, writes it if it differs from the current one, and records Events.

An applied version that an earlier loop did not record gets its revision here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import structlog

from automation.approval.approval import Approval
from automation.drift.drift_watch import DriftWatch
from automation.engine.batches import Batcher
from automation.engine.runs import EngineState, problem_of_run, refused_by
from automation.history.recorder import RevisionRecorder
from automation.hosts.registry import HostRegistry
from automation.reconcile.act import Acted
from automation.reconcile.desire import Desired
from automation.reconcile.facts import memory_facts, service_facts
from automation.reconcile.observe import Observed
from automation.reconcile.review import Review
from automation.reconcile.services import Services
from automation.serving.checks import Checks
from automation.serving.readiness import checked_pods, count_serving
from automation.status.event_log import status_events
from automation.status.event_recorder import EventRecorder
from automation.status.writer import StatusWriter
from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Pass:
    """The results and the actions of one pass."""

    key: ServiceKey
    cr: Json
    desired: Desired
    observed: Observed
    review: Review
    acted: Acted
    complete: bool
    """Every object exists as rendered; see `decide.Decision`."""
    now: datetime


@dataclass(frozen=True)
class Reporter:
    """One per loop; thread-safe for different services."""

    services: Mapping[str, Services]
    statuses: Mapping[str, StatusWriter]
    registry: HostRegistry
    batcher: Batcher
    drift: DriftWatch
    approval: Approval
    checks: Checks
    recorder: EventRecorder
    history: RevisionRecorder
    recheck: Callable[[ServiceKey, float], None]
    """Enqueue a service after some seconds if the engine still works on it then."""

    def report(self, found: Pass) -> None:
        """Write the status once, and only if it has changed. Raises ApiError."""
        key, cr = found.key, found.cr
        engine = self.batcher.runs.state(key, is_new=not cr.get("status"))
        facts = self._facts(found, engine)
        is_quiet = engine.quiet_for_s(now=found.now) > 0
        if is_quiet and facts.problem is None and not facts.rollout.timed_out:
            self.recheck(key, engine.quiet_s)
            return
        if found.complete and found.review.rendered is not None and found.review.rendered.objects:
            self.history.record_applied(key, cr, partial(self.services[key.dialect].references, key))
        self._write(key, cr, found.desired.service, facts, now=found.now)

    def _facts(self, found: Pass, engine: EngineState) -> ServiceFacts:
        """Collect the facts from which the status is computed."""
        key, review, service, observed = found.key, found.review, found.desired.service, found.observed
        run, fingerprint = engine.last_run, review.rendered.fingerprint if review.rendered else ""
        refused, failed = refused_by(run, fingerprint), problem_of_run(run, fingerprint)
        facts = service_facts(
            observed,
            found.desired,
            found.cr,
            registry=self.registry,
            # Retrying refused accessories does not change the phase of a service whose other objects exist.
            applying=self.batcher.busy(key) and not (refused and found.complete),
            objects_exist=found.complete and bool(review.rendered and review.rendered.objects),
            problem=review.problem or failed or review.replicas.problem or found.acted.problem,
            quota=review.quota,
            now=found.now,
        )
        facts = count_serving(facts, checked_pods(service, observed.pods), review.replicas.proofs)
        if service is None:
            return facts
        more: dict[str, object] = {
            "rollout": review.rollout,
            "refused": refused,
            "drift": self.drift.problems(key, now=found.now),
            "advice": review.advice,
            "pending": self.approval.modes.pending(key),
            "sleep": found.desired.sleep,
            "pool": found.desired.pool,
            "memory": memory_facts(service, observed),
            "acceleration": self.checks.acceleration(key, found.cr, service, observed),
        }
        if found.desired.sleep and service.host_placement is not None:
            # The endpoints are ready, because the hosts accept requests for the service; no replica runs.
            more["ready_replicas"] = 0
        return facts.model_copy(update=more)

    def _write(
        self, key: ServiceKey, cr: Json, service: DesiredService | None, facts: ServiceFacts, *, now: datetime
    ) -> None:
        before = cr.get("status")
        status = self.services[key.dialect].status(key, cr, service, facts, now=now)
        if status == before or not self.statuses[key.dialect].write(cr, status):
            return
        was, phase = (before or {}).get("phase"), status.get("phase")
        if was != phase:
            log.info("Changed phase", before=was, after=phase, ready=f"{facts.ready_replicas}")
        for entry in status_events(cr, status, facts):
            self.recorder.record(cr, type=entry.type, reason=entry.reason, message=entry.message)
