"""The flow of one service, top to bottom: key → observe → desired → may it? → plan → engine → facts → status.

A worker of `loop` calls `reconcile` with a key; nothing here blocks on the engine or on a replica: a change is handed
to the `Batcher`, questions to `checks`, and their answers enqueue the key again. The error's type decides what follows:
`SpecInvalid` waits for an edit, `NotYet` for the world, a failed batch is retried with back-off, an API error requeues
the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from automation.admission.quota import claim_of, claim_without_model
from automation.adoption.release import Release
from automation.approval.approval import Approval, modes_now
from automation.cache.cluster_cache import DIALECT, World
from automation.certificates.renewal import Certifying
from automation.drift.drift_watch import DriftWatch
from automation.engine.batches import Batcher
from automation.engine.port import ServiceOutcome
from automation.engine.runs import CACHE_LAG_S, QUIET_S, EngineRuns
from automation.engine.submissions import Asked, Submission
from automation.history.recorder import RevisionRecorder
from automation.reconcile.decision import Judged, terminating
from automation.reconcile.desire import Wanted
from automation.reconcile.llmkube_services import LlmkubeServices
from automation.reconcile.observe import Observed, memory_facts
from automation.reconcile.plan import make_plan
from automation.reconcile.removal import Removal
from automation.reconcile.services import Services
from automation.serving.checks import Checks
from automation.serving.pod_release import release_ready_pods
from automation.serving.readiness import Proofs, asked_pods, counted
from automation.serving.rollout import OPEN
from automation.serving.sleep import Sleep
from automation.status.event_log import outcome_entry
from automation.status.event_recorder import EventRecorder
from automation.status.writer import StatusWriter
from automation.telemetry.metrics import Metrics
from automation.telemetry.tracing import span
from components import naming
from components.ignored_fields import IgnoredFields
from components.render import RenderOptions
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.facts import Problem, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService

log = structlog.get_logger(__name__)

# A host without a Lease says nothing when it dies; look again when its heartbeat would have grown stale, as LLMKube.
HOSTED_RECHECK_S = 90.0
# By then the cache knows the namespace as the API server does, and the next pass holds back what this one would not.
MODE_LAG_S = 0.2


class Controller:
    """Reconciles services of all dialects. One instance per loop; `reconcile` runs in any worker thread."""

    def __init__(
        self,
        *,
        client: KubeClient,
        world: World,
        batcher: Batcher,
        checks: Checks,
        options: RenderOptions,
        recorder: EventRecorder,
        requeue: Callable[[ServiceKey, float], None],
        approval: Approval,
        sleep: Sleep | None = None,
        metrics: Metrics | None = None,
        history: RevisionRecorder | None = None,
        ignored: IgnoredFields | None = None,
        services: Mapping[str, Services] | None = None,
        certifying: Certifying | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._world = world
        self._batcher = batcher
        self._checks = checks
        self._options = options
        self._recorder = recorder
        self._requeue = requeue
        self._approval = approval
        self._sleep = sleep
        self._history = history
        self._clock = clock
        self._engine = EngineRuns(batcher.newest)
        self.services: Mapping[str, Services] = {DIALECT: LlmkubeServices(world, sleep), **(services or {})}
        self._certifying = certifying
        on_written = {DIALECT: metrics.on_service_status} if metrics is not None else {}
        self._statuses = {
            name: StatusWriter(
                client,
                each.kind,
                mark=each.status_mark,
                shared=each.shared_conditions,
                on_written=on_written.get(name),
                cached=each.get,
            )
            for name, each in self.services.items()
        }
        self._drift = DriftWatch(client, requeue=requeue, ignored=ignored)
        self._removal = Removal(client, batcher, self.services, forget=self._forget)
        self._release = Release(
            world, batcher, lambda key: self._statuses[key.dialect], forget=self._forget, requeue=requeue
        )

    # --- one pass -------------------------------------------------------------------------------------------------

    def reconcile(self, key: ServiceKey) -> None:
        """Bring one service closer to what its custom resource says, and say in its status how far it is."""
        services, now = self.services.get(key.dialect), self._clock()
        if services is None:
            # A newer release's.
            return
        if not services.ready():
            # Its kinds are being listed, cannot be listed, or are not served any more: nothing can be said of it.
            services.postpone(key)
            return
        cr = services.get(key.namespace, key.name)
        if cr is None or "deletionTimestamp" in cr["metadata"]:
            if cr is not None and services.is_ours(cr):
                services.tend(key, cr)
            self._removal.end(key, cr)
            return
        if not services.is_ours(cr):
            self._release.release_service(key, cr)
            return
        self._release.note_owned(key)
        cr = self._statuses[key.dialect].latest(cr)
        asked = services.asked(key, cr)
        if (quiet_for_s := self._engine.quiet_for_s(key, asked, now=now)) > 0:
            # The engine is at work on just what is asked for: its objects appear one by one, and its outcome brings
            # the key back.
            self._requeue(key, quiet_for_s)
            return
        with span("observe"):
            observed = services.observe(key, owner=cr["metadata"]["uid"])
        options = self._options.model_copy(update={"installed": self._world.installed()})
        with span("want"):
            wanted = services.want(key, cr, observed, options)
        for moved in wanted.hosts.moved if wanted.hosts is not None and wanted.mode == "Apply" else ():
            self._recorder.record(cr, type="Normal", reason="Moved", message=moved)
        if not self._approval.modes.is_frozen(key, wanted.mode):
            services.tend(key, cr)
        judged = self._judge(key, cr, wanted, observed, now=now)
        if self._certifying is not None and judged.may_act and not self._approval.modes.is_frozen(key, wanted.mode):
            wanted = self._certifying.certified(key, cr, wanted)
        complete = self._act(key, cr, wanted, judged, observed, asked=asked, now=now)
        if wanted.retry_after_s is not None:
            self._requeue(key, wanted.retry_after_s)
        facts = self._facts(key, cr, wanted, judged, observed, complete=complete, now=now)
        self._report(key, cr, wanted.desired, facts, now=now)
        if wanted.desired is not None and not self._approval.modes.is_frozen(key, wanted.mode):
            self._care(key, cr, wanted.desired, observed, judged.proofs, now=now)

    def _judge(self, key: ServiceKey, cr: Json, wanted: Wanted, observed: Observed, *, now: datetime) -> Judged:
        """Ask everything that has a say in whether, and in what form, the service is made now."""
        desired, rendered = wanted.desired, wanted.rendered
        if desired is None or rendered is None:
            problem = wanted.problem or terminating(key, observed)
            return Judged(problem=problem, quota=self._quota_without_model(key, cr, observed) if not problem else None)
        rendered, rollout = self._checks.rolled_back(key, cr, desired, rendered, observed)
        modes, still = self._approval.modes, self._approval.modes.is_frozen(key, wanted.mode)
        proofs, failing = self._checks.prove(key, cr, desired, observed, now=now, may_replace=not still)
        labels = self._world.namespace_labels(key.namespace)
        verdict = self._approval.policies.verdict(key, cr, desired, rendered, namespace_labels=labels)
        problem = wanted.problem or terminating(key, observed) or verdict.problem
        quota = self._world.quotas.decide(
            key,
            claim_of(
                desired,
                priority=observed.priority_value or 0,
                created=str(cr["metadata"].get("creationTimestamp", "")),
            ),
        )
        if problem is not None or quota is not None:
            modes.settled(key, wanted.mode)
        gate = OPEN
        if rollout.rolled_back is None and not modes.waits(key, cr, wanted.mode):
            gate = self._checks.gate(key, cr, desired, rendered, observed, now=now)
            rollout = rollout.model_copy(update={k: getattr(gate.facts, k) for k in ("deferred", "timed_out")})
        return Judged(
            rendered=rendered,
            quota=quota,
            rollout=rollout,
            proofs=proofs,
            problem=problem or self._engine.problem(key, rendered.fingerprint) or failing,
            advice=verdict.advice,
            may_act=problem is None and quota is None and gate.open,
        )

    def _quota_without_model(self, key: ServiceKey, cr: Json, observed: Observed) -> Problem | None:
        """Count the GPUs of an InferenceService that waits for its Model: they are asked for already."""
        if key.dialect != naming.LLMKUBE:
            return None
        created = str(cr["metadata"].get("creationTimestamp", ""))
        claim = claim_without_model(cr, priority=observed.priority_value or 0, created=created)
        return self._world.quotas.decide_without_model(key, claim)

    # --- acting ---------------------------------------------------------------------------------------------------

    def _act(
        self,
        key: ServiceKey,
        cr: Json,
        wanted: Wanted,
        judged: Judged,
        observed: Observed,
        *,
        asked: Asked,
        now: datetime,
    ) -> bool:
        """Carry out the plan; True when every object is there as rendered, but for accessories that were refused."""
        rendered, desired, modes = judged.rendered, wanted.desired, self._approval.modes
        if rendered is None or desired is None:
            return False
        last, known = self._engine.last(key), self.services[key.dialect].made_kinds()
        plan = make_plan(rendered, observed.live, last=last, known=known)
        refused = self._engine.refused(key, rendered.fingerprint)
        stands = plan.action == "none" or (plan.only_accessories and bool(refused))
        if not judged.may_act:
            return stands
        if plan.action == "sweep":
            if modes.holds(key, cr, wanted.mode, desired, rendered, observed.live):
                return False
            self._removal.sweep(key, plan.leftovers)
            return True
        if self._engine.awaited(key) == rendered.fingerprint:
            return stands
        drift = self._drift.consider(plan, rendered, observed.live, last=last, known=known, now=now)
        if drift.plan.action == "none":
            modes.settled(key, wanted.mode)
            return True
        held_s = self._engine.hold_off_s(
            key,
            rendered.fingerprint,
            now=now,
            certain=bool(drift.repair),
            only_accessories=drift.plan.only_accessories,
        )
        if (hold_off_s := max(held_s, drift.wait_s)) > 0:
            self._requeue(key, hold_off_s)
            return stands
        if modes.holds(key, cr, wanted.mode, desired, drift.rendered, observed.live):
            return stands
        log.debug("Submitted to the engine", why=drift.plan.why)
        self._drift.submitted(drift, now=now)
        with span("submit"):
            self._batcher.submit(drift.rendered, asked=asked, mode=wanted.mode, now=now)
        return stands

    def _forget(self, key: ServiceKey) -> None:
        """Have every part forget a service."""
        self._release.note_owned(key)
        self._statuses[key.dialect].forget(key.namespace, key.name)
        self.services[key.dialect].forget(key)
        if self._certifying is not None:
            self._certifying.forget(key)
        self._checks.forget(key)
        self._approval.forget(key)
        if self._sleep is not None:
            self._sleep.forget(key)
        self._world.quotas.release(key)
        self._world.registry.release(key)
        self._drift.forget(key)
        if self._history is not None:
            self._history.forget(key)
        self._engine.forget(key)

    def _care(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        observed: Observed,
        proofs: Proofs | None,
        *,
        now: datetime,
    ) -> None:
        """Look after what runs: pods that serve may be moved, pods that are too old go, a silent host is noticed."""
        if (hosting := desired.host_placement) is not None:
            if any(host is not None and not self._world.registry.has_lease(host) for host in hosting.hosts):
                self._requeue(key, HOSTED_RECHECK_S)
            return
        if desired.workloads is not None:
            return
        if self._sleep is not None:
            self._sleep.tend(key, self._statuses[key.dialect].latest(cr), desired, observed)
        release_ready_pods(self._client, desired, observed.pods)
        self._checks.retire(key, cr, desired, observed, proofs, now=now)

    # --- the engine's questions and answers -----------------------------------------------------------------------

    def withdrawn(self, namespace: str, submissions: tuple[Submission, ...]) -> frozenset[ServiceKey]:
        """Name the services that are in another mode than their pass knew; asked by the Batcher right before a run.

        Namespaces are watched apart from services: of "pause the namespace, then edit" the edit may arrive first.
        A service that is being deleted is in no mode. Raises EngineFailed when the API server cannot be asked.
        """
        crs = {each.key: self.services[each.key.dialect].get(each.key.namespace, each.key.name) for each in submissions}
        now_in = modes_now(self._client, namespace, crs, controller_class=self._world.controller_class)
        found = [each for each in submissions if now_in[each.key] != each.mode]
        for submission in found:
            if self._batcher.settle(submission):
                self._drift.settled(submission.key)
                self._requeue(submission.key, MODE_LAG_S)
        return frozenset(each.key for each in found)

    def on_outcome(self, submission: Submission, outcome: ServiceOutcome) -> None:
        """Record what the engine did; called by the Batcher, in a thread of its own."""
        key, now = submission.key, self._clock()
        if self._batcher.newest(key) is not submission:
            # Edited during the run: what is remembered of the service is about the newer submission, which waits.
            return
        if submission.rendered is None:
            self._parted(submission, outcome)
            return
        self._engine.finished(submission, outcome.error, now=now)
        self._batcher.settle(submission)
        repaired = self._drift.settled(key)
        services = self.services[key.dialect]
        cr = services.get(key.namespace, key.name)
        if cr is not None and (entry := outcome_entry(outcome, repaired)) is not None:
            self._recorder.record(cr, type=entry.type, reason=entry.reason, message=entry.message)
        if cr is not None and self._history is not None and cr["metadata"].get("generation") == submission.asked[1]:
            self._history.record(key, cr, services.references(cr), outcome, duration=now - submission.at)
        self._requeue(key, 0.0)

    def _parted(self, submission: Submission, outcome: ServiceOutcome) -> None:
        """Record how the removal or release of a service went. Nothing but the queue brings its key back."""
        key = submission.key
        retry_in_s = self._engine.removed(key, outcome.error)
        self._batcher.settle(submission)
        if retry_in_s > 0:
            log.warning("Could not remove or release a service", service=str(key), error=str(outcome.error))
        # Once the caches have followed, what the engine did not know is looked for.
        self._requeue(key, retry_in_s or CACHE_LAG_S)

    # --- reporting ------------------------------------------------------------------------------------------------

    def _facts(
        self,
        key: ServiceKey,
        cr: Json,
        wanted: Wanted,
        judged: Judged,
        observed: Observed,
        *,
        complete: bool,
        now: datetime,
    ) -> ServiceFacts:
        """Gather all that the status is made of."""
        desired = wanted.desired
        refused = self._engine.refused(key, judged.rendered.fingerprint) if judged.rendered is not None else ()
        facts = self.services[key.dialect].facts(
            key,
            cr,
            wanted,
            observed,
            # A further try for what was refused is no news of a service that stands.
            applying=self._batcher.busy(key) and not (refused and complete),
            objects_exist=complete and judged.rendered is not None and bool(judged.rendered.objects),
            problem=judged.problem,
            quota=judged.quota,
            now=now,
        )
        facts = counted(facts, asked_pods(desired, observed.pods), judged.proofs)
        if desired is None:
            return facts
        more: dict[str, object] = {
            "rollout": judged.rollout,
            "refused": refused,
            "drift": self._drift.problems(key, now=now),
            "advice": judged.advice,
            "pending": self._approval.modes.pending(key),
            "sleep": wanted.sleep,
            "memory": memory_facts(desired, observed),
            "acceleration": self._checks.acceleration(key, cr, desired, observed),
        }
        if wanted.sleep and desired.host_placement is not None:
            # Their endpoints are ready, because their hosts take requests for them; no replica runs.
            more["ready_replicas"] = 0
        return facts.model_copy(update=more)

    def _report(
        self, key: ServiceKey, cr: Json, desired: DesiredService | None, facts: ServiceFacts, *, now: datetime
    ) -> None:
        """Write the status, once and only if it says something new, and tell as Events what turned."""
        if facts.problem is None and not facts.rollout.timed_out and self._engine.quiet_for_s(key, now=now) > 0:
            self._requeue(key, QUIET_S)
            return
        services, before = self.services[key.dialect], cr.get("status")
        status = services.status(key, cr, desired, facts, now=now)
        if status == before or not self._statuses[key.dialect].write(cr, status):
            return
        was, phase = (before or {}).get("phase"), status.get("phase")
        if was != phase:
            log.info("Changed phase", before=was, after=phase, ready=f"{facts.ready_replicas}")
        for entry in services.story(cr, status, facts):
            self._recorder.record(cr, type=entry.type, reason=entry.reason, message=entry.message)
