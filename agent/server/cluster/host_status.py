"""Builds the status of a Host object from measured facts, and decides whether a change is worth a write. Without I/O.

Called by `agent.server.cluster.host_object`, and by the loop for hosts that it reaches over SSH.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.contract import HostFacts, MemoryPressure, ProcessReport, ProcessUsage
from agent.server.cluster.host_spec import HostSpec
from kubeapi.json_types import Json

READY = "Ready"
REASON_RUNNING = "AgentRunning"
REASON_STOPPED = "AgentStopped"
NUMBERS_EVERY_S = 15.0
"""Shortest interval between two writes of measured numbers."""
SMALLEST_SHARE = 0.05
"""A relative change of a number below this share is not worth a write."""
_LEAST = {"cpuPercent": 10.0, "memory": 64 << 20, "tokensPerSecond": 2.0, "slotsBusy": 1.0}
"""An absolute change of these numbers below this value is not worth a write either."""
_UNTOLD = ("lastHeartbeat", "lastTransitionTime")


def host_status(
    facts: HostFacts,
    *,
    reports: Mapping[str, ProcessReport],
    usage: Mapping[str, ProcessUsage],
    spec: HostSpec,
    conditions: tuple[Json, ...] = (),
    now: str,
    running: bool = True,
) -> Json:
    """Return the status of a Host.

    `conditions` are the object's current conditions, whose transition times are kept; `now` is RFC 3339. `running`
    False: the agent is stopping.
    """
    budget = facts.memory_budget_bytes
    status: Json = {
        "address": facts.address,
        "agentVersion": facts.agent_version,
        "os": facts.os,
        "arch": facts.arch,
        "capacity": {"cpu": facts.cpus, "memory": facts.memory_bytes},
        "allocatable": {"cpu": facts.cpus, "memory": facts.memory_bytes if budget is None else budget},
        "accelerators": [
            {"type": a.type, "name": a.name, "count": a.count, "memory": a.memory_bytes} for a in facts.accelerators
        ],
        "runtimes": dict(sorted(facts.runtimes.items())),
        "memoryPressure": str(facts.memory_pressure),
        "endpoint": facts.endpoint or None,
        "tlsFingerprint": facts.tls_fingerprint or None,
        "observedGeneration": spec.generation,
        "processes": [_process(key, report, usage.get(key)) for key, report in sorted(reports.items())],
        "lastHeartbeat": now,
    }
    before = {c.get("type"): c for c in conditions}
    status["conditions"] = [
        _condition(before.get(kind) or {}, kind, *told, generation=spec.generation, now=now)
        for kind, *told in (_ready(running), _pressure(facts), _schedulable(spec))
    ]
    told: Json = _without_none(status)
    return told


def _process(key: str, report: ProcessReport, usage: ProcessUsage | None) -> Json:
    used = usage or ProcessUsage()
    return {
        "name": key,
        "phase": str(report.phase),
        "reserved": report.memory_bytes,
        "memory": used.footprint_bytes or used.rss_bytes,
        "cpuPercent": used.cpu_percent,
        "tokensPerSecond": used.tokens_per_second,
        "slots": used.slots,
        "slotsBusy": used.slots_busy,
    }


def _ready(running: bool) -> tuple[str, str, str, str]:
    if running:
        return (READY, "True", REASON_RUNNING, "The agent runs.")
    return (READY, "False", REASON_STOPPED, "The agent was stopped.")


def _pressure(facts: HostFacts) -> tuple[str, str, str, str]:
    level, note = facts.memory_pressure, f" {facts.memory_note}" if facts.memory_note else ""
    if level is MemoryPressure.NORMAL:
        return ("MemoryPressure", "False", "Normal", f"There is enough memory.{note}")
    return ("MemoryPressure", "True", str(level), f"Memory is short: {str(level).lower()}.{note}")


def _schedulable(spec: HostSpec) -> tuple[str, str, str, str]:
    if spec.drain:
        return ("Schedulable", "False", "Draining", "spec.drain is set: all services that may move leave this host.")
    if spec.unschedulable:
        return ("Schedulable", "False", "Cordoned", "spec.unschedulable is set: this host gets no new services.")
    return ("Schedulable", "True", "Open", "New services may be placed here.")


def _condition(before: Json, kind: str, status: str, reason: str, message: str, *, generation: int, now: str) -> Json:
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": since or now,
    }


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_none(each) for each in value]
    return value


def needs_write(before: Mapping[str, Any], after: Mapping[str, Any], *, since_s: float) -> bool:
    """Return whether a status differs enough from the one written `since_s` ago.

    Changed texts are written immediately. Measured numbers wait, and count only if they have changed by more than a few
    percent.
    """
    if _words(before) != _words(after):
        return True
    return since_s >= NUMBERS_EVERY_S and _numbers_differ(before, after)


def _words(value: Any) -> Any:
    """Remove the values that change all the time: timestamps, and the numbers of processes."""
    if isinstance(value, dict):
        return {k: _words(v) for k, v in value.items() if k not in _UNTOLD and not (k in _LEAST and "phase" in value)}
    if isinstance(value, (list, tuple)):
        return [_words(each) for each in value]
    return value


def _numbers_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    old, new = ({p["name"]: p for p in status.get("processes") or ()} for status in (before, after))
    return any(
        _differ(name, old.get(key, {}).get(name), process.get(name)) for key, process in new.items() for name in _LEAST
    )


def _differ(name: str, old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) >= max(_LEAST[name], SMALLEST_SHARE * max(abs(old), abs(new)))
