"""The status of a Host, the changes that are worth a write, and the fields of its spec that the agent obeys."""

from __future__ import annotations

from typing import Any

import pytest

from agent.contract import (
    Accelerator,
    HostFacts,
    MemoryPressure,
    ProcessPhase,
    ProcessReport,
    ProcessUsage,
)
from agent.server.cluster.host_spec import HostSpec, HostSpecWatch, read_host_spec
from agent.server.cluster.host_status import NUMBERS_EVERY_S, host_status, needs_write
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.crds.schema import CrdModel
from program.dialects.hosts.schema import HostStatus

GIB = 1 << 30
FACTS = HostFacts(
    host="mac",
    address="10.0.0.1",
    os="darwin",
    arch="arm64",
    memory_bytes=64 * GIB,
    cpus=12,
    agent_version="1.2",
    runtimes={"ollama": "0.5", "llama-server": "b1"},
    accelerators=(Accelerator(type="metal", name="Apple M2 Max", memory_bytes=48 * GIB),),
    memory_budget_bytes=40 * GIB,
)


def made(**changes: Any) -> Json:
    values: dict[str, Any] = {
        "reports": {"ns/b": ProcessReport(phase=ProcessPhase.READY, ready=True, memory_bytes=3 * GIB)},
        "usage": {"ns/b": ProcessUsage(rss_bytes=2 * GIB, cpu_percent=50.0, slots=4, slots_busy=1)},
        "spec": HostSpec(generation=7),
        "now": "2026-11-21T12:00:00Z",
    }
    facts = FACTS.model_copy(update=changes.pop("facts", {}))
    return host_status(facts, **{**values, **changes})


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_facts_and_processes_are_said_in_the_words_of_the_schema() -> None:
    status = made()
    assert set(status) <= {field.alias or name for name, field in HostStatus.model_fields.items()}
    assert issubclass(HostStatus, CrdModel)
    assert status["capacity"] == {"cpu": 12, "memory": 64 * GIB}
    assert status["allocatable"] == {"cpu": 12, "memory": 40 * GIB}
    assert status["accelerators"] == [
        {"type": "metal", "name": "Apple M2 Max", "count": 1, "memory": 48 * GIB},
    ]
    assert status["processes"] == [
        {
            "name": "ns/b",
            "phase": "Ready",
            "reserved": 3 * GIB,
            "memory": 2 * GIB,
            "cpuPercent": 50.0,
            "slots": 4,
            "slotsBusy": 1,
        }
    ]
    assert status["observedGeneration"] == 7
    assert conditions(status) == {
        "Ready": ("True", "AgentRunning"),
        "MemoryPressure": ("False", "Normal"),
        "Schedulable": ("True", "Open"),
    }
    assert "endpoint" not in status, "what is not known is not said"


def test_without_a_budget_all_memory_may_be_taken() -> None:
    assert made(facts={"memory_budget_bytes": None})["allocatable"]["memory"] == 64 * GIB


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"running": False}, "Ready", ("False", "AgentStopped")),
        ({"facts": {"memory_pressure": MemoryPressure.CRITICAL}}, "MemoryPressure", ("True", "Critical")),
        ({"spec": HostSpec(unschedulable=True)}, "Schedulable", ("False", "Cordoned")),
        ({"spec": HostSpec(unschedulable=True, drain=True)}, "Schedulable", ("False", "Draining")),
    ],
)
def test_conditions_tell_what_is_the_matter(changes: Json, kind: str, said: tuple[str, str]) -> None:
    assert conditions(made(**changes))[kind] == said


def test_a_time_of_transition_stays_with_the_status_of_its_condition() -> None:
    first = made()
    later = made(now="2026-11-21T13:00:00Z", conditions=tuple(first["conditions"]), running=False)
    times = {c["type"]: c["lastTransitionTime"] for c in later["conditions"]}
    assert times["Ready"] == "2026-11-21T13:00:00Z"
    assert times["Schedulable"] == "2026-11-21T12:00:00Z"


def with_usage(**usage: Any) -> Json:
    return made(usage={"ns/b": ProcessUsage(**{"rss_bytes": 2 * GIB, "cpu_percent": 50.0, **usage})})


def test_what_says_nothing_new_is_not_written() -> None:
    assert not needs_write(made(), made(now="2026-11-21T18:00:00Z"), since_s=1e6)


@pytest.mark.parametrize(
    "changed",
    [
        made(reports={}),
        made(reports={"ns/b": ProcessReport(phase=ProcessPhase.STOPPING)}),
        made(facts={"address": "10.0.0.2"}),
        made(facts={"runtimes": {}}),
        made(facts={"memory_budget_bytes": 30 * GIB}),
        made(facts={"memory_pressure": MemoryPressure.WARNING}),
        made(spec=HostSpec(generation=8)),
    ],
)
def test_words_are_written_at_once(changed: Json) -> None:
    assert needs_write(made(), changed, since_s=0)


@pytest.mark.parametrize(
    ("usage", "worth"),
    [
        ({"cpu_percent": 55.0}, False),
        ({"cpu_percent": 65.0}, True),
        ({"rss_bytes": 2 * GIB + (32 << 20)}, False),
        ({"rss_bytes": 2 * GIB + (80 << 20)}, False),
        ({"rss_bytes": 2 * GIB + (300 << 20)}, True),
        ({"slots_busy": 1}, True),
        ({"tokens_per_second": 40.0}, True),
    ],
)
def test_numbers_wait_and_count_only_when_they_have_changed_by_more_than_a_little(usage: Json, worth: bool) -> None:
    before, after = with_usage(), with_usage(**usage)
    assert not needs_write(before, after, since_s=NUMBERS_EVERY_S - 1)
    assert needs_write(before, after, since_s=NUMBERS_EVERY_S) is worth


def host(generation: int = 1, **spec: Any) -> Json:
    return {"metadata": {"name": "mac", "generation": generation}, "spec": spec}


def test_what_people_say_is_read_in_bytes() -> None:
    said = read_host_spec(
        host(
            3,
            memoryBudget="96Gi",
            memoryFraction=0.5,
            storeSize="1Ti",
            memoryPressure={"warning": 0.3, "critical": 0.2, "eviction": True},
            drain=True,
        )
    )
    assert said == HostSpec(
        memory_budget_bytes=96 * GIB,
        memory_fraction=0.5,
        store_bytes=1024 * GIB,
        pressure_warning=0.3,
        pressure_critical=0.2,
        eviction=True,
        drain=True,
        generation=3,
    )
    assert read_host_spec(host()) == HostSpec(generation=1)


def test_changes_are_told_once_and_what_makes_no_sense_changes_nothing() -> None:
    spec, told = HostSpecWatch(), list[HostSpec]()
    spec.on_change += [lambda _: 1 / 0, told.append]
    spec.update(host(1, memoryBudget="8Gi"))
    spec.update(host(1, memoryBudget="8Gi"))
    with pytest.raises(SpecInvalid):
        read_host_spec(host(2, memoryBudget="much"))
    spec.update(host(2, memoryBudget="much"))
    assert spec.current.memory_budget_bytes == 8 * GIB
    spec.update(None)
    assert [w.memory_budget_bytes for w in told] == [8 * GIB, None]
