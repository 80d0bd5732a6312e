"""Decides which actions a pass takes. Pure; `act` carries the actions out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from automation.admission.quota import QuotaClaim
from automation.approval.modes import Mode
from automation.drift.drift_watch import Considered
from automation.engine.runs import EngineRun, hold_off_s, problem_of_run, refused_by
from automation.engine.submissions import Asked
from automation.reconcile.actions import (
    Action,
    ApplyObjects,
    ClearFailure,
    ClearPending,
    DeleteObjects,
    EnsureCertificate,
    EnsureEngineKey,
    RecordEvent,
    RequeueAfter,
    ReserveHosts,
    ReserveQuota,
    UpdateSleep,
    WithdrawQuota,
)
from automation.reconcile.desire import Desired
from automation.reconcile.observe import Observed
from automation.reconcile.plan import Plan
from automation.serving.pod_eviction import unprotect_ready_pods
from components.rendered import RenderedService
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService

# Nothing reports the death of a host without a Lease. The pass after this time sees that the heartbeat is stale;
# LLMKube uses the same time.
HOSTED_RECHECK_S = 90.0
CERTIFICATE_RECHECK_S = 12 * 3600.0
"""An idle service is reconciled this often, so that its certificate is renewed in time."""
ENGINE_KEY_RECHECK_S = 600.0
"""The same for a service with an engine's key, so that a deleted key is made again."""

Question = Literal["drift", "approval"]


@dataclass(frozen=True)
class Case:
    """All facts on which the decision about a service's objects depends."""

    key: ServiceKey
    rendered: RenderedService | None
    """The objects to apply; None while they are not known."""
    plan: Plan | None
    """The difference between them and the live objects."""
    mode: Mode
    asked: Asked
    may_act: bool
    """No problem, quota or deferred rollout prevents a change."""
    now: datetime
    run: EngineRun | None = None
    """The last run of the engine for the service."""
    awaited: str = ""
    """The fingerprint of the request without an outcome; empty when there is none."""
    drift: Considered | None = None
    """Fields that others changed; None until the question `drift` is answered."""
    held: bool | None = None
    """Whether the change waits for approval; None until the question `approval` is answered."""


@dataclass(frozen=True)
class Decision:
    """The actions on the objects of a service, or a question that must be answered before the decision."""

    actions: tuple[Action, ...] = ()
    complete: bool = False
    """Every object exists as rendered, except accessories that the API server refused."""
    question: Question | None = None
    """Must be answered before the decision. The answer costs requests to the API server."""


def decide_change(case: Case) -> Decision:
    """Decide whether the engine applies the objects, whether leftovers are deleted, or whether nothing is done."""
    rendered, plan = case.rendered, case.plan
    if rendered is None or plan is None:
        return Decision()
    stands = plan.action == "none" or (plan.only_accessories and bool(refused_by(case.run, rendered.fingerprint)))
    if not case.may_act:
        return Decision(complete=stands)
    if plan.action == "sweep":
        if case.held is None:
            return Decision(question="approval")
        return Decision() if case.held else Decision((DeleteObjects(plan.leftovers),), complete=True)
    if case.awaited == rendered.fingerprint:
        return Decision(complete=stands)
    if case.drift is None:
        return Decision(question="drift")
    if case.drift.plan.action == "none":
        failed = problem_of_run(case.run, rendered.fingerprint) is not None
        over = (ClearFailure(rendered.fingerprint),) if failed else ()
        return Decision((ClearPending(case.mode), *over), complete=True)
    held_s = hold_off_s(
        case.run,
        rendered.fingerprint,
        now=case.now,
        certain=bool(case.drift.repair),
        only_accessories=case.drift.plan.only_accessories,
    )
    if (wait_s := max(held_s, case.drift.wait_s)) > 0:
        return Decision((RequeueAfter(wait_s),), complete=stands)
    if case.held is None:
        return Decision(question="approval")
    if case.held:
        return Decision(complete=stands)
    return Decision((ApplyObjects(case.drift, case.asked, case.mode),), complete=stands)


def decide_preparation(desired: Desired, *, may_act: bool, frozen: bool) -> tuple[Action, ...]:
    """Decide which Secrets must exist before the objects are applied. Nothing while the service is `frozen`."""
    service = desired.service
    if not may_act or frozen or service is None or service.suspended:
        return ()
    if service.engine_key is not None:
        return RequeueAfter(ENGINE_KEY_RECHECK_S), EnsureEngineKey(service)
    workloads = service.workloads
    if workloads is None or workloads.certificate is None:
        return ()
    return RequeueAfter(CERTIFICATE_RECHECK_S), EnsureCertificate(workloads.certificate, service)


def decide_reservations(desired: Desired, claim: QuotaClaim | None, *, admitted: bool) -> tuple[Action, ...]:
    """Decide which hosts and which quota are reserved, with an Event for each replica that moves to another host.

    `claim` is what the service uses of quotas, None if its spec does not say that. `admitted` is whether the quotas
    have room for it.
    """
    actions: list[Action] = []
    if desired.hosts is not None and desired.hosts.decision.changes:
        actions.append(ReserveHosts(desired.hosts, desired.service))
    if desired.hosts is not None and desired.mode == "Apply":
        actions += [RecordEvent("Normal", "Moved", message) for message in desired.hosts.decision.moved]
    if claim is not None:
        actions.append(ReserveQuota(claim, without_model=desired.service is None, admitted=admitted))
    elif desired.problem is not None:
        actions.append(WithdrawQuota())
    return tuple(actions)


def decide_upkeep(service: DesiredService, observed: Observed, *, silent_host: bool) -> tuple[Action, ...]:
    """Decide what is done for running replicas: whether the service sleeps, and which pods may be moved.

    `silent_host` is whether a replica runs on a host without a Lease.
    """
    if service.host_placement is not None:
        return (RequeueAfter(HOSTED_RECHECK_S),) if silent_host else ()
    if service.workloads is not None:
        return ()
    return UpdateSleep(service, observed), *unprotect_ready_pods(service, observed.pods)
