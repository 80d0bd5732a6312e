"""The stored record and the report of a process, and how the next agent finds running processes by the records.

Called by `worker`, which writes records, and `supervisor`, which reads them at the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.contract import EarlierProcess, ProcessPhase, ProcessPlan, ProcessReport
from agent.processes.adapters import adapters_of
from agent.processes.decision import Desired
from agent.processes.lifecycle import ProcessStatus, Running
from agent.server.processes import identity
from agent.server.processes.process import Handle, Marker
from agent.server.processes.worker_context import WorkerContext
from agent.server.store import ProcessRecord, RunningRecord


@dataclass(frozen=True)
class Found:
    """A running process that an earlier agent started."""

    handle: Handle | None
    """None for a model in a shared daemon."""
    running: Running
    plan: ProcessPlan | None = None
    """The plan of the running process, if known."""


def record_of(
    desired: Desired,
    status: ProcessStatus,
    *,
    port: int | None,
    running_plan: ProcessPlan | None,
    unwanted: bool,
    reserved_bytes: int | None,
) -> ProcessRecord:
    """Return the record of a process."""
    running = status.running
    in_daemon = (running_plan or desired.plan).daemon_model is not None
    noted = running and RunningRecord(
        pid=running.pid,
        mark=running.mark,
        port=running.port,
        launch_hash=running.launch_hash,
        started_at=running.started_at,
        proved=running.proved,
        plan=None if running_plan == desired.plan else running_plan,
        reserved_bytes=reserved_bytes if in_daemon else None,
    )
    return ProcessRecord(
        plan=desired.plan,
        generation=desired.generation,
        restarts=status.restarts,
        port=port,
        running=noted,
        unwanted=True if unwanted else None,
    )


def plan_in_force(last: Desired, running: Running | None, started_by: ProcessPlan | None) -> ProcessPlan:
    """Return the plan of the running process: the one that started it, or a newer plan with the same launch hash."""
    if running is None or running.launch_hash == last.launch_hash:
        return last.plan
    return started_by or last.plan


def report_of(
    key: str,
    context: WorkerContext,
    desired: Desired,
    status: ProcessStatus,
    progress: tuple[int, int | None] | None,
    *,
    running_plan: ProcessPlan | None,
) -> ProcessReport:
    """Return the report of a process. `progress` is used only while its files are downloaded.

    `running_plan` is the plan that started the running process, if known.
    """
    running, kept, plan = status.running, status.replacement, desired.plan
    phase, reason, message, earlier = status.phase, status.reason, status.message, None
    if running is not None and kept is not None:
        phase, reason, message, plan = kept.phase, kept.reason, kept.told, running_plan or plan
        adapters = adapters_of(running_plan.argv) if running_plan is not None else None
        earlier = EarlierProcess(phase=status.phase, adapters=adapters)
    done, total = (progress if phase is ProcessPhase.DOWNLOADING else None) or (None, None)
    welcome = status.phase is ProcessPhase.READY or context.accepts_requests(key, status.phase)
    return ProcessReport(
        phase=phase,
        reason=reason,
        message=message,
        observed_generation=desired.generation,
        pid=(running.pid or None) if running else None,
        port=context.front_port(key, plan) or (running.port if running else None),
        address=context.address if running or welcome else None,
        restarts=status.restarts,
        downloaded_bytes=done,
        total_bytes=total,
        started_at=running.started_at if running else None,
        ready=welcome,
        memory_bytes=context.reserved(key),
        earlier=earlier,
    )


def still_runs(noted: RunningRecord, plan: ProcessPlan) -> bool:
    """Return whether a process in a record, which `plan` started, still runs.

    A model in a daemon that the agent did not start has no identity: it counts as running until a health check fails.
    """
    in_foreign_daemon = plan.daemon_model is not None and noted.pid == 0
    return in_foreign_daemon or identity.runs(noted.pid, noted.mark)


def found_processes(
    records: dict[str, ProcessRecord], marked: dict[str, list[tuple[Marker, Handle]]], *, now: float
) -> tuple[dict[str, Found], list[Handle]]:
    """Choose one running process for each key, and return the surplus processes of the same keys separately.

    The process in the record wins. A process without a record, whose agent ended before it could store one, is
    identified by its marker.
    """
    chosen: dict[str, Found] = {}
    surplus: list[Handle] = []
    for key, record in records.items():
        noted = record.running
        if noted is None:
            continue
        plan = noted.plan or record.plan
        if still_runs(noted, plan):
            running = Running(
                pid=noted.pid,
                mark=noted.mark,
                port=noted.port,
                launch_hash=noted.launch_hash,
                since=now,
                started_at=noted.started_at,
                proved=noted.proved,
            )
            chosen[key] = Found(None if plan.daemon_model is not None else Handle(noted.pid, noted.mark), running, plan)
    for key, candidates in marked.items():
        for marker, handle in candidates:
            if key not in chosen:
                running = Running(
                    pid=handle.pid,
                    mark=handle.mark,
                    port=marker.port,
                    launch_hash=marker.launch_hash,
                    since=now,
                    started_at="",
                )
                chosen[key] = Found(handle, running)
            elif chosen[key].running.pid != handle.pid:
                surplus.append(handle)
    return chosen, surplus
