"""How the decisions for a group hold, release or refuse processes, and how demand is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason
from agent.processes.lifecycle import Hold
from agent.server.memory.model_groups import WANTED_S, GroupedProcess, ModelGroups
from agent.server.memory.need import Need

PENDING, READY, ASLEEP = ProcessPhase.PENDING, ProcessPhase.READY, ProcessPhase.ASLEEP


def plan(residency: str = "preferred", **fields: Any) -> ProcessPlan:
    values = {"host": "h", "service": "s", "service_name": "s", "argv": ("llama-server",), "group": "g"}
    file = FilePlan(source="/m.gguf", cache_key="k", file_name="m.gguf")
    return ProcessPlan(**{**values, "residency": residency, "file": file, **fields})


@dataclass
class Host:
    """A host of 16 bytes whose processes start and stop when `settle` is called."""

    processes: dict[str, GroupedProcess] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    woken: list[str] = field(default_factory=list)
    now: float = 1000.0
    stirred: int = 0

    def __post_init__(self) -> None:
        self.groups = ModelGroups(
            processes=lambda: self.processes,
            room=self.room,
            hold=self.hold,
            release=lambda key: self.release(key),
            held=lambda: dict(self.holds),
            wake=self.woken.append,
            clock=lambda: self.now,
            changed=self.stir,
        )

    def room(self, keys: Iterable[str]) -> Need:
        return Need(16)

    def hold(self, key: str, hold: Hold) -> None:
        self.holds[key] = hold

    def release(self, key: str) -> None:
        del self.holds[key]

    def stir(self) -> None:
        self.stirred += 1

    def add(self, key: str, made: ProcessPlan, *, need: int = 10, phase: ProcessPhase = PENDING, **more: Any) -> None:
        self.processes[key] = GroupedProcess(made, phase, Need(need), **{"inside": False, **more})

    def change(self, key: str, **changes: Any) -> None:
        self.processes[key] = replace(self.processes[key], **changes)


@pytest.fixture
def host() -> Host:
    made = Host()
    made.add("home", plan(), phase=READY, inside=True)
    made.groups.decide()
    made.now += 61
    return made


def test_who_is_asked_for_pushes_the_preferred_out_and_both_say_why(host: Host) -> None:
    host.add("guest", plan("onDemand", idle_timeout_s=60.0))
    refusal = host.groups.refusal("guest", host.processes["guest"].plan)
    assert refusal is not None
    assert (refusal.phase, refusal.reason) == (ASLEEP, ProcessReason.SWAPPED_OUT)
    assert "Waits for a request" in refusal.message
    assert not host.holds
    host.groups.wanted("guest")
    assert host.stirred == 1
    host.groups.decide()
    assert host.woken == ["guest"]
    assert host.holds["home"].phase is PENDING
    assert host.holds["home"].message == "Waits for its turn: guest have the memory of group `g`"
    assert host.groups.refusal("guest", host.processes["guest"].plan) is None
    assert host.groups.swaps == 1


def test_the_preferred_comes_back_though_its_file_is_looked_at_again_first(host: Host) -> None:
    host.add("guest", plan("onDemand", idle_timeout_s=5.0))
    host.groups.wanted("guest")
    host.groups.decide()
    host.change("home", phase=PENDING, inside=False)
    host.change("guest", phase=READY, inside=True)
    again = host.groups.decide()
    assert again is not None
    host.now += 61
    host.groups.decide()
    assert set(host.holds) == {"guest"}
    host.change("home", phase=ProcessPhase.DOWNLOADING)
    host.groups.decide()
    assert set(host.holds) == {"guest"}


def test_a_first_download_pushes_nobody_out(host: Host) -> None:
    host.add("guest", plan("onDemand", idle_timeout_s=5.0), phase=ProcessPhase.DOWNLOADING)
    host.groups.wanted("guest")
    host.groups.decide()
    assert not host.holds
    # It gets its turn only when it is ready to start.
    assert host.groups.refusal("guest", host.processes["guest"].plan) is None
    assert set(host.holds) == {"home"}


def test_demand_that_gave_up_is_forgotten(host: Host) -> None:
    host.add("guest", plan("onDemand", idle_timeout_s=5.0), held_by_others=True)
    host.groups.wanted("guest")
    host.now += WANTED_S + 1
    host.groups.decide()
    host.change("guest", held_by_others=False)
    host.groups.decide()
    assert not host.holds
    host.add("brief", plan("onDemand", idle_timeout_s=5.0, wake_timeout_s=10.0), held_by_others=True)
    host.groups.wanted("brief")
    host.now += 11
    host.groups.decide()
    host.change("brief", held_by_others=False)
    host.groups.decide()
    assert not host.holds


def test_groups_keep_to_themselves_and_processes_of_none_are_left_alone(host: Host) -> None:
    host.add("other", plan(group="h"), phase=READY, inside=True)
    host.groups.decide()
    assert not host.holds
    assert host.groups.refusal("single", plan(residency=None)) is None  # type: ignore[arg-type]


def test_a_failed_one_claims_nothing(host: Host) -> None:
    host.add("pinned", plan("pinned"), phase=ProcessPhase.FAILED)
    host.groups.decide()
    assert not host.holds


def test_a_group_that_a_process_left_lets_it_go(host: Host) -> None:
    host.add("guest", plan("onDemand", idle_timeout_s=5.0))
    host.groups.wanted("guest")
    host.groups.decide()
    assert set(host.holds) == {"home"}
    del host.processes["home"]
    host.groups.decide()
    assert not host.holds


def test_a_start_that_takes_long_is_not_broken_off_and_its_least_time_begins_when_it_serves(host: Host) -> None:
    host.add("guest", plan("onDemand", idle_timeout_s=5.0))
    host.groups.wanted("guest")
    host.groups.decide()
    host.change("home", phase=PENDING, inside=False)
    host.change("guest", phase=ProcessPhase.STARTING, inside=True)
    host.groups.decide()
    host.now += 200
    host.groups.decide()
    assert set(host.holds) == {"home"}
    host.change("guest", phase=READY)
    host.groups.decide()
    host.now += 59
    host.groups.decide()
    assert set(host.holds) == {"home"}
    host.now += 2
    host.groups.decide()
    assert set(host.holds) == {"guest"}


def test_who_does_not_fit_beside_the_pinned_is_told_so_and_pushes_nobody_out(host: Host) -> None:
    host.add("pinned", plan("pinned"), need=4, phase=READY, inside=True)
    host.add("guest", plan("onDemand", idle_timeout_s=5.0), need=13)
    host.groups.wanted("guest")
    refusal = host.groups.refusal("guest", host.processes["guest"].plan)
    assert refusal is not None
    assert (refusal.phase, refusal.reason) == (PENDING, ProcessReason.INSUFFICIENT_MEMORY)
    assert "pinned ones of group `g` leave only" in refusal.message
    assert not host.holds


def test_one_of_unknown_size_pushes_nobody_out(host: Host) -> None:
    host.add("guest", plan("onDemand", idle_timeout_s=5.0))
    host.change("guest", need=None)
    host.groups.wanted("guest")
    host.groups.decide()
    assert not host.holds
    host.change("guest", plan=plan("onDemand", idle_timeout_s=5.0, memory_check="off"))
    host.groups.decide()
    assert set(host.holds) == {"home"}
