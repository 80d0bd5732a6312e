"""Handles callbacks of the engine: whether a change may still be made before its run, and what its outcome causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog

from automation.approval.approval import modes_now
from automation.cache.cluster_cache import ClusterCache
from automation.drift.drift_watch import DriftWatch
from automation.engine.batches import Batcher
from automation.engine.port import ServiceOutcome
from automation.engine.runs import CACHE_LAG_S
from automation.engine.submissions import Submission
from automation.history.recorder import RevisionRecorder
from automation.reconcile.services import Services
from automation.status.event_log import outcome_entry
from automation.status.event_recorder import EventRecorder
from kubeapi.client import KubeClient
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)

# After this time the cache has the namespace's annotations, and the next pass holds the change back.
MODE_LAG_S = 0.2


@dataclass(frozen=True)
class Outcomes:
    """One per loop. The Batcher calls it from its threads."""

    client: KubeClient
    cluster: ClusterCache
    batcher: Batcher
    services: Mapping[str, Services]
    drift: DriftWatch
    recorder: EventRecorder
    requeue: Callable[[ServiceKey, float], None]
    clock: Callable[[], datetime]
    history: RevisionRecorder

    def withdrawn(self, namespace: str, submissions: tuple[Submission, ...]) -> frozenset[ServiceKey]:
        """Return the services whose mode has changed since their pass. Called right before a run.

        Namespaces and services are watched separately, so the edit of a service may arrive before the pause of its
        namespace that came first. A service that is being deleted has no mode. Raises EngineFailed when the API server
        does not answer.
        """
        crs = {each.key: self.services[each.key.dialect].get(each.key.namespace, each.key.name) for each in submissions}
        now_in = modes_now(self.client, namespace, crs, controller_class=self.cluster.controller_class)
        found = [each for each in submissions if now_in[each.key] != each.mode]
        for submission in found:
            if self.batcher.settle(submission):
                self.drift.settled(submission.key)
                self.requeue(submission.key, MODE_LAG_S)
        return frozenset(each.key for each in found)

    def record(self, submission: Submission, outcome: ServiceOutcome) -> None:
        """Record the engine's outcome for one service, and enqueue the service.

        In a bulk, the first status of a service that was applied comes after the objects of the others.
        """
        key, now = submission.key, self.clock()
        if self.batcher.newest(key) is not submission:
            # The service was edited during the run. The records belong to the newer request, which still waits.
            return
        if submission.rendered is None:
            self._record_removal(submission, outcome)
            return
        runs, services, report_in_s = self.batcher.runs, self.services[key.dialect], 0.0
        cr = services.get(key.namespace, key.name)
        try:
            # A pass that sees the outcome recorded would record an applied version without a revision as found.
            if cr is not None and cr["metadata"].get("generation") == submission.asked[1]:
                self.history.record(key, cr, services.references(key), outcome, duration=now - submission.at)
        finally:
            self.batcher.record(submission, outcome.error, now=now)
        try:
            repaired = self.drift.settled(key)
            if cr is not None and (entry := outcome_entry(outcome, repaired)) is not None:
                self.recorder.record(cr, type=entry.type, reason=entry.reason, message=entry.message)
            if outcome.error is None and cr is not None and not cr.get("status") and runs.in_bulk():
                runs.withhold(submission)
                report_in_s = runs.state(key).quiet_for_s(now=now)
        finally:
            # The pass that waited for this outcome is not repeated by a timer any more.
            self.requeue(key, report_in_s)
            self._report_withheld()

    def _record_removal(self, submission: Submission, outcome: ServiceOutcome) -> None:
        """Record the outcome of a removal or release. No watch event follows, so the key is enqueued here."""
        key = submission.key
        retry_in_s = self.batcher.record(submission, outcome.error, now=self.clock())
        if retry_in_s > 0:
            log.warning("Could not remove or release a service", service=str(key), error=str(outcome.error))
        # After the caches have caught up, the next pass looks for objects that the engine's state did not have.
        self.requeue(key, retry_in_s or CACHE_LAG_S)
        self._report_withheld()

    def _report_withheld(self) -> None:
        """Enqueue the services whose success was withheld, if the bulk has ended."""
        for key in self.batcher.runs.take_withheld():
            self.requeue(key, 0.0)
