"""Swaps the models of a group in a host's memory: `residency` decides which run, the others are held.

Called by `agent.server.memory.host_memory` at each start, each report and each time that a decision sets. The proxy
reports demand (`wanted`, `used`). A process that is swapped out is held, so its worker drains and stops it. A process
that has not run yet is only refused admission, so that its files are fetched in the meantime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason
from agent.processes.lifecycle import Hold
from agent.server.memory.need import Need
from agent.server.memory.residency import Decision, Member, Rules, decide

SOURCE = "turns"
"""The source of the holds."""
WANTED_S = 300.0
"""Demand that is not repeated for this time ends, if the plan sets no wake timeout."""
_GONE = frozenset({ProcessPhase.FAILED, ProcessPhase.STOPPED})


@dataclass(frozen=True)
class GroupedProcess:
    """The current state of a process in a group."""

    plan: ProcessPlan
    phase: ProcessPhase
    need: Need | None
    inside: bool
    """It has memory: it starts, serves or stops."""
    held_by_others: bool = False
    """Another source holds it: it sleeps, or it was evicted."""
    has_files: bool = True
    """If it has memory, it runs with the files of its plan, and not by an earlier plan."""


@dataclass
class _Demand:
    wanted_since: float | None = None
    wanted_at: float = 0.0
    used_at: float | None = None


@dataclass
class ModelGroups:
    """The groups of one host. Thread-safe."""

    processes: Callable[[], Mapping[str, GroupedProcess]]
    """All processes that are in a group, in their current state."""
    room: Callable[[Iterable[str]], Need]
    """The memory that these processes may have together: the budget less the memory of all others."""
    hold: Callable[[str, Hold], None]
    release: Callable[[str], None]
    held: Callable[[], Mapping[str, Hold]]
    """The holds of `SOURCE`."""
    wake: Callable[[str], None]
    clock: Callable[[], float]
    changed: Callable[[], None] = lambda: None
    """Called at new demand, so that `decide` is called soon. Must not block."""
    in_flight: Callable[[str], int] = lambda _key: 0
    """Running requests per process, as far as a proxy knows them."""
    rules: Rules = field(default_factory=Rules)
    swaps: int = 0
    """How often a process was swapped out for another."""
    _demand: dict[str, _Demand] = field(default_factory=dict)
    _waiting: dict[str, str] = field(default_factory=dict)
    """Processes that are refused admission, and the message."""
    _too_large: set[str] = field(default_factory=set)
    _serves_since: dict[str, float] = field(default_factory=dict)
    _fetched: dict[str, tuple[FilePlan | None, dict[str, FilePlan] | None]] = field(default_factory=dict)
    """The files of processes that were ready to start once. These files are already in the store."""
    _demand_lock: threading.Lock = field(default_factory=threading.Lock)
    _decide_lock: threading.RLock = field(default_factory=threading.RLock)

    def wanted(self, key: str) -> None:
        """Record that a request waits for a process that does not run."""
        with self._demand_lock:
            demand, now = self._demand.setdefault(key, _Demand()), self.clock()
            demand.wanted_at = now
            first = demand.wanted_since is None
            if demand.wanted_since is None:
                demand.wanted_since = now
        if first:
            self.changed()

    def used(self, key: str) -> None:
        """Record that a request began or ended."""
        with self._demand_lock:
            self._demand.setdefault(key, _Demand()).used_at = self.clock()

    def refusal(self, key: str, plan: ProcessPlan) -> Hold | None:
        """Return why a process that is ready to start must wait. None: it may start."""
        if plan.residency is None:
            return None
        with self._decide_lock:
            self.decide(requester=key)
            message, too_large = self._waiting.get(key), key in self._too_large
        if message is None:
            return None
        if too_large:
            return Hold(ProcessPhase.PENDING, ProcessReason.INSUFFICIENT_MEMORY, message)
        return _hold(plan, message)

    def decide(self, *, requester: str = "") -> float | None:
        """Decide for each group and act on it. Returns when to decide again; None means when something changes.

        `requester` is a process that is ready to start now, regardless of its last report.
        """
        with self._decide_lock:
            now = self.clock()
            processes = {
                key: process
                for key, process in self.processes().items()
                if key == requester or process.inside or process.phase not in _GONE
            }
            self._drop_met_demand(processes, now)
            for key in self.held():
                if key not in processes:
                    # The plan of the process is no longer in the group.
                    self.release(key)
            groups: dict[str, list[str]] = {}
            for key, process in processes.items():
                groups.setdefault(process.plan.group or "", []).append(key)
            moments: list[float] = []
            waiting: dict[str, str] = {}
            self._too_large.clear()
            for name, keys in sorted(groups.items()):
                members = [self._member(key, processes[key], requester=requester) for key in keys]
                decision = decide(members, self.room(keys), now=now, rules=self.rules)
                if decision.look_again is not None:
                    moments.append(decision.look_again)
                self._act(name, decision, processes, waiting)
            turned = [key for key in self._waiting if key in processes and key not in waiting and key != requester]
            self._waiting = waiting
            for key in turned:
                self.wake(key)
            return min(moments, default=None)

    def _act(
        self, group: str, decision: Decision, processes: Mapping[str, GroupedProcess], waiting: dict[str, str]
    ) -> None:
        held = self.held()
        for key in decision.inside:
            if key in held:
                self.release(key)
        self._too_large |= decision.too_large.keys()
        for key in decision.outside:
            message = self._message(group, key, decision, processes[key].need)
            if processes[key].inside or key in held:
                if key not in held:
                    self.swaps += 1
                    self.hold(key, _hold(processes[key].plan, message))
            elif key in decision.blocked_by or key in decision.too_large or processes[key].plan.residency == "onDemand":
                waiting[key] = message

    def _message(self, group: str, key: str, decision: Decision, need: Need | None) -> str:
        named = f"group `{group}`" if group else "its group"
        if key in decision.too_large:
            return (
                f"Needs {need}; other processes of the host and pinned ones of {named} leave only "
                f"{decision.too_large[key]}, even without all other members of the group"
            )
        others = [other for other in decision.blocked_by.get(key, ()) if other != key]
        if others:
            return f"Waits for its turn: {', '.join(others)} have the memory of {named}"
        return f"Waits for a request, because its residency in {named} is onDemand"

    def _member(self, key: str, process: GroupedProcess, *, requester: str) -> Member:
        plan = process.plan
        assert plan.residency is not None
        with self._demand_lock:
            demand = self._demand.get(key, _Demand())
            wanted_since, used_at = demand.wanted_since, demand.used_at
        files = plan.file, plan.files
        if not process.inside:
            self._serves_since.pop(key, None)
        elif process.phase is not ProcessPhase.STARTING:
            self._serves_since.setdefault(key, self.clock())
        if key == requester or (process.inside and process.has_files):
            self._fetched[key] = files
        elif self._fetched.get(key) != files:
            self._fetched.pop(key, None)
        known = process.need is not None or plan.memory_check in ("warn", "off")
        ready = key == requester or (
            known
            and not process.held_by_others
            and process.phase is not ProcessPhase.BACKING_OFF
            and (process.phase is not ProcessPhase.DOWNLOADING or key in self._fetched)
        )
        return Member(
            key=key,
            residency=plan.residency,
            need=process.need,
            priority=plan.priority,
            inside_since=self._serves_since.get(key),
            starting=process.inside and key not in self._serves_since,
            ready_to_start=ready,
            wanted_since=wanted_since,
            used_at=used_at,
            in_flight=self.in_flight(key),
            proxied=plan.idle_timeout_s is not None,
            dwell_s=plan.min_dwell_s,
            idle_s=None if plan.idle_timeout_s is None else min(plan.idle_timeout_s, self.rules.idle_s),
        )

    def _drop_met_demand(self, processes: Mapping[str, GroupedProcess], now: float) -> None:
        """Remove demand that was met or timed out, or whose process is gone."""
        with self._demand_lock:
            for key in {*self._fetched, *self._serves_since} - processes.keys():
                self._fetched.pop(key, None)
                self._serves_since.pop(key, None)
            for key, demand in list(self._demand.items()):
                process = processes.get(key)
                if process is None:
                    # Demand for a process outside of groups is not used.
                    del self._demand[key]
                    continue
                patience = process.plan.wake_timeout_s or WANTED_S
                if demand.wanted_since is None:
                    continue
                if process.phase is ProcessPhase.READY:
                    demand.used_at = now
                    demand.wanted_since = None
                elif now - demand.wanted_at > patience:
                    demand.wanted_since = None


def _hold(plan: ProcessPlan, message: str) -> Hold:
    # A process behind a proxy is asleep: requests still arrive and wake it.
    phase = ProcessPhase.PENDING if plan.idle_timeout_s is None else ProcessPhase.ASLEEP
    return Hold(phase, ProcessReason.SWAPPED_OUT, message)
