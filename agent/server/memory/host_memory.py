"""The memory of one host: connects budget, admission, groups and watchdog with one supervisor.

Made by `agent.server.main`, which passes `admit`, `reserved` and `on_report` to the workers. One thread measures the
memory every few seconds, wakes waiting processes when memory was freed, and lets groups take turns. Workers may call
`on_report` under their locks, so it only records the report and never calls back into a worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.contract import Accelerator, MemoryPressure, ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes.decision import Desired
from agent.processes.lifecycle import Hold
from agent.server.memory.admission import AdmissionRequest, Bound, Ledger
from agent.server.memory.budget import Budget, MemoryLimits, host_budget, process_budget
from agent.server.memory.estimates import Estimator, Headers, Unknown
from agent.server.memory.eviction import SKIPPED, ReturnPolicy, RunningProcess
from agent.server.memory.machine import Machine
from agent.server.memory.model_groups import SOURCE as GROUPS
from agent.server.memory.model_groups import GroupedProcess, ModelGroups
from agent.server.memory.need import Need, amount, percent, total
from agent.server.memory.watchdog import Thresholds, Watchdog
from agent.server.processes.records import still_runs
from agent.server.processes.supervisor import Supervisor
from agent.server.store import ProcessRecord, RunningRecord
from agent.server.telemetry.usage import footprints

PRESSURE = "pressure"
"""The source of the holds of evicted processes."""
WATCH_S = 10.0
LEAK_S = 120.0
"""After this time the memory of an admitted process that was not started is given to others."""
EVICTION_DRAIN_S = 5.0
"""A host that is about to swap cannot wait for long answers."""
DAEMONS = "_daemons/"
"""Prefix of the keys of shared daemons, whose memory is counted per model."""

_INSIDE = frozenset({ProcessPhase.STARTING, ProcessPhase.READY, ProcessPhase.UNHEALTHY, ProcessPhase.STOPPING})
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class MemorySettings:
    """How an agent manages its host's memory."""

    limits: MemoryLimits = field(default_factory=MemoryLimits)
    """Options of the agent. The budget of the Host object takes precedence."""
    watch_s: float = WATCH_S
    """Seconds between two measurements. The settling time of levels and the waits of evicted processes are multiples of
    it."""
    meminfo: Path | None = None
    """A file in the format of /proc/meminfo to read instead of the system's."""


class HostMemory:
    """All memory decisions of an agent. Thread-safe. Call `start` before the supervisor's."""

    def __init__(
        self,
        settings: MemorySettings,
        *,
        find_binary: Callable[[str], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._supervisor: Supervisor | None = None
        self._estimator = Estimator(Headers())
        self.ledger = Ledger()
        self._host_limits: MemoryLimits | None = None
        self._needs: dict[str, Need] = {}
        self._adopted: dict[str, tuple[RunningRecord, ProcessPlan]] = {}
        self.machine = Machine(find_binary, meminfo_file=settings.meminfo, clock=clock)
        self._condition = threading.Condition()
        self._freed = False
        self._stirred = False
        self._stopping = False
        self.on_pressure: list[Callable[[MemoryPressure], None]] = []
        """Called in the memory thread at each change of the level."""
        watch_s = settings.watch_s or WATCH_S
        self.watchdog = Watchdog(
            runners=self._runners,
            evict=self._evict,
            let_back=self._return_process,
            on_level=self._level_changed,
            thresholds=Thresholds(settle_s=3 * watch_s),
            return_policy=ReturnPolicy(calm_s=6 * watch_s, between_s=3 * watch_s),
        )
        self.groups = ModelGroups(
            processes=self._grouped_processes,
            room=self._room_of,
            hold=lambda key, hold: self._processes().hold(key, GROUPS, hold),
            release=lambda key: self._processes().release(key, GROUPS),
            held=lambda: self._processes().holds.by(GROUPS),
            wake=lambda key: self._processes().wake(key),
            clock=clock,
            changed=self._stir,
        )
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._configure()

    # --- called by other parts of the agent ---------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        """The memory that all processes may take together, and its source."""
        return host_budget(self._limits, self.machine.capacity)

    @property
    def pressure(self) -> MemoryPressure:
        return self.watchdog.level

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The devices that llama-server uses here. Empty before the first measurement."""
        return self.machine.accelerators

    def reserved(self, key: str) -> int | None:
        """Return the memory with which a process was admitted, in bytes. None: not admitted, or unknown."""
        entry = self.ledger.entry(key)
        return (entry.need.total_bytes or None) if entry is not None else None

    def explain(self) -> str:
        """Describe the current state of the memory in one line."""
        entries = self.ledger.entries()
        memory = self.watchdog.memory
        now = f", {amount(memory.available_bytes)} ({percent(memory.share)}) available" if memory else ""
        taken = total(entry.counted for entry in entries.values())
        return f"Budget {self.budget}; {len(entries)} processes have {taken}; pressure {self.pressure.value}{now}"

    def note(self) -> str:
        """Describe what rarely changes: the source of the budget, and how pressure is handled."""
        skip, evicted = self.watchdog.skip, sorted(self.watchdog.evicted)
        about = f"; {SKIPPED[skip]}" if skip is not None else ""
        gone = f"; evicted and not started again: {', '.join(evicted)}" if evicted else ""
        return f"The budget is {self.budget}{about}{gone}."

    def set_limits(self, limits: MemoryLimits) -> None:
        """Apply the limits of the Host object."""
        if limits != self._host_limits:
            self._host_limits = limits
            self._configure()
            self._free()

    # --- called by the supervisor and its workers ---------------------------------------------------------------------

    def attach(self, supervisor: Supervisor) -> None:
        """Set the supervisor of the processes. Call this before `start`."""
        self._supervisor = supervisor

    def admit(self, key: str, desired: Desired, paths: Mapping[str, str]) -> Hold | None:
        """Return None if a process may start now, else the hold. An admitted process counts until it has ended."""
        plan = desired.plan
        if key.startswith(DAEMONS):
            return None
        self.machine.wait()
        need, unknown = self._need(key, plan, paths)
        # No other process must make room for one that admission would refuse afterwards.
        turn = self.groups.refusal(key, plan) if need is not None or plan.memory_check in ("warn", "off") else None
        if turn is not None:
            return turn
        if self.watchdog.enabled and self.pressure is MemoryPressure.CRITICAL and plan.memory_check != "off":
            message = "The host is critically short of memory: no process starts until the pressure ends"
            return Hold(ProcessPhase.PENDING, ProcessReason.INSUFFICIENT_MEMORY, message)
        budget = self.budget
        room_bytes, source = process_budget(
            budget_bytes=plan.memory_budget_bytes,
            fraction=plan.memory_fraction,
            host=budget,
            total_bytes=self.machine.capacity.total_bytes,
        )
        request = AdmissionRequest(
            key=key,
            need=need,
            bound=Bound(Need(room_bytes, budget.gpu_bytes or 0), source),
            priority=plan.priority,
            check=plan.memory_check or "enforce",
            since=self._clock(),
            unknown=unknown,
        )
        self.ledger.measure(self._footprints())
        refusal = self.ledger.admit(request, now=self._clock())
        if refusal is None:
            return None
        if request.check != "enforce":
            log = _log.warning if request.check == "warn" else _log.debug
            log("Started a process against the memory check", process=key, reason=refusal.reason, why=refusal.message)
            return None
        return Hold(ProcessPhase.PENDING, refusal.reason, refusal.message)

    def on_report(self, key: str, report: ProcessReport) -> None:
        """Record the state of a process. Called in workers' threads under their locks."""
        if report.phase is ProcessPhase.STOPPED:
            self.ledger.stop_waiting(key)
        if report.running_phase not in _INSIDE:
            self._adopted.pop(key, None)
        if report.running_phase not in _INSIDE and self.ledger.remove_process(key):
            self._free()
        else:
            self._stir()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def start(self, records: Mapping[str, ProcessRecord]) -> None:
        """Count the processes that an earlier agent left running, measure the memory once, and start the thread."""
        for key, record in records.items():
            running = record.running
            if running is not None and still_runs(running, running.plan or record.plan):
                self._adopted[key] = running, running.plan or record.plan
        self._adopt()
        self._check()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        next_look = self._clock() + (self._settings.watch_s or WATCH_S)
        groups_at: float | None = None
        while True:
            with self._condition:
                due = next_look if groups_at is None else min(next_look, groups_at)
                if not (self._stopping or self._freed or self._stirred):
                    self._condition.wait(max(0.0, due - self._clock()))
                if self._stopping:
                    return
                freed, self._freed, self._stirred = self._freed, False, False
            try:
                if self.machine.measure():
                    _log.info("Measured the host's memory", budget=str(self.budget))
                    self._adopt()
                    self._adopted.clear()
                if self._clock() >= next_look:
                    next_look = self._clock() + (self._settings.watch_s or WATCH_S)
                    self._sweep()
                    self._check()
                groups_at = self.groups.decide()
                if freed:
                    for key in self.ledger.waiting():
                        self._processes().wake(key)
            except Exception:
                # An error in this thread must not affect the processes.
                _log.exception("Failed to check the memory")
                groups_at = self._clock() + 1.0

    def _free(self) -> None:
        with self._condition:
            self._freed = True
            self._condition.notify()

    def _stir(self) -> None:
        with self._condition:
            self._stirred = True
            self._condition.notify()

    def _check(self) -> None:
        memory = self.machine.read_memory() if self._settings.watch_s else None
        if memory is not None:
            if self._supervisor is not None:
                self.watchdog.keep_only(self._supervisor.list_desired())
            self.watchdog.check(memory, now=self._clock())

    def _sweep(self) -> None:
        """Release the memory of starts that did not happen, and count running processes without an entry."""
        now, supervisor = self._clock(), self._processes()
        for key, plan in supervisor.plans().items():
            report = supervisor.report(key)
            if report is None or report.running_phase not in _INSIDE or report.pid is None or self.ledger.entry(key):
                continue
            # Found without a record, because an earlier agent lost its state.
            need = self._estimator.of_running(report.pid, plan, discrete_gpus=self.machine.discrete_gpus)
            self.ledger.adopt(key, need, plan.priority, now=now)
        for key, entry in self.ledger.entries().items():
            report = supervisor.report(key)
            if (
                now - entry.since > LEAK_S
                and (report is None or report.running_phase not in _INSIDE)
                and self.ledger.remove_process(key)
            ):
                self._free()

    # --- measuring ----------------------------------------------------------------------------------------------------

    def _footprints(self) -> dict[str, int]:
        """Measure the running processes, without shared daemons and their models, which cannot be separated."""
        supervisor = self._processes()
        units, plans = supervisor.handles(), supervisor.plans()
        own = {key: unit.pid for key, unit in units.items() if key in plans and plans[key].daemon_model is None}
        return footprints(own)

    def _need(self, key: str, plan: ProcessPlan, paths: Mapping[str, str]) -> tuple[Need | None, str]:
        try:
            need = self._estimator.need(plan, paths, discrete_gpus=self.machine.discrete_gpus)
        except Unknown as unknown:
            self._needs.pop(key, None)
            return None, str(unknown)
        self._needs[key] = need
        return need, ""

    def _adopt(self) -> None:
        """Count the processes of an earlier agent.

        Repeated after the first measurement shows where models are in memory.
        """
        for key, (running, plan) in list(self._adopted.items()):
            need = self._estimator.of_running(
                running.pid,
                plan,
                discrete_gpus=self.machine.discrete_gpus,
                reserved_bytes=running.reserved_bytes,
            )
            self.ledger.adopt(key, need, plan.priority, now=self._clock())

    # --- called by the parts ------------------------------------------------------------------------------------------

    @property
    def _limits(self) -> MemoryLimits:
        return self._host_limits.over(self._settings.limits) if self._host_limits else self._settings.limits

    def _configure(self) -> None:
        limits = self._limits
        self.watchdog.configure(warning=limits.warning, critical=limits.critical, enabled=limits.eviction)

    def _processes(self) -> Supervisor:
        assert self._supervisor is not None, "call attach first"
        return self._supervisor

    def _room_of(self, keys: Iterable[str]) -> Need:
        members, budget = set(keys), self.budget
        others = total(entry.counted for key, entry in self.ledger.entries().items() if key not in members)
        return Need(budget.bytes, budget.gpu_bytes or 0) - others

    def _grouped_processes(self) -> dict[str, GroupedProcess]:
        supervisor = self._processes()
        grouped = {
            key: desired for key, desired in supervisor.list_desired().items() if desired.plan.residency is not None
        }
        if not grouped:
            return {}
        entries, elsewhere = self.ledger.entries(), supervisor.holds
        found = {}
        for key, desired in grouped.items():
            report, entry = supervisor.report(key), entries.get(key)
            if report is None:
                continue
            found[key] = GroupedProcess(
                plan=desired.plan,
                phase=report.running_phase,
                need=entry.counted if entry is not None else self._needs.get(key, _planned_need(desired.plan)),
                inside=entry is not None,
                has_files=report.earlier is None,
                held_by_others=bool(elsewhere.sources(key) - {GROUPS}),
            )
        return found

    def _runners(self) -> list[RunningProcess]:
        supervisor, measured = self._processes(), self._footprints()
        self.ledger.measure(measured)
        by_key, found = supervisor.list_desired(), []
        for key, entry in self.ledger.entries().items():
            report = supervisor.report(key)
            if report is None or report.running_phase not in _INSIDE:
                continue
            desired = by_key.get(key)
            found.append(
                RunningProcess(
                    key=key,
                    priority=desired.plan.priority if desired else entry.priority,
                    footprint_bytes=measured.get(key) or entry.counted.ram_bytes,
                    started=entry.since,
                    protected=desired is not None and desired.plan.eviction_protection,
                    stopping=report.running_phase is ProcessPhase.STOPPING
                    or desired is None
                    or bool(supervisor.holds.sources(key)),
                )
            )
        return found

    def _evict(self, key: str, message: str) -> None:
        hold = Hold(ProcessPhase.PENDING, ProcessReason.EVICTED, message, drain_timeout_s=EVICTION_DRAIN_S)
        self._processes().hold(key, PRESSURE, hold)

    def _return_process(self, key: str) -> None:
        self._processes().release(key, PRESSURE)

    def _level_changed(self, level: MemoryPressure) -> None:
        if level is not MemoryPressure.CRITICAL:
            self._free()
        for listener in self.on_pressure:
            listener(level)


def _planned_need(plan: ProcessPlan) -> Need | None:
    return Need(plan.memory_bytes) if plan.memory_bytes is not None else None
