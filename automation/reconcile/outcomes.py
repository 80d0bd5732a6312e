"""Answers the engine: whether a change may still be made right before its run, and what follows from its outcome."""

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

# By then the cache knows the namespace as the API server does, and the next pass holds back what this one would not.
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
        """Name the services that are in another mode than their pass knew; called right before a run.

        Namespaces are watched apart from services: of "pause the namespace, then edit" the edit may arrive first.
        A service that is being deleted is in no mode. Raises EngineFailed when the API server cannot be asked.
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
        """Record what the engine did with one service, and enqueue it."""
        key, now = submission.key, self.clock()
        if self.batcher.newest(key) is not submission:
            # Edited during the run: what is remembered of the service is about the newer submission, which waits.
            return
        if submission.rendered is None:
            self._record_removal(submission, outcome)
            return
        self.batcher.record(submission, outcome.error, now=now)
        repaired = self.drift.settled(key)
        services = self.services[key.dialect]
        cr = services.get(key.namespace, key.name)
        if cr is not None and (entry := outcome_entry(outcome, repaired)) is not None:
            self.recorder.record(cr, type=entry.type, reason=entry.reason, message=entry.message)
        if cr is not None and cr["metadata"].get("generation") == submission.asked[1]:
            self.history.record(key, cr, services.references(key), outcome, duration=now - submission.at)
        self.requeue(key, 0.0)

    def _record_removal(self, submission: Submission, outcome: ServiceOutcome) -> None:
        """Record how the removal or release of a service went. Nothing but the queue brings its key back."""
        key = submission.key
        retry_in_s = self.batcher.record(submission, outcome.error, now=self.clock())
        if retry_in_s > 0:
            log.warning("Could not remove or release a service", service=str(key), error=str(outcome.error))
        # Once the caches have followed, what the engine did not know is looked for.
        self.requeue(key, retry_in_s or CACHE_LAG_S)
