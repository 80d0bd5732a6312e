"""One pass over one service: observe → desire → review → decide → act → report.

A worker of `loop` calls `reconcile` with a key. Nothing here waits for the engine or for a replica: the engine takes a
request, and its outcome enqueues the key again. The type of an error decides what happens next: `SpecInvalid` waits for
an edit, `NotYet` for another object, a failed run is repeated with back-off, and an ApiError repeats the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from automation.adoption.release import Release
from automation.approval.approval import Approval
from automation.cache.cluster_cache import ClusterCache
from automation.engine.batches import Batcher
from automation.engine.runs import EngineState
from automation.engine.submissions import Asked
from automation.reconcile.act import Actor
from automation.reconcile.decide import Case, decide_change, decide_preparation, decide_reservations, decide_upkeep
from automation.reconcile.desire import Desired
from automation.reconcile.plan import make_plan
from automation.reconcile.remover import Remover
from automation.reconcile.report import Pass, Reporter
from automation.reconcile.review import Reviewer
from automation.reconcile.services import Services
from automation.serving.checks import Checks
from automation.status.writer import StatusWriter
from automation.telemetry.tracing import span
from components.render import RenderOptions
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey


@dataclass(frozen=True)
class Controller:
    """Reconciles services of all dialects. One per loop; any worker thread may call `reconcile`."""

    services: Mapping[str, Services]
    statuses: Mapping[str, StatusWriter]
    cluster: ClusterCache
    options: RenderOptions
    batcher: Batcher
    approval: Approval
    checks: Checks
    reviewer: Reviewer
    actor: Actor
    reporter: Reporter
    remover: Remover
    release: Release
    requeue: Callable[[ServiceKey, float], None]
    recheck: Callable[[ServiceKey, float], None]
    """Enqueue a service after some seconds if the engine still works on it then."""
    clock: Callable[[], datetime]

    def reconcile(self, key: ServiceKey) -> None:
        """Do one pass: bring the service closer to its custom resource, and write the progress into its status."""
        services, now = self.services.get(key.dialect), self.clock()
        if services is None:
            # A newer version of Herdsman has this dialect.
            return
        if not services.ready():
            # The caches of its kinds are not filled yet, or the API server does not serve the kinds any more.
            services.postpone(key)
            return
        cr = services.get(key.namespace, key.name)
        if cr is None or "deletionTimestamp" in cr["metadata"]:
            if cr is not None and services.is_ours(cr):
                self.actor.act(key, cr, services.patches(key, cr), now=now)
            self.remover.end(key, cr)
            return
        if not services.is_ours(cr):
            self.release.release_service(key, cr)
            return
        self.remover.drop_earlier(key, cr)
        self.release.note_owned(key)
        cr = self.statuses[key.dialect].latest(cr)
        asked, engine = services.asked(key, cr), self.batcher.runs.state(key, is_new=not cr.get("status"))
        if (quiet_for_s := engine.quiet_for_s(asked, now=now)) > 0:
            # The engine is applying exactly this version. Its objects appear one by one, and its outcome enqueues the
            # key again, so a pass in between would only write statuses.
            self.recheck(key, quiet_for_s)
            return
        self._reconcile(services, key, cr, asked, engine, now=now)

    def _reconcile(
        self, services: Services, key: ServiceKey, cr: Json, asked: Asked, engine: EngineState, *, now: datetime
    ) -> None:
        with span("observe"):
            observed = services.observe(key, owner=cr["metadata"]["uid"])
        with span("want"):
            options = self.options.model_copy(update={"installed": self.cluster.installed()})
            desired = services.desire(key, cr, observed, options)
        if desired.service is not None and desired.service.engine_key is None:
            self.actor.key_ages.drop_service(key)
        if not self._is_frozen(key, desired):
            self.actor.act(key, cr, services.patches(key, cr), now=now)

        review = self.reviewer.review(key, cr, desired, observed, now=now)
        may_change = review.rendered is not None and review.problem is None and review.quota is None
        self.actor.sleep.turns.set_changeable(key, may_change)
        reservations = decide_reservations(desired, review.claim, admitted=review.quota is None)
        if self.actor.act(key, cr, reservations, now=now).outdated:
            self.requeue(key, 0.0)
            return
        frozen = self._is_frozen(key, desired)
        before = (*review.replicas.actions, *decide_preparation(desired, may_act=review.may_act, frozen=frozen))
        acted = self.actor.act(key, cr, before, now=now)
        desired = replace(desired, unsupported=(*desired.unsupported, *acted.unsupported))

        rendered, run, known = review.rendered, engine.last_run, services.made_kinds()
        last = run.as_last() if run is not None else None
        case = Case(
            key=key,
            rendered=rendered,
            plan=make_plan(rendered, observed.live, last=last, known=known) if rendered is not None else None,
            mode=desired.mode,
            asked=(*asked[:-1], desired.versions),
            may_act=review.may_act,
            now=now,
            run=run,
            awaited=engine.pending_fingerprint,
        )
        while (decision := decide_change(case)).question is not None:
            case = self.reviewer.answer(decision.question, cr, desired, observed, case, known=known)
        self.actor.act(key, cr, decision.actions, now=now)
        if desired.retry_after_s is not None:
            self.requeue(key, desired.retry_after_s)
        self.reporter.report(Pass(key, cr, desired, observed, review, acted, decision.complete, now))

        if desired.service is not None and not self._is_frozen(key, desired):
            upkeep = decide_upkeep(desired.service, observed, silent_host=self._has_silent_host(desired))
            if desired.service.host_placement is None and desired.service.workloads is None:
                expired = self.checks.expired_pod(key, desired.service, observed, review.replicas.proofs, now=now)
                upkeep = (*upkeep, *expired)
            self.actor.act(key, self.statuses[key.dialect].latest(cr), upkeep, now=now)

    def _is_frozen(self, key: ServiceKey, desired: Desired) -> bool:
        return desired.mode != "Apply" and self.approval.modes.is_frozen(key, desired.mode)

    def _has_silent_host(self, desired: Desired) -> bool:
        """Return whether a replica runs on a host without a Lease."""
        placement = desired.service.host_placement if desired.service is not None else None
        hosts = placement.hosts if placement is not None else ()
        return any(host is not None and not self.cluster.registry.has_lease(host) for host in hosts)
