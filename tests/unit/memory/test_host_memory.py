"""The memory of a host as its supervisor uses it: admission, released memory and pressure, with simulated processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent.contract import MemoryPressure, ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes.decision import Desired
from agent.processes.lifecycle import Hold
from agent.server.memory.budget import MemoryLimits
from agent.server.memory.host_memory import PRESSURE, HostMemory, MemorySettings
from agent.server.memory.metrics import MemoryMetrics
from agent.server.processes.identity import start_mark
from agent.server.processes.supervisor import Supervisor
from agent.server.processes.worker_context import Holds
from agent.server.store import ProcessRecord, RunningRecord
from tests.support.controlplane import eventually

MIB = 1 << 20


def plan(mib: int | None = 100, **fields: Any) -> ProcessPlan:
    values = {"host": "h", "service": "s", "service_name": "s", "argv": ("serve",), "runtime": "generic"}
    return ProcessPlan(**{**values, "memory_bytes": mib * MIB if mib is not None else None, **fields})


@dataclass
class Processes:
    """A simulated supervisor: its reports, and the calls to it."""

    found: dict[str, Desired] = field(default_factory=dict)
    phases: dict[str, ProcessPhase] = field(default_factory=dict)
    woken: list[str] = field(default_factory=list)
    holds: Holds = field(default_factory=Holds)

    def list_desired(self) -> dict[str, Desired]:
        return dict(self.found)

    def plans(self) -> dict[str, ProcessPlan]:
        return {key: desired.plan for key, desired in self.found.items()}

    def handles(self) -> dict[str, Any]:
        return {}

    def report(self, key: str) -> ProcessReport | None:
        return ProcessReport(phase=self.phases[key]) if key in self.phases else None

    def hold(self, key: str, source: str, hold: Hold) -> None:
        self.holds.put(key, source, hold)

    def release(self, key: str, source: str) -> None:
        self.holds.release(key, source)

    def wake(self, key: str) -> None:
        self.woken.append(key)


class Host:
    def __init__(self, folder: Path, records: Mapping[str, ProcessRecord] | None = None, **wishes: Any) -> None:
        """`records` are the processes that an earlier agent left running."""
        self.meminfo = folder / "meminfo"
        self.available(900)
        self.processes = Processes()
        settings = MemorySettings(MemoryLimits(budget_bytes=300 * MIB, **wishes), watch_s=0.05, meminfo=self.meminfo)
        self.memory = HostMemory(settings, find_binary=lambda _name: None)
        self.memory.attach(cast(Supervisor, self.processes))
        self.memory.start(records or {})

    def available(self, mib: int) -> None:
        draft = self.meminfo.with_suffix(".new")
        draft.write_text(f"MemTotal: {1000 * 1024} kB\nMemAvailable: {mib * 1024} kB\n")
        draft.replace(self.meminfo)

    def admit(self, key: str, made: ProcessPlan) -> str:
        """Ask for admission of a process, which starts if it is admitted; return the reason of a refusal, else ""."""
        desired = Desired(made, "hash")
        self.processes.found[key] = desired
        hold = self.memory.admit(key, desired, {})
        self.say(key, hold.phase if hold else ProcessPhase.STARTING)
        return hold.reason if hold else ""

    def say(self, key: str, phase: ProcessPhase) -> None:
        self.processes.phases[key] = phase
        self.memory.on_report(key, ProcessReport(phase=phase))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.memory.stop()


def test_room_comes_back_whatever_becomes_of_a_process_and_goes_to_the_most_important(host: Host) -> None:
    assert host.admit("ns/a", plan(200)) == ""
    assert host.memory.reserved("ns/a") == 200 * MIB
    assert host.admit("ns/low", plan(200, priority=1)) == ProcessReason.INSUFFICIENT_MEMORY
    assert host.admit("ns/high", plan(200, priority=9)) == ProcessReason.INSUFFICIENT_MEMORY
    host.say("ns/a", ProcessPhase.READY)
    host.say("ns/a", ProcessPhase.STOPPING)
    assert host.memory.reserved("ns/a") == 200 * MIB
    host.say("ns/a", ProcessPhase.BACKING_OFF)
    assert host.memory.reserved("ns/a") is None
    eventually(lambda: host.processes.woken == ["ns/high", "ns/low"], what="the waiting services to be woken in order")
    assert host.admit("ns/low", plan(200, priority=1)) == ProcessReason.INSUFFICIENT_MEMORY
    assert host.admit("ns/high", plan(200, priority=9)) == ""


def test_a_larger_budget_lets_those_in_that_wait(host: Host) -> None:
    assert host.admit("ns/a", plan(200)) == ""
    assert host.admit("ns/b", plan(200)) == ProcessReason.INSUFFICIENT_MEMORY
    host.memory.set_limits(MemoryLimits(budget_bytes=400 * MIB))
    eventually(lambda: host.processes.woken == ["ns/b"], what="the one that waits to be woken")
    assert host.admit("ns/b", plan(200)) == ""
    # With the agent's options again, running processes continue.
    host.memory.set_limits(MemoryLimits())
    assert host.memory.budget.bytes == 300 * MIB
    assert host.memory.reserved("ns/b") == 200 * MIB


def test_a_model_s_own_budget_bounds_it_and_all_before_it(host: Host) -> None:
    assert host.admit("ns/a", plan(200)) == ""
    assert host.admit("ns/b", plan(200, memory_budget_bytes=399 * MIB)) == ProcessReason.INSUFFICIENT_MEMORY
    assert host.admit("ns/b", plan(200, memory_budget_bytes=400 * MIB)) == ""


def test_unknown_sizes_and_those_who_ask_for_no_check(host: Host) -> None:
    assert host.admit("ns/x", plan(None)) == ProcessReason.MEMORY_UNKNOWN
    assert host.admit("ns/x", plan(None, memory_check="off")) == ""
    assert host.admit("ns/y", plan(900, memory_check="warn")) == ""
    assert host.memory.admit("_daemons/ollama", Desired(plan(None, runtime="ollama"), "h"), {}) is None


def test_pressure_evicts_refuses_starts_says_so_and_ends(tmp_path: Path) -> None:
    host = Host(tmp_path, eviction=True)
    told: list[MemoryPressure] = []
    host.memory.on_pressure.append(told.append)
    try:
        for key, priority in (("ns/low", 1), ("ns/high", 9)):
            assert host.admit(key, plan(100, priority=priority)) == ""
            host.say(key, ProcessPhase.READY)
        # Most of the memory in use belongs to other programs: no process is evicted.
        host.available(50)
        eventually(lambda: host.memory.pressure is MemoryPressure.CRITICAL, what="pressure")
        eventually(lambda: "other programs use most of the used memory" in host.memory.note(), what="the reason")
        assert host.admit("ns/new", plan(10)) == ProcessReason.INSUFFICIENT_MEMORY
        host.memory.ledger.measure({"ns/low": 300 * MIB, "ns/high": 300 * MIB})
        hold = eventually(lambda: host.processes.holds.by(PRESSURE).get("ns/low"), what="the eviction")
        assert hold.reason == ProcessReason.EVICTED
        assert hold.drain_timeout_s is not None
        time.sleep(0.2)
        assert host.memory.watchdog.evictions == 1, "while it stops, no other model is stopped"
        host.say("ns/low", ProcessPhase.PENDING)
        assert "evicted and not started again: ns/low" in host.memory.note()
        host.available(900)
        eventually(lambda: not host.processes.holds.by(PRESSURE), what="its return")
        assert told[0] is MemoryPressure.CRITICAL
        assert told[-1] is MemoryPressure.NORMAL
        assert host.memory.watchdog.evictions == 1
        text = metrics(host.memory)
        assert "herdsman_agent_evictions_total 1.0" in text
        assert 'herdsman_agent_memory_reserved_bytes{memory="ram"} 3.145728e+08' in text
        assert "herdsman_agent_memory_pressure 0.0" in text
        assert "pressure Normal, 900 MiB (90 %) available" in host.memory.explain()
    finally:
        host.memory.stop()


def test_a_start_that_never_came_about_gives_its_room_back(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.server.memory.host_memory.LEAK_S", 0.1)
    desired = Desired(plan(200), "hash")
    host.processes.found["ns/a"] = desired
    host.processes.phases["ns/a"] = ProcessPhase.BACKING_OFF
    assert host.memory.admit("ns/a", desired, {}) is None
    eventually(lambda: host.memory.reserved("ns/a") is None, what="the room to be given back")


def loaded(pid: int, mark: str, **fields: Any) -> ProcessRecord:
    """The record of a model of 200 MiB in a shared daemon; 0 is the pid of a daemon that no agent started."""
    running = RunningRecord(
        pid=pid, mark=mark, port=11434, launch_hash="hash", started_at="", reserved_bytes=200 * MIB, **fields
    )
    return ProcessRecord(plan=plan(None, runtime="ollama", daemon_model="m"), running=running)


@pytest.mark.parametrize("is_own", [True, False], ids=["a daemon of the agent", "a daemon of somebody else"])
def test_a_model_in_a_daemon_keeps_its_room_when_the_agent_restarts(tmp_path: Path, is_own: bool) -> None:
    pid = os.getpid() if is_own else 0
    host = Host(tmp_path, {"ns/m": loaded(pid, (start_mark(pid) or "") if is_own else "")})
    try:
        assert host.memory.reserved("ns/m") == 200 * MIB
        assert host.admit("ns/b", plan(200)) == ProcessReason.INSUFFICIENT_MEMORY
        host.say("ns/m", ProcessPhase.BACKING_OFF)
        assert host.admit("ns/b", plan(200)) == "", "its daemon has ended"
    finally:
        host.memory.stop()


def test_a_model_whose_daemon_ended_with_the_agent_keeps_no_room(tmp_path: Path) -> None:
    host = Host(tmp_path, {"ns/m": loaded(os.getpid(), "earlier")})
    try:
        assert host.admit("ns/b", plan(200)) == ""
    finally:
        host.memory.stop()


def test_a_model_that_still_serves_while_its_plan_names_another_engine_keeps_its_room(tmp_path: Path) -> None:
    earlier = loaded(0, "", plan=plan(None, runtime="ollama", daemon_model="m"))
    host = Host(tmp_path, {"ns/m": earlier.model_copy(update={"plan": plan(10)})})
    try:
        assert host.memory.reserved("ns/m") == 200 * MIB
    finally:
        host.memory.stop()


def test_an_unreadable_system_stops_nothing(host: Host) -> None:
    host.meminfo.unlink()
    time.sleep(0.2)
    assert host.memory.pressure is MemoryPressure.NORMAL
    assert host.admit("ns/a", plan(100)) == ""


def metrics(memory: HostMemory) -> str:
    registry = CollectorRegistry()
    registry.register(MemoryMetrics(memory))
    return generate_latest(registry).decode()
