"""Keeps one worker for each process of the plan, and takes over what an earlier agent left running.

Called by the plan sources (`plan_watch`, `http_api`) and by `agent.server.main`; calls `agent.server.worker`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from agent.contract import ProcessPlan, ProcessReport
from agent.server import lifecycle, process
from agent.server.lifecycle import Goal, Hold, Life, Running
from agent.server.process import Handle, Marker
from agent.server.store import ProcessRecord
from agent.server.surroundings import Surroundings
from agent.server.worker import Worker

ORPHAN_GRACE_S = 30.0
"""How long a process without a plan has between SIGTERM and SIGKILL."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Found:
    """A running process of an earlier agent."""

    handle: Handle
    running: Running


def found_processes(
    records: dict[str, ProcessRecord], marked: dict[str, list[tuple[Marker, Handle]]], *, now: float
) -> tuple[dict[str, Found], list[Handle]]:
    """Choose the one running process of each key, and tell which others of the same key are too many.

    The one that was written down wins. One that was not (the agent died before it could) is known by its marker.
    """
    chosen: dict[str, Found] = {}
    surplus: list[Handle] = []
    for key, record in records.items():
        noted = record.running
        if noted is not None and process.start_mark(noted.pid) == noted.mark:
            running = Running(
                pid=noted.pid,
                mark=noted.mark,
                port=noted.port,
                launch_hash=noted.launch_hash,
                since=now,
                started_at=noted.started_at,
                proved=noted.proved,
            )
            chosen[key] = Found(Handle(noted.pid, noted.mark), running)
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
            elif chosen[key].handle.pid != handle.pid:
                surplus.append(handle)
    return chosen, surplus


class Supervisor:
    """All processes of one host. Safe for use by many threads."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._workers: dict[str, Worker] = {}
        self._orphans: dict[str, Found] = {}
        """Running, and in no record: kept until the plan was read once."""
        self._stopping = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Adopt what runs, and go on with the plans that were written down until the plan source says otherwise."""
        records = dict(self._around.store.load())
        marked = process.marked_processes(self._around.agent_id)
        found, surplus = found_processes(records, marked, now=self._around.clock())
        for handle in surplus:
            _log.warning("Stopped a surplus process", pid=handle.pid)
            handle.terminate(grace_s=ORPHAN_GRACE_S)
        with self._lock:
            for key, each in found.items():
                self._around.ports.hold(key, each.running.port)
                if key not in records:
                    self._orphans[key] = each
            for key, record in records.items():
                goal = self._goal(record.plan, record.generation)
                self._begin(key, goal, Life(restarts=record.restarts), found.get(key), record.port)

    def put(self, key: str, plan: ProcessPlan, generation: int = 0) -> None:
        """Want this process to run as planned; `key` is `namespace/name`."""
        goal = self._goal(plan, generation)
        with self._lock:
            if self._stopping:
                return
            worker = self._workers.get(key)
            if worker is not None and worker.offer(goal):
                return
            self._begin(key, goal, Life(), self._orphans.pop(key, None), None)

    def remove(self, key: str) -> None:
        """Want this process gone."""
        with self._lock:
            worker = self._workers.get(key)
            if worker is not None and not self._stopping:
                worker.offer(None)

    def hold(self, key: str, source: str, hold: Hold) -> None:
        """Stop a process, or keep it from starting, until `source` takes that back. Its plan stays as it is."""
        if self._around.holds.put(key, source, hold):
            self.wake(key)

    def release(self, key: str, source: str) -> None:
        """Take back what `source` said; the process runs again once nobody holds it."""
        if self._around.holds.take_back(key, source):
            self.wake(key)

    def wake(self, key: str) -> None:
        """Have a process that waits look again now."""
        with self._lock:
            worker = self._workers.get(key)
        if worker is not None:
            worker.wake()

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove all but these. To be called only with a plan that was read in full."""
        wanted = set(keys)
        with self._lock:
            orphans = {key: each for key, each in self._orphans.items() if key not in wanted}
            for key in orphans:
                del self._orphans[key]
            unwanted = [key for key in self._workers if key not in wanted]
        for key in unwanted:
            self.remove(key)
        for key, each in orphans.items():
            _log.info("Stopped a process that is in no plan", process=key, pid=each.handle.pid)
            threading.Thread(target=each.handle.terminate, kwargs={"grace_s": ORPHAN_GRACE_S}, daemon=True).start()
            self._around.ports.release(key)

    def report(self, key: str) -> ProcessReport | None:
        """Say how one process is; None when there is none of that key."""
        with self._lock:
            worker = self._workers.get(key)
        return worker.report() if worker is not None else None

    def reports(self) -> dict[str, ProcessReport]:
        """Say how every process is."""
        return {key: worker.report() for key, worker in self._live().items()}

    def goals(self) -> dict[str, Goal]:
        """Give what is wanted of every process, leaving out those that are on their way out."""
        return {key: worker.goal for key, worker in self._live().items() if worker.wanted}

    def plans(self) -> dict[str, ProcessPlan]:
        """Give the plan of every wanted process."""
        return {key: goal.plan for key, goal in self.goals().items()}

    def handles(self) -> dict[str, Handle]:
        """Give the running processes, for measuring."""
        return {key: w.handle for key, w in self._live().items() if w.handle is not None}

    def stop(self, *, keep_processes: bool) -> None:
        """End all workers: with their processes, or without touching them. Returns when that is done."""
        with self._lock:
            self._stopping = True
            workers = list(self._workers.values())
        for worker in workers:
            if keep_processes:
                worker.leave()
            else:
                worker.halt()
        longest = max((w.goal.plan.stop_grace_s for w in workers), default=0.0) + 15.0
        deadline = time.monotonic() + longest
        for worker in workers:
            if not worker.join(max(0.1, deadline - time.monotonic())):
                _log.warning("Left a process behind", process=worker.key)

    def _live(self) -> dict[str, Worker]:
        with self._lock:
            return {key: worker for key, worker in self._workers.items() if not worker.finished}

    def _goal(self, plan: ProcessPlan, generation: int) -> Goal:
        return Goal(plan, lifecycle.launch_hash(plan, self._around.listening(plan)), generation)

    def _begin(self, key: str, goal: Goal, life: Life, found: Found | None, port: int | None) -> None:
        handle = None
        if found is not None:
            life = lifecycle.adopted(life, found.running, now=self._around.clock())
            handle = found.handle
            _log.info("Adopted a running process", process=key, pid=handle.pid, port=found.running.port)
        worker = Worker(key, self._around, goal, life, handle)
        self._workers[key] = worker
        worker.start(port=port)
