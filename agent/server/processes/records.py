"""What an agent writes down and reports of a process, and what the next agent makes of it.

Called by `worker`, which writes, and `supervisor`, which reads at the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.contract import ProcessPhase, ProcessPlan, ProcessReport
from agent.processes.decision import Desired
from agent.processes.lifecycle import ProcessStatus, Running
from agent.server.processes import identity
from agent.server.processes.process import Handle, Marker
from agent.server.processes.worker_context import WorkerContext
from agent.server.store import ProcessRecord, RunningRecord


@dataclass(frozen=True)
class Found:
    """A running process of an earlier agent."""

    handle: Handle | None
    """None for a model in a shared daemon."""
    running: Running
    plan: ProcessPlan | None = None
    """The plan that it was started by, where that is known."""


def record_of(
    desired: Desired, status: ProcessStatus, *, port: int | None, running_plan: ProcessPlan | None, unwanted: bool
) -> ProcessRecord:
    """Write down a process."""
    running = status.running
    noted = running and RunningRecord(
        pid=running.pid,
        mark=running.mark,
        port=running.port,
        launch_hash=running.launch_hash,
        started_at=running.started_at,
        proved=running.proved,
        plan=None if running_plan == desired.plan else running_plan,
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
    """Give the plan by which a process runs: the one that started it, or a newer one that wants the same start."""
    if running is None or running.launch_hash == last.launch_hash:
        return last.plan
    return started_by or last.plan


def report_of(
    key: str, context: WorkerContext, desired: Desired, status: ProcessStatus, progress: tuple[int, int | None] | None
) -> ProcessReport:
    """Say how a process is. `progress` counts while its files are fetched."""
    done, total = (progress if status.phase is ProcessPhase.DOWNLOADING else None) or (None, None)
    running = status.running
    welcome = status.phase is ProcessPhase.READY or context.accepts_requests(key, status.phase)
    return ProcessReport(
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        observed_generation=desired.generation,
        pid=(running.pid or None) if running else None,
        port=context.front_port(key, desired.plan) or (running.port if running else None),
        address=context.address if running or welcome else None,
        restarts=status.restarts,
        downloaded_bytes=done,
        total_bytes=total,
        started_at=running.started_at if running else None,
        ready=welcome,
        memory_bytes=context.reserved(key),
    )


def found_processes(
    records: dict[str, ProcessRecord], marked: dict[str, list[tuple[Marker, Handle]]], *, now: float
) -> tuple[dict[str, Found], list[Handle]]:
    """Choose the one running process of each key, and tell which others of the same key are too many.

    The one that was written down wins. One that was not (the agent died before it could) is known by its marker. A
    model in somebody else's daemon has no process to be known by: it counts as there until a health check says no.
    """
    chosen: dict[str, Found] = {}
    surplus: list[Handle] = []
    for key, record in records.items():
        noted = record.running
        if noted is None:
            continue
        plan = noted.plan or record.plan
        in_daemon = plan.daemon_model is not None
        if (in_daemon and noted.pid == 0) or identity.runs(noted.pid, noted.mark):
            running = Running(
                pid=noted.pid,
                mark=noted.mark,
                port=noted.port,
                launch_hash=noted.launch_hash,
                since=now,
                started_at=noted.started_at,
                proved=noted.proved,
            )
            chosen[key] = Found(None if in_daemon else Handle(noted.pid, noted.mark), running, plan)
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
