"""The decision of a pass, as a table: from the facts of a service to actions, without any client."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automation.admission.quota import QuotaClaim
from automation.drift.drift_watch import Considered
from automation.drift.field_drift import ObjectDrift
from automation.engine.runs import CACHE_LAG_S, EngineRun
from automation.hosts.host_allocations import PlacementDecision as Placement
from automation.hosts.placement import PlacementRequest
from automation.hosts.registry import HostProposal
from automation.reconcile.actions import (
    ApplyObjects,
    ClearFailure,
    ClearPending,
    DeleteObjects,
    EnsureCertificate,
    EnsureEngineKey,
    PatchPod,
    RecordEvent,
    RequeueAfter,
    ReserveHosts,
    ReserveQuota,
    UpdateSleep,
    WithdrawQuota,
)
from automation.reconcile.decide import (
    CERTIFICATE_RECHECK_S,
    ENGINE_KEY_RECHECK_S,
    HOSTED_RECHECK_S,
    Case,
    Decision,
    decide_change,
    decide_preparation,
    decide_reservations,
    decide_upkeep,
)
from automation.reconcile.desire import Desired
from automation.reconcile.observe import Observed
from automation.reconcile.plan import LiveObject, ObjectName, Plan, make_plan
from components import naming
from components.rendered import RenderedObject, RenderedService
from program.desired.engines import SecretKey
from program.desired.facts import Problem, RefusedObject
from program.desired.keys import ServiceKey
from program.desired.service import HostPlacement
from program.desired.workloads import Certificate, PodSet, Workloads
from tests.support.builders import service

KEY = ServiceKey("llmkube", "prod", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = frozenset({"Deployment", "Service", "HorizontalPodAutoscaler"})
PROBLEM = Problem(reason="ApplyFailed", message="no")
APPLY = Plan("apply", "it is missing")


def rendered(*kinds: str) -> RenderedService:
    objects = [
        RenderedObject(kind.lower(), naming.TYPE_SERVICE, {"kind": kind, "metadata": {"name": "chat"}, "spec": kind})
        for kind in (*kinds, "Deployment")
    ]
    return RenderedService.of(KEY, tuple(objects))


SERVICE = rendered("Service")


def live(of: RenderedService, *more: str, applied: str | None = None) -> tuple[LiveObject, ...]:
    """The live objects of a service: all rendered ones, and more objects of these kinds."""
    hashes = {
        obj.kind: obj.manifest["metadata"].get("annotations", {}).get(naming.ANNOTATION_APPLIED_HASH, "")
        for obj in of.objects
    }
    found = [
        LiveObject(ObjectName(kind, "chat"), kind, hashed if applied is None or not hashed else applied)
        for kind, hashed in hashes.items()
    ]
    return (*found, *(LiveObject(ObjectName(kind, "chat"), kind) for kind in more))


def case(*objects: LiveObject, **fields: Any) -> Case:
    to_apply, run = fields.get("rendered", SERVICE), fields.get("run")
    last = run.as_last() if run is not None else None
    known: dict[str, Any] = {
        "key": KEY,
        "rendered": to_apply,
        "plan": make_plan(to_apply, objects, last=last, known=KNOWN) if to_apply is not None else None,
        "mode": "Apply",
        "asked": ("v1",),
        "may_act": True,
        "now": NOW,
    }
    return Case(**{**known, **fields})


def considered(plan: Plan = APPLY, **fields: Any) -> Considered:
    return Considered(plan, SERVICE, **fields)


def run(*, ago_s: float = 60.0, **fields: Any) -> EngineRun:
    return EngineRun(SERVICE.fingerprint, NOW - timedelta(seconds=ago_s), **fields)


AS_RENDERED = live(SERVICE)
LEFTOVER = LiveObject(ObjectName("HorizontalPodAutoscaler", "chat"), "HorizontalPodAutoscaler")
SWEEP = case(*live(SERVICE, "HorizontalPodAutoscaler"), run=run())
REPAIR = (ObjectDrift("Service", "chat", deleted=True),)


@pytest.mark.parametrize(
    ("known", "decision"),
    [
        pytest.param(case(rendered=None), Decision(), id="nothing is rendered: nothing is done"),
        pytest.param(case(may_act=False), Decision(), id="something objects: nothing is made"),
        pytest.param(
            case(*AS_RENDERED, may_act=False), Decision(complete=True), id="something objects to a service that stands"
        ),
        pytest.param(
            case(awaited=SERVICE.fingerprint), Decision(), id="the engine has this very request: nothing is submitted"
        ),
        pytest.param(case(), Decision(question="drift"), id="before a change the live objects are compared"),
        pytest.param(case(*AS_RENDERED), Decision(question="drift"), id="also where the caches show all as rendered"),
        pytest.param(
            case(*AS_RENDERED, drift=considered(Plan("none", "as rendered"))),
            Decision((ClearPending("Apply"),), complete=True),
            id="all is as rendered: a pending change is forgotten",
        ),
        pytest.param(
            case(*AS_RENDERED, drift=considered(Plan("none", "as rendered")), run=run(problem=PROBLEM)),
            Decision((ClearPending("Apply"), ClearFailure(SERVICE.fingerprint)), complete=True),
            id="all is as rendered: the last run failed after its writes",
        ),
        pytest.param(
            case(*AS_RENDERED, drift=considered(repair=REPAIR), held=False, run=run(problem=PROBLEM)),
            Decision((ApplyObjects(considered(repair=REPAIR), ("v1",), "Apply"),), complete=True),
            id="the failure of a repair stays until the repair succeeds",
        ),
        pytest.param(
            case(drift=considered()), Decision(question="approval"), id="a change asks whether it waits for approval"
        ),
        pytest.param(case(drift=considered(), held=True), Decision(), id="a change that waits for approval"),
        pytest.param(
            case(drift=considered(), held=False),
            Decision((ApplyObjects(considered(), ("v1",), "Apply"),)),
            id="a change is submitted",
        ),
        pytest.param(
            case(drift=considered(), run=run(problem=PROBLEM, retry_at=NOW + timedelta(seconds=7))),
            Decision((RequeueAfter(7.0),)),
            id="a change that failed waits for its back-off",
        ),
        pytest.param(
            case(drift=considered(), held=False, run=run(problem=PROBLEM, retry_at=NOW)),
            Decision((ApplyObjects(considered(), ("v1",), "Apply"),)),
            id="after the back-off it is submitted again",
        ),
        pytest.param(
            case(drift=considered(), run=run(ago_s=0.1)),
            Decision((RequeueAfter(CACHE_LAG_S),)),
            id="applied a moment ago: the caches may be behind",
        ),
        pytest.param(
            case(drift=considered(repair=REPAIR), held=False, run=run(ago_s=0.1)),
            Decision((ApplyObjects(considered(repair=REPAIR), ("v1",), "Apply"),)),
            id="drift that was read from the API server is repaired at once",
        ),
        pytest.param(
            case(drift=considered(repair=REPAIR, wait_s=30.0)),
            Decision((RequeueAfter(30.0),)),
            id="a contested field is put back after a pause",
        ),
        pytest.param(SWEEP, Decision(question="approval"), id="leftovers ask for approval as well"),
        pytest.param(replace(SWEEP, held=True), Decision(), id="leftovers that wait for approval stay"),
        pytest.param(
            replace(SWEEP, held=False),
            Decision((DeleteObjects((LEFTOVER,)),), complete=True),
            id="objects that the engine does not know are deleted",
        ),
    ],
)
def test_a_change(known: Case, decision: Decision) -> None:
    assert decide_change(known) == decision


def test_a_service_stands_without_an_accessory_that_was_refused() -> None:
    whole = rendered("HorizontalPodAutoscaler", "Service")
    there = live(SERVICE, applied=whole.incomplete_fingerprint)
    refused = RefusedObject(kind="HorizontalPodAutoscaler", name="chat", reason="Invalid", message="no")
    last = EngineRun(whole.fingerprint, NOW - timedelta(seconds=60), refused=(refused,), retry_at=NOW)
    held_back = case(*there, rendered=whole, run=last, may_act=False)
    assert decide_change(held_back).complete
    assert not decide_change(case(*there, rendered=whole, may_act=False)).complete, "nothing was refused: it is missing"


def test_certificates_are_issued_before_the_pods_that_serve_with_them() -> None:
    desired = with_certificate()
    wanted = Desired(desired)
    assert desired.workloads is not None and desired.workloads.certificate is not None
    expected = (RequeueAfter(CERTIFICATE_RECHECK_S), EnsureCertificate(desired.workloads.certificate, desired))
    assert decide_preparation(wanted, may_act=True, frozen=False) == expected
    assert decide_preparation(wanted, may_act=False, frozen=False) == ()
    assert decide_preparation(wanted, may_act=True, frozen=True) == ()
    suspended = replace(wanted, service=desired.model_copy(update={"suspended": True}))
    assert decide_preparation(suspended, may_act=True, frozen=False) == ()
    assert decide_preparation(Desired(service()), may_act=True, frozen=False) == ()
    assert decide_preparation(Desired(), may_act=True, frozen=False) == ()


def test_the_key_of_an_engine_is_made_before_its_pods() -> None:
    key = SecretKey(name="chat-engine-key", key="api-key")
    desired = service().model_copy(update={"engine_key": key, "api_key": key})
    expected = (RequeueAfter(ENGINE_KEY_RECHECK_S), EnsureEngineKey(desired))
    assert decide_preparation(Desired(desired), may_act=True, frozen=False) == expected
    assert decide_preparation(Desired(desired), may_act=True, frozen=True) == ()
    suspended = desired.model_copy(update={"suspended": True})
    assert decide_preparation(Desired(suspended), may_act=True, frozen=False) == ()


def with_certificate() -> Any:
    certificate = Certificate(secret="chat-tls", dns_names=("chat.prod.svc",))
    main = PodSet.model_construct(part="main", name="chat")
    return service(workloads=Workloads.model_construct(pods=(main,), certificate=certificate))


def test_a_replica_that_moved_is_an_event() -> None:
    wanted = Desired(hosts=proposal(moved=("replica 0 moved from a to b",)))
    moved = RecordEvent("Normal", "Moved", "replica 0 moved from a to b")
    assert decide_reservations(wanted, None, admitted=True) == (moved,)
    assert decide_reservations(replace(wanted, mode="Paused"), None, admitted=True) == ()
    assert decide_reservations(Desired(), None, admitted=True) == ()


def proposal(**decision: Any) -> HostProposal:
    return HostProposal(PlacementRequest(), Placement(**decision))


def test_hosts_are_reserved_where_the_reservation_changes() -> None:
    changed = proposal(hosts=("a",), changes=True)
    assert decide_reservations(Desired(hosts=changed), None, admitted=True) == (ReserveHosts(changed),)
    assert decide_reservations(Desired(hosts=proposal(hosts=("a",))), None, admitted=True) == ()
    assert decide_reservations(Desired(service()), None, admitted=True) == ()


def test_a_service_that_cannot_be_applied_waits_for_no_quota() -> None:
    assert decide_reservations(Desired(problem=PROBLEM), None, admitted=True) == (WithdrawQuota(),)


def test_a_claim_is_reserved_with_what_the_review_found() -> None:
    claim = QuotaClaim(gpus=1)
    of_pods = (ReserveQuota(claim, without_model=False, admitted=True),)
    assert decide_reservations(Desired(service()), claim, admitted=True) == of_pods
    without_model = (ReserveQuota(claim, without_model=True, admitted=False),)
    assert decide_reservations(Desired(), claim, admitted=False) == without_model


def test_what_runs_is_looked_after() -> None:
    protected = {"metadata": {"annotations": {naming.ANNOTATION_DO_NOT_DISRUPT: "true"}}, "ready": True}
    starting = {**protected, "ready": False}
    there = Observed(live=(), claim_exists=True, deployment=None, pods=(protected, starting))
    unprotected = PatchPod(protected, {naming.ANNOTATION_DO_NOT_DISRUPT: None})
    assert decide_upkeep(service(), there, silent_host=False) == (UpdateSleep(service(), there), unprotected)
    on_hosts = service(host_placement=HostPlacement(host="a"))
    assert decide_upkeep(on_hosts, there, silent_host=False) == ()
    assert decide_upkeep(on_hosts, there, silent_host=True) == (RequeueAfter(HOSTED_RECHECK_S),)
    assert decide_upkeep(with_certificate(), there, silent_host=False) == ()
