"""Placement on hosts: a host has at most one replica of a service and is not overcommitted, replicas are moved only if
they must, and a replica without a host has a reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from automation.hosts.host_allocations import HostAllocations
from automation.hosts.placement import HostCapacity, PlacementRequest, Requirements, Taint, Toleration, pairs
from program.desired.keys import ServiceKey
from program.runtimes.host_rules import Allowance

GIB = 1 << 30


class Fleet:
    """Allocations on hosts with 10 GiB each, and the services that were enqueued because memory became free."""

    def __init__(self, *names: str) -> None:
        self.lost: dict[str, float] = {}
        self.told: list[str] = []
        self.allocations = HostAllocations(lost_for_s=self.lost.get, on_room=lambda key: self.told.append(key.name))
        self.capacity: dict[str, HostCapacity] = {}
        for name in names:
            self.host(name)

    def host(self, name: str, *, alive: bool = True, **changes: Any) -> None:
        before = self.capacity.get(name, HostCapacity(name, memory_bytes=10 * GIB, total_memory_bytes=16 * GIB))
        self.capacity[name] = replace(before, **changes)
        self.allocations.set_host(name, self.capacity[name], alive=alive)

    def decide(self, service: str, memory: float | None = 0, **wish: Any) -> Any:
        bytes_ = None if memory is None else int(memory * GIB)
        return self.allocations.reserve(key(service), PlacementRequest(memory_bytes=bytes_, **wish))

    def propose(self, service: str, memory: float = 0, **wish: Any) -> Any:
        return self.allocations.propose(key(service), PlacementRequest(memory_bytes=int(memory * GIB), **wish))

    def place(self, service: str, memory: float | None = 0, **wish: Any) -> tuple[str | None, ...]:
        hosts: tuple[str | None, ...] = self.decide(service, memory, **wish).hosts
        return hosts

    def reserved(self, name: str) -> float:
        return next(bytes_ / GIB for host, _, bytes_, _ in self.allocations.hosts() if host.name == name)


def key(name: str) -> ServiceKey:
    return ServiceKey("llmkube", "ns", name)


def needs(**fields: Any) -> Requirements:
    return Requirements(**fields)


def test_services_spread_over_the_emptiest_hosts_and_the_name_decides_between_equals() -> None:
    fleet = Fleet("b", "a", "c")
    assert [fleet.place(s, 2) for s in ("s1", "s2", "s3")] == [("a",), ("b",), ("c",)]
    fleet.host("big", memory_bytes=40 * GIB)
    assert fleet.place("s4", 2) == ("big",)
    assert fleet.place("s5", 2) == ("big",)  # a twentieth of its memory is reserved, and a fifth of the others'
    assert fleet.place("s6", 0) == ("big",)


def test_packing_fills_the_fullest_that_fits() -> None:
    fleet = Fleet("a", "b")
    fleet.place("first", 4)
    assert fleet.place("second", 5, strategy="pack") == ("a",)
    assert fleet.place("third", 5, strategy="pack") == ("b",)


def test_each_replica_has_a_host_of_its_own_and_the_highest_go_first() -> None:
    fleet = Fleet("a", "b", "c")
    assert fleet.place("svc", 1, replicas=3) == ("a", "b", "c")
    assert fleet.place("svc", 1, replicas=2) == ("a", "b")
    assert fleet.reserved("c") == 0
    decision = fleet.decide("svc", 1, replicas=4)
    assert decision.hosts == ("a", "b", "c", None)
    assert str(decision.refusals) == "0/3 hosts fit: 3 run another replica"


def test_a_full_host_refuses_and_who_waits_is_told_of_room() -> None:
    fleet = Fleet("a")
    fleet.place("first", 7)
    decision = fleet.decide("second", 5)
    assert (decision.hosts, str(decision.refusals)) == ((None,), "0/1 hosts fit: 1 lacks 2.0 GiB of memory")
    assert fleet.allocations.waiting() == (key("second"),)
    fleet.allocations.release(key("first"))
    assert fleet.told == ["second"]
    assert fleet.place("second", 5) == ("a",)
    assert fleet.allocations.waiting() == ()


def test_room_is_offered_to_as_many_as_fit_the_most_important_first() -> None:
    fleet = Fleet("a")
    fleet.place("all", 10)
    fleet.decide("old", 4, priority=1, created="2026-01-01")
    fleet.decide("new", 4, priority=1, created="2026-02-01")
    fleet.decide("vip", 5, priority=9, created="2026-03-01")
    fleet.allocations.release(key("all"))
    assert fleet.told == ["vip", "old"]


def test_a_host_that_appears_wakes_only_those_whom_it_can_help() -> None:
    fleet = Fleet()
    assert fleet.decide("metal", requirements=needs(accelerator="metal")).refusals.hosts == 0
    fleet.decide("big", 20)
    fleet.decide("small", 1)
    fleet.host("linux", os="linux", binaries=frozenset({"llama-server"}))
    assert fleet.told == ["small"]
    fleet.host("mac", accelerators=frozenset({"metal"}), memory_bytes=30 * GIB)
    assert fleet.told[1:] == ["big", "metal", "small"]


def test_what_a_service_gives_back_while_it_is_placed_is_room_for_others() -> None:
    fleet = Fleet("a", "b")
    fleet.place("pinned", 8, pinned="a")
    fleet.place("large", 8, preferred=("b",))
    fleet.decide("waits", 5)
    fleet.place("large", 4, preferred=("b",))
    assert fleet.told == ["waits"]
    fleet.place("pinned", 8, pinned="elsewhere")
    assert fleet.told == ["waits", "waits"]
    assert fleet.reserved("a") == 0


def test_who_waits_is_told_again_only_when_the_reason_is_another() -> None:
    fleet = Fleet("a")
    fleet.decide("big", 11)
    fleet.decide("same", 11)
    assert fleet.allocations.services_with_new_refusals() == ()
    fleet.host("a", memory_bytes=9 * GIB)
    assert fleet.allocations.services_with_new_refusals() == (key("big"), key("same"))
    fleet.decide("big", 11)
    assert fleet.allocations.services_with_new_refusals() == (key("same"),)


def test_a_refusal_of_another_namespace_is_not_mistaken_for_a_new_one() -> None:
    fleet = Fleet()
    fleet.host("a", allowance=Allowance(namespaces=("mine",)))
    for namespace in ("one", "two"):
        fleet.allocations.reserve(ServiceKey("llmkube", namespace, "svc"), PlacementRequest())
    assert fleet.allocations.services_with_new_refusals() == ()


def test_a_refusal_is_not_new_because_another_replica_may_not_move() -> None:
    fleet = Fleet("a")
    fleet.allocations.record_replica(key("svc"), 1, "a", GIB)
    fleet.host("a", draining=True)
    decision = fleet.decide("svc", 1, replicas=2, may_move=False)
    assert decision.hosts == (None, "a")
    assert decision.stuck
    assert fleet.allocations.services_with_new_refusals() == ()


def test_a_size_that_is_not_known_counts_as_nothing_until_the_host_says_it() -> None:
    fleet = Fleet("a")
    assert fleet.place("svc", None) == ("a",)
    fleet.allocations.record_replica(key("svc"), 0, "a", 6 * GIB)
    assert fleet.reserved("a") == 6
    assert fleet.place("svc", None) == ("a",)
    assert fleet.place("svc", 8) == ("a",)
    assert fleet.reserved("a") == 6


def test_a_check_that_is_off_takes_what_room_there_is_and_a_full_host_where_there_is_none() -> None:
    fleet = Fleet("a", "b")
    fleet.place("first", 6)
    assert fleet.place("bold", 8, memory_enforced=False) == ("b",)
    assert fleet.place("bolder", 8, memory_enforced=False) == ("a",)
    assert fleet.decide("careful", 8).hosts == (None,)


def test_preferred_hosts_come_first_in_their_order_and_excluded_ones_never() -> None:
    fleet = Fleet("a", "b", "c")
    assert fleet.place("one", 1, preferred=("gone", "c", "b")) == ("c",)
    assert fleet.place("two", 9.5, preferred=("c", "b")) == ("b",)
    assert fleet.place("three", requirements=needs(excluded=frozenset({"a", "b"}))) == ("c",)


def test_a_taint_that_prefers_not_is_the_last_choice() -> None:
    fleet = Fleet("a", "b")
    fleet.host("a", taints=(Taint("busy", "PreferNoSchedule"),))
    fleet.place("first", 9)
    assert fleet.place("second", 5) == ("a",)
    tolerant = needs(tolerations=(Toleration("busy", "Exists"),))
    fleet.host("c", taints=(Taint("busy", "PreferNoSchedule"),))
    assert fleet.place("third", 5, requirements=tolerant) == ("c",)


def test_a_pin_is_obeyed_whatever_its_host_says() -> None:
    fleet = Fleet("a")
    assert fleet.place("pinned", 50, pinned="nowhere") == ("nowhere",)
    assert [h.name for h, *_ in fleet.allocations.hosts()] == ["a"]
    fleet.host("nowhere", unschedulable=True)
    assert fleet.reserved("nowhere") == 50
    decision = fleet.decide("pinned", 50, pinned="nowhere")
    assert (decision.hosts, decision.stuck) == (("nowhere",), "")
    fleet.host("nowhere", draining=True)
    assert "pinned" in fleet.decide("pinned", 50, pinned="nowhere").stuck


def test_what_runs_when_the_loop_starts_keeps_its_place() -> None:
    fleet = Fleet("a", "b")
    fleet.allocations.record_replica(key("svc"), 0, "b", 9 * GIB)
    fleet.allocations.record_replica(key("orphan"), 0, "a", 9 * GIB)
    assert fleet.decide("other", 2).hosts == (None,)
    assert fleet.place("svc", 9) == ("b",)
    fleet.allocations.remove_replica(key("orphan"), 0)
    assert fleet.told == ["other"]
    fleet.allocations.remove_replica(key("svc"), 0)
    assert fleet.place("svc", 9) == ("b",)


def test_a_drained_host_is_left_by_who_may_and_the_others_say_why_they_stay() -> None:
    fleet = Fleet("a", "b")
    assert fleet.place("mover", 4, preferred=("a",)) == ("a",)
    assert fleet.place("stayer", 4, preferred=("a",), may_move=False) == ("a",)
    fleet.host("a", draining=True)
    decision = fleet.decide("mover", 4, preferred=("a",))
    assert decision.hosts == ("b",)
    assert decision.moved == ("replica 0 moves from host `a`, which is being drained, to `b`",)
    decision = fleet.decide("stayer", 4, preferred=("a",), may_move=False)
    assert decision.hosts == ("a",)
    assert "replica 0 stays on host `a`, which is being drained: the service may not move" in decision.stuck
    assert fleet.allocations.waiting() == ()


def test_who_must_leave_and_finds_no_place_stays_and_is_told_of_room() -> None:
    fleet = Fleet("a", "b")
    fleet.place("svc", 4, preferred=("a",))
    fleet.place("other", 9, preferred=("b",))
    fleet.host("a", taints=(Taint("repair", "NoExecute"),))
    decision = fleet.decide("svc", 4, preferred=("a",))
    assert decision.hosts == ("a",)
    assert "0/2 hosts fit: 1 has taint repair, 1 lacks 3.0 GiB of memory" in decision.stuck
    fleet.allocations.release(key("other"))
    assert fleet.told == ["svc"]
    assert fleet.place("svc", 4, preferred=("a",)) == ("b",)


def test_a_lost_host_is_left_after_a_while_and_not_before() -> None:
    fleet = Fleet("a", "b")
    fleet.place("svc", 4, preferred=("a",))
    fleet.host("a", alive=False)
    fleet.lost["a"] = 59.0
    assert fleet.place("svc", 4) == ("a",)
    fleet.lost["a"] = 61.0
    assert fleet.place("svc", 4) == ("b",)
    fleet.host("a", alive=True)
    assert fleet.place("svc", 4) == ("b",)


def test_nothing_new_goes_to_a_lost_host() -> None:
    fleet = Fleet("a")
    fleet.host("a", alive=False)
    assert str(fleet.decide("svc").refusals) == "0/1 hosts fit: 1 is lost"


def test_an_edit_that_its_host_does_not_meet_moves_a_service_and_a_changed_host_does_not() -> None:
    fleet = Fleet("a", "b")
    in_zone = needs(labels=pairs({"zone": "1"}))
    fleet.host("a", labels=pairs({"zone": "1"}))
    assert fleet.place("svc", requirements=in_zone) == ("a",)
    fleet.host("a", labels=())
    assert fleet.place("svc", requirements=in_zone) == ("a",)
    elsewhere = needs(labels=pairs({"zone": "2"}))
    assert "lacks the labels" in fleet.decide("svc", requirements=elsewhere).stuck
    fleet.host("b", labels=pairs({"zone": "2"}))
    assert fleet.told == ["svc"]
    assert fleet.place("svc", requirements=elsewhere) == ("b",)


def test_a_service_that_outgrows_its_host_moves_to_a_larger_one() -> None:
    fleet = Fleet("a", "b")
    fleet.place("other", 5, preferred=("a",))
    fleet.place("svc", 3, preferred=("a",))
    fleet.allocations.record_replica(key("svc"), 0, "a", 3 * GIB)
    assert fleet.place("svc", 8, preferred=("a",)) == ("b",)
    assert "lacks" in fleet.decide("svc", 11, preferred=("a",)).stuck
    fleet.host("big", memory_bytes=20 * GIB)
    assert fleet.told[-1:] == ["svc"]
    assert fleet.place("svc", 11) == ("big",)


def test_members_of_a_group_share_their_memory_and_come_together() -> None:
    fleet = Fleet("a", "b")
    turns = {"group": ("ns", "g"), "stays_in_memory": False}
    assert fleet.place("one", 6, **turns) == ("a",)
    assert fleet.place("two", 8, **turns) == ("a",)
    assert fleet.reserved("a") == 8
    assert fleet.place("pinned", 2, group=("ns", "g")) == ("a",)
    assert fleet.place("more", 1, group=("ns", "g")) == ("b",)
    fleet.allocations.release(key("two"))
    assert fleet.reserved("a") == 8
    assert fleet.place("stranger", 3) == ("b",)


def test_a_budget_of_the_models_own_stands_instead_of_the_hosts() -> None:
    fleet = Fleet("a")
    assert fleet.place("svc", 12, budget_fraction=0.9) == ("a",)
    assert str(fleet.decide("other", 3, budget_bytes=14 * GIB).refusals) == "0/1 hosts fit: 1 lacks 1.0 GiB of memory"


def test_a_host_that_is_gone_is_remembered_only_while_something_is_placed_on_it() -> None:
    fleet = Fleet("a")
    fleet.place("svc", 1)
    fleet.allocations.set_host("a", None, alive=False)
    assert fleet.allocations.hosts() == ()
    assert fleet.allocations.placed_on("a") == (key("svc"),)
    assert fleet.place("svc", 1) == ("a",)
    fleet.allocations.release(key("svc"))
    assert fleet.allocations.placed_on("a") == ()


NAMES = ("a", "b", "c", "d")
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.integers(0, 5), st.integers(0, 3), st.integers(0, 12)),
        st.tuples(st.just("release"), st.integers(0, 5), st.just(0), st.just(0)),
        st.tuples(st.just("host"), st.integers(0, 3), st.integers(0, 2), st.integers(4, 12)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps=_steps, strategy=st.sampled_from(["spread", "pack"]))
def test_no_host_has_a_service_twice_or_takes_more_than_fits_and_who_is_placed_stays(steps: Any, strategy: Any) -> None:
    fleet = Fleet(*NAMES)
    budget = dict.fromkeys(NAMES, 10)
    asked: dict[str, tuple[int, int]] = {}
    for what, number, count, size in steps:
        name = f"s{number}"
        if what == "release":
            fleet.allocations.release(key(name))
            asked.pop(name, None)
        elif what == "host":
            # A host's memory may only grow here: allocations cannot prevent that it becomes too small.
            host = NAMES[number]
            budget[host] = max(budget[host], size)
            fleet.host(host, memory_bytes=budget[host] * GIB, unschedulable=count == 1, alive=count != 2)
        else:
            size = asked.get(name, (0, size))[1]
            before = fleet.place(name, size, replicas=asked[name][0], strategy=strategy) if name in asked else ()
            after = fleet.place(name, size, replicas=count, strategy=strategy)
            asked[name] = (count, size)
            assert all(now == then for then, now in zip(before, after, strict=False) if then is not None)
            hosts = [host for host in after if host is not None]
            assert len(set(hosts)) == len(hosts)
        for host, _, reserved, processes in fleet.allocations.hosts():
            assert reserved <= budget[host.name] * GIB
            assert processes >= 0
    for name in list(asked):
        fleet.allocations.release(key(name))
    assert all(reserved == 0 and processes == 0 for _, _, reserved, processes in fleet.allocations.hosts())


def test_a_proposal_reserves_nothing_and_says_whether_a_reservation_would_change_anything() -> None:
    fleet = Fleet("a", "b")
    assert (fleet.propose("svc", 4).hosts, fleet.propose("svc", 4).changes) == (("a",), True)
    assert (fleet.reserved("a"), fleet.allocations.placed_on("a")) == (0, ())
    fleet.decide("svc", 4)
    assert (fleet.propose("svc", 4).hosts, fleet.propose("svc", 4).changes) == (("a",), False)
    moved = fleet.propose("svc", 6)
    assert (moved.hosts, moved.changes, fleet.reserved("a")) == (("a",), True, 4)


def test_a_proposal_without_room_leaves_nobody_waiting_and_wakes_nobody() -> None:
    fleet = Fleet("a")
    fleet.decide("old", 9)
    fleet.decide("waits", 5)
    assert fleet.propose("big", 20).refusals is not None
    assert fleet.propose("old", 1).hosts == ("a",)
    assert [each.name for each in fleet.allocations.waiting()] == ["waits"]
    assert (fleet.told, fleet.reserved("a")) == ([], 9)
    assert not fleet.propose("waits", 5).changes


def test_a_proposal_of_an_unknown_pin_leaves_no_host_behind() -> None:
    fleet = Fleet("a")
    assert fleet.propose("pinned", 1, pinned="nowhere").hosts == ("nowhere",)
    assert fleet.allocations.placed_on("nowhere") == ()
