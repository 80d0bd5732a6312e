"""Collects the objections to a change: namespace, policies, quotas, replicas, earlier failures of a template.

`Reviewer.review` changes nothing. `act` reserves the quota that the review found. The pass is repeated when another
service took the last GPU meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from automation.admission.quota import QuotaClaim, claim_of, claim_without_model
from automation.approval.approval import Approval
from automation.cache.cluster_cache import ClusterCache
from automation.drift.drift_watch import DriftWatch
from automation.reconcile.decide import Case, Question
from automation.reconcile.desire import Desired
from automation.reconcile.observe import Observed
from automation.serving.checks import Checks
from automation.serving.replicas import ReplicaReview
from automation.serving.rollout import OPEN
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.facts import Problem, RolloutFacts
from program.desired.keys import ServiceKey
from program.dialects.status.conditions import Reason


@dataclass(frozen=True)
class Review:
    """The objections to a change of a service, and the state of its replicas."""

    rendered: RenderedService | None = None
    """The objects to apply: as desired, or with the last pod template that served."""
    quota: Problem | None = None
    """The quota that leaves no room."""
    claim: QuotaClaim | None = None
    """The service's claim on quotas. None when it is unknown, or when the service keeps its reservation."""
    rollout: RolloutFacts = field(default_factory=RolloutFacts)
    replicas: ReplicaReview = field(default_factory=ReplicaReview)
    problem: Problem | None = None
    """The reason why nothing may be applied."""
    advice: tuple[Problem, ...] = ()
    may_act: bool = False
    """A change may be applied now."""


@dataclass(frozen=True)
class Reviewer:
    """One per loop; thread-safe for different services."""

    cluster: ClusterCache
    checks: Checks
    approval: Approval
    drift: DriftWatch

    def review(self, key: ServiceKey, cr: Json, desired: Desired, observed: Observed, *, now: datetime) -> Review:
        """Review a pass's change. Raises ApiError."""
        service, rendered = desired.service, desired.rendered
        if service is None or rendered is None:
            if problem := desired.problem or terminating(key, observed):
                return Review(problem=problem)
            return self._review_without_model(key, cr, observed)
        rendered, rollout = self.checks.apply_rollback(key, cr, service, rendered, observed)
        modes = self.approval.modes
        frozen = desired.mode != "Apply" and modes.is_frozen(key, desired.mode)
        replicas = self.checks.review_replicas(key, cr, service, observed, now=now, may_replace=not frozen)
        labels = self.cluster.current_labels(key.namespace)
        verdict = self.approval.policies.verdict(key, cr, service, rendered, namespace_labels=labels)
        problem = desired.problem or terminating(key, observed) or verdict.problem
        claim = claim_of(service, rendered, priority=observed.priority_value or 0, created=_created(cr))
        quota = self.cluster.quotas.propose(key, claim)
        if problem is not None or quota is not None:
            modes.settled(key, desired.mode)
        gate = OPEN
        if rollout.rolled_back is None and not modes.waits(key, cr, desired.mode):
            gate = self.checks.gate(key, cr, service, rendered, observed, now=now)
            rollout = rollout.model_copy(update={k: getattr(gate.facts, k) for k in ("deferred", "timed_out")})
        return Review(
            rendered=rendered,
            quota=quota,
            claim=claim,
            rollout=rollout,
            replicas=replicas,
            problem=problem,
            advice=verdict.advice,
            may_act=problem is None and quota is None and gate.open,
        )

    def answer(
        self, question: Question, cr: Json, desired: Desired, observed: Observed, case: Case, *, known: frozenset[str]
    ) -> Case:
        """Answer the question of a decision by requests to the API server. Raises ApiError.

        `known` are the kinds whose objects the caches hold.
        """
        assert case.rendered is not None
        assert case.plan is not None
        assert desired.service is not None
        live = observed.live
        if question == "drift":
            last = case.run.as_last() if case.run is not None else None
            drift = self.drift.consider(case.plan, case.rendered, live, last=last, known=known, now=case.now)
            return replace(case, drift=drift)
        rendered = case.drift.rendered if case.drift is not None else case.rendered
        held = self.approval.modes.holds(case.key, cr, case.mode, desired.service, rendered, live)
        return replace(case, held=held)

    def _review_without_model(self, key: ServiceKey, cr: Json, observed: Observed) -> Review:
        """Count the GPUs of an InferenceService that waits for its Model: it requests them already."""
        claim = claim_without_model(cr, priority=observed.priority_value or 0, created=_created(cr))
        return Review(quota=self.cluster.quotas.propose(key, claim, without_model=True), claim=claim)


def terminating(key: ServiceKey, observed: Observed) -> Problem | None:
    """Return a problem if the namespace is being deleted, because nothing can be created in it; else None."""
    if not observed.namespace_terminating:
        return None
    message = f"namespace `{key.namespace}` is being deleted, so no object can be created in it"
    return Problem(reason=Reason.NAMESPACE_TERMINATING, message=message)


def _created(cr: Json) -> str:
    return str(cr["metadata"].get("creationTimestamp", ""))
