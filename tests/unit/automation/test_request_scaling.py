"""The replicas of services that are scaled by requests, pass by pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from automation.reconcile.observe import Observed
from automation.serving.request_scaling import UNKNOWN_S, RequestScaler, Scaled
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.request_report import Counts, Report
from program.desired.service import DesiredService, HostPlacement, RequestScaling
from tests.support.builders import service

KEY = ServiceKey("llmkube", "ns", "svc")
RULES = RequestScaling(min_replicas=1, max_replicas=4, target=2, idle_timeout_s=60.0)
NEW: Json = {"metadata": {"name": "svc", "namespace": "ns"}}
SLEEPS: Json = {**NEW, "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Asleep"}]}}


def observed(replicas: int | None = None, *, ready: int = 0) -> Observed:
    live = None if replicas is None else {"spec": {"replicas": replicas}, "status": {"readyReplicas": ready}}
    return Observed(live=(), claim_exists=False, deployment=live, pods=())


def every(_: ServiceKey) -> bool:
    return True


class World:
    """A loop with a gateway, by a clock of the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.requeued: list[float] = []
        self.has_metrics_api: bool | None = False
        self.scaler = RequestScaler(
            cast(KubeClient, None),
            requeue=lambda _, after_s: self.requeued.append(after_s),
            has_metrics_api=lambda: self.has_metrics_api,
            clock=lambda: self.now,
        )
        self._renewals = 0

    def report(self, *counts: int) -> None:
        self._renewals += 1
        lease = Report("p", {str(KEY): Counts(*counts)}).lease("gateway", renewed=f"t{self._renewals}")
        self.scaler.reports.observe("gateway", lease)

    def scaled(
        self,
        seen: Observed,
        cr: Json = NEW,
        *,
        desired: DesiredService | None = None,
        may_change: bool = True,
        by_agent: bool = False,
    ) -> Scaled | None:
        wanted = service(by_requests=RULES) if desired is None else desired
        return self.scaler.scaled(KEY, cr, wanted, seen, may_change=may_change, by_agent=by_agent)


@pytest.fixture
def world() -> World:
    return World()


def test_a_service_sleeps_and_wakes(world: World) -> None:
    assert world.scaled(observed()) == Scaled(1)
    assert world.requeued == [UNKNOWN_S]
    world.report(0, 0, 3)
    world.scaled(observed(1, ready=1))
    for _ in range(6):
        world.now += 10
        world.report(0, 0, 3)
    assert world.scaled(observed(1, ready=1)) == Scaled(0, "asleep")
    assert world.scaled(observed(0)) == Scaled(0, "asleep")
    world.requeued.clear()
    world.report(0, 3, 6)
    assert world.requeued == [0.0]
    assert world.scaled(observed(0)) == Scaled(2, "waking")
    assert world.scaled(observed(2, ready=1)) == Scaled(2)


def test_a_new_loop_goes_on_where_the_earlier_one_ended(world: World) -> None:
    assert world.scaled(observed(0), SLEEPS) == Scaled(0, "asleep")
    assert World().scaled(observed(3, ready=3)) == Scaled(3)
    assert World().scaled(observed(9, ready=9)) == Scaled(4), "the bounds were edited meanwhile"


def test_a_new_loop_stops_no_replica_before_fewer_were_enough_for_the_window(world: World) -> None:
    world.report(1, 0, 1)
    assert world.scaled(observed(4, ready=4)) == Scaled(4)
    world.now += RULES.down_window_s + 1
    world.report(1, 0, 1)
    assert world.scaled(observed(4, ready=4)) == Scaled(1)


def test_a_new_loop_keeps_the_processes_on_hosts(world: World) -> None:
    processes: dict[int, Json] = {n: {"status": {"ready": True}} for n in range(3)}
    seen = Observed(live=(), claim_exists=False, deployment=None, pods=(), host_processes=processes)
    desired = service(by_requests=RULES, host_placement=HostPlacement(selector={"room": "1"}))
    assert world.scaled(seen, desired=desired, by_agent=True) == Scaled(3)
    world.report(7, 0, 7)
    assert world.scaled(seen, desired=desired, by_agent=True) == Scaled(4)


def test_a_change_that_must_wait_keeps_the_number(world: World) -> None:
    world.report(8, 0, 8)
    assert world.scaled(observed(1, ready=1), may_change=False) == Scaled(1)
    assert world.scaled(observed(1, ready=1)) == Scaled(4)


def test_an_agent_puts_its_processes_to_sleep_itself(world: World) -> None:
    world.report(0, 0, 0)
    world.scaled(observed(1, ready=1), by_agent=True)
    world.now += 15
    world.report(0, 0, 0)
    world.now += 15
    world.report(0, 0, 0)
    rules = RULES.model_copy(update={"idle_timeout_s": 20.0})
    desired = service(by_requests=rules)
    assert world.scaled(observed(1, ready=1), desired=desired, by_agent=True) == Scaled(1)
    assert world.scaled(observed(1, ready=1), desired=desired) == Scaled(0, "asleep")


@pytest.mark.parametrize(
    "fields", [{}, {"by_requests": RULES, "suspended": True}, {"by_requests": RULES, "replicas": 0}]
)
def test_other_services_and_stopped_ones_are_left_alone(world: World, fields: dict[str, Any]) -> None:
    world.report(0, 5, 5)
    assert world.scaled(observed(1), desired=service(**fields)) is None
    world.requeued.clear()
    world.report(0, 0, 5)
    assert world.requeued == []


def test_only_reports_that_may_change_the_number_enqueue_the_service(world: World) -> None:
    world.scaled(observed(1))
    world.report(0, 0, 0)
    world.scaled(observed(1, ready=1))
    world.requeued.clear()
    world.report(0, 0, 1)
    assert world.requeued == []
    world.report(1, 0, 2)
    world.report(1, 1, 3)
    world.report(0, 0, 3)
    assert world.requeued == [0.0, 0.0, 0.0]


def test_an_autoscaler_sets_the_number_while_the_service_is_awake(world: World) -> None:
    world.has_metrics_api = True
    world.report(5, 0, 5)
    assert world.scaled(observed()) == Scaled(3), "the loop makes the first replicas"
    assert world.scaled(observed(2, ready=1)) == Scaled(2, by_autoscaler=True)
    assert world.scaled(observed(4, ready=2)) == Scaled(4, by_autoscaler=True)
    assert world.scaler.values("ns", every) == {KEY: 5}
    assert world.scaler.values("ns", lambda _: False) == {}
    world.report(0, 0, 5)
    assert world.scaled(observed(4, ready=4)) == Scaled(4, by_autoscaler=True)
    for _ in range(6):
        world.now += 10
        world.report(0, 0, 5)
    assert world.scaled(observed(4, ready=4)) == Scaled(0, "asleep")
    assert world.scaled(observed(0)) == Scaled(0, "asleep")
    world.report(0, 3, 8)
    assert world.scaled(observed(0)) == Scaled(2, "waking")
    assert world.scaled(observed(2)) == Scaled(2, "waking"), "the autoscaler comes when a replica is ready"
    assert world.scaled(observed(2, ready=1)) == Scaled(2, by_autoscaler=True)
    world.has_metrics_api = False
    assert world.scaled(observed(3, ready=3)) == Scaled(2), "another adapter took the API over"


def test_a_service_keeps_its_autoscaler_while_nobody_knows_who_serves_the_metrics(world: World) -> None:
    world.has_metrics_api = None
    world.report(1, 0, 1)
    seen = observed(3, ready=3)
    assert world.scaled(replace(seen, autoscaler={"kind": "HorizontalPodAutoscaler"})) == Scaled(3, by_autoscaler=True)
    assert world.scaled(seen) == Scaled(3)


def test_a_silent_gateway_keeps_the_number_that_an_autoscaler_chose(world: World) -> None:
    world.has_metrics_api = True
    world.report(1, 0, 1)
    world.scaled(observed(3, ready=3))
    assert world.scaled(observed(3, ready=3)) == Scaled(3, by_autoscaler=True)
    assert world.scaler.values("ns", every) == {KEY: 1}
    world.now += 60
    assert world.scaler.values("ns", every) == {KEY: 6}, "three replicas with a target of two"
    assert world.scaler.values("other", every) == {}


def test_the_loop_scales_on_hosts_and_without_a_target_itself(world: World) -> None:
    world.has_metrics_api = True
    world.report(1, 0, 1)
    fixed = service(by_requests=RULES.model_copy(update={"target": None}))
    assert world.scaled(observed(1, ready=1), desired=fixed) == Scaled(1)
    seen = Observed(
        live=(), claim_exists=False, deployment=None, pods=(), host_processes={0: {"status": {"ready": True}}}
    )
    placed = service(by_requests=RULES, host_placement=HostPlacement(selector={"room": "1"}))
    assert world.scaled(seen, desired=placed, by_agent=True) == Scaled(1)
