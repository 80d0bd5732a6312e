"""Which services take turns in which pool, and the demand for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automation.serving.turns.demand import FRESH_S, Demand
from automation.serving.turns.members import AgedPool, Place, Role, ServiceFacts, places
from program.desired.keys import ServiceKey
from program.desired.pool import Pool

PLAIN = ServiceFacts()


def pool(name: str, *members: str, created: str = "2026-01-01T00:00:00Z", **more: object) -> AgedPool:
    return AgedPool(Pool("ns", name, members, **more), created)  # type: ignore[arg-type] # the fields of Pool


def only(facts: ServiceFacts | None, **more: object) -> Place:
    """Return the place of the only member of a pool."""
    (place,) = places([pool("gpu", "svc", **more)], lambda _name: facts)["gpu"]
    return place


@pytest.mark.parametrize(
    ("facts", "role", "reason", "message"),
    [
        (PLAIN, "turns", "", ""),
        (None, "refused", "MemberNotFound", "there is no InferenceService `svc`"),
        (replace(PLAIN, managed=False), "refused", "NotManaged", "another controller"),
        (replace(PLAIN, autoscaled=True), "refused", "MemberAutoscaled", "spec.autoscaling"),
        (replace(PLAIN, by_requests=True), "refused", "MemberAutoscaled", "herdsman.dev/scale-by"),
        (replace(PLAIN, by_requests=True, hosted=True), "host", "", "by the host's memory"),
        (replace(PLAIN, scaled_by="keda"), "refused", "MemberAutoscaled", "`keda` sets the replicas"),
        (replace(PLAIN, stopped=True), "stopped", "", "takes no turns"),
        (replace(PLAIN, hosted=True), "host", "", "by the host's memory"),
        (replace(PLAIN, hosted=True, own_group="desk"), "refused", "InModelGroup", "`desk`"),
        (replace(PLAIN, own_group="desk"), "turns", "", ""),
    ],
)
def test_a_member(facts: ServiceFacts | None, role: Role, reason: str, message: str) -> None:
    found = only(facts)
    assert (found.role, found.reason) == (role, reason)
    assert message in found.message


def test_a_member_that_may_run_elsewhere_takes_turns_and_is_reported() -> None:
    wanted = {"gpu": "a100", "zone": "x"}
    assert "lacks zone=x of the pool" in only(replace(PLAIN, node_labels={"gpu": "a100"}), node_labels=wanted).message
    assert only(replace(PLAIN, node_labels={**wanted, "disk": "ssd"}), node_labels=wanted).message == ""
    assert only(replace(PLAIN, gpus=4), gpus=2) == Place(
        "svc", "turns", message="its replicas request 4 GPUs, and the pool has 2"
    )


def test_the_oldest_pool_that_names_a_service_has_it() -> None:
    young = pool("a", "shared", "mine", created="2026-02-01T00:00:00Z")
    found = places([young, pool("z", "shared")], lambda _name: PLAIN)
    assert [place.role for place in found["z"]] == ["turns"]
    assert [(place.role, place.reason) for place in found["a"]] == [("refused", "InAnotherPool"), ("turns", "")]
    assert "ModelPool `z`" in found["a"][0].message


def test_of_pools_of_the_same_second_the_first_name_counts() -> None:
    found = places([pool("b", "shared"), pool("a", "shared")], lambda _name: PLAIN)
    assert (found["a"][0].role, found["b"][0].role) == ("turns", "refused")


def test_a_wait_lasts_while_it_is_reported() -> None:
    now = [100.0]
    demand, key = Demand(clock=lambda: now[0]), ServiceKey("llmkube", "ns", "svc")
    assert demand.since(key) is None
    for second in range(10):
        now[0] = 100.0 + second
        demand.report(key)
    assert demand.since(key) == 100.0
    now[0] += FRESH_S + 0.1
    assert demand.since(key) is None
    demand.report(key)
    assert demand.since(key) == now[0], "a later request begins another wait"
    demand.met(key)
    assert demand.since(key) is None
