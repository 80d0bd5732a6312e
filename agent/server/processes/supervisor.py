"""Keeps one worker for each process of the plan, and adopts the processes that an earlier agent left running.

Called by the plan sources (`plan_watch`, `http_api`) and by `agent.server.main`; calls `worker`. The shared daemons
that `agent.server.daemons` requests are supervised like other processes, but their keys are in no plan and no report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import structlog

from agent.contract import LogPiece, ProcessPlan, ProcessReport
from agent.processes import lifecycle
from agent.processes.command_line import launch_hash
from agent.processes.decision import Desired
from agent.processes.lifecycle import Hold, ProcessStatus
from agent.server.daemons.plans import is_daemon_key
from agent.server.daemons.shared import SharedDaemons
from agent.server.processes import process, process_log
from agent.server.processes.launching import Launcher
from agent.server.processes.process import Handle, Unit
from agent.server.processes.records import Found, found_processes
from agent.server.processes.worker import Worker
from agent.server.processes.worker_context import Holds, WorkerContext

ORPHAN_GRACE_S = 30.0
"""Time between SIGTERM and SIGKILL for a process without a plan."""

_log = structlog.get_logger(__name__)


class Supervisor:
    """All processes of one host. Thread-safe."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._workers: dict[str, Worker] = {}
        self._orphans: dict[str, Found] = {}
        """Running processes without a record. They are kept until the plan was read once."""
        self._stopping = False
        # Reentrant, because the adoption of a model looks up the process of its daemon.
        self._lock = threading.RLock()
        self._daemons = SharedDaemons(context, self)
        self._launcher = Launcher(context, self._daemons)

    def start(self) -> None:
        """Adopt running processes, and continue with the stored plans until the plan source provides newer ones."""
        records = dict(self._context.store.load())
        marked = process.marked_processes(self._context.agent_id)
        found, surplus = found_processes(records, marked, now=self._context.clock())
        for handle in surplus:
            _log.warning("Stopped a surplus process", pid=handle.pid)
            handle.terminate(grace_s=ORPHAN_GRACE_S)
        process_log.prune(self._context.store.logs, kept=[self._context.store.log_file(key) for key in records])
        with self._lock:
            for key, each in found.items():
                if each.handle is not None:
                    self._context.ports.hold(key, each.running.port)
                if key not in records:
                    self._orphans[key] = each
            # A daemon must be adopted before the models in it.
            for key, record in sorted(records.items(), key=lambda item: not is_daemon_key(item[0])):
                if is_daemon_key(key) and key not in found:
                    self._context.store.remove_record(key)  # a model that needs it starts it again
                    continue
                desired = self._desired_of(record.plan, record.generation)
                worker = self._begin(key, desired, ProcessStatus(restarts=record.restarts), found.get(key), record.port)
                if record.unwanted:
                    worker.set_desired(None)
                if is_daemon_key(key):
                    self._daemons.stop_unused(key)

    def put(self, key: str, plan: ProcessPlan, generation: int = 0) -> None:
        """Run this process as planned; `key` is `namespace/name`."""
        desired = self._desired_of(plan, generation)
        with self._lock:
            if self._stopping:
                return
            worker = self._workers.get(key)
            if worker is not None and worker.set_desired(desired):
                return
            self._begin(key, desired, ProcessStatus(), self._orphans.pop(key, None), None)

    def remove(self, key: str) -> None:
        """Stop and remove this process."""
        with self._lock:
            worker = self._workers.get(key)
            if worker is not None and not self._stopping:
                worker.set_desired(None)

    def hold(self, key: str, source: str, hold: Hold) -> None:
        """Stop a process, or keep it from starting, until `source` releases the hold. The plan stays as it is."""
        if self._context.holds.put(key, source, hold):
            self.wake(key)

    def release(self, key: str, source: str) -> None:
        """Release the hold of `source`. The process runs again when no other hold remains."""
        if self._context.holds.release(key, source):
            self.wake(key)

    @property
    def holds(self) -> Holds:
        """The holds of all processes, by their sources."""
        return self._context.holds

    def wake(self, key: str) -> None:
        """Make a waiting process check again now."""
        with self._lock:
            worker = self._workers.get(key)
        if worker is not None:
            worker.wake()

    def keep_only(self, keys: Callable[[], Iterable[str]]) -> None:
        """Remove all processes except these. Call this only with a plan that was read completely.

        `keys` is called under the lock of `put`, so that a process that is put at the same time is either among the
        keys or added afterwards.
        """
        with self._lock:
            if self._stopping:
                return
            wanted = set(keys())
            orphans = {key: each for key, each in self._orphans.items() if key not in wanted}
            for key in orphans:
                del self._orphans[key]
            for key, worker in self._workers.items():
                if key not in wanted and not is_daemon_key(key):
                    worker.set_desired(None)
        for key, each in orphans.items():
            if each.handle is None:
                continue
            _log.info("Stopped a process that is in no plan", process=key, pid=each.handle.pid)
            threading.Thread(target=each.handle.terminate, kwargs={"grace_s": ORPHAN_GRACE_S}, daemon=True).start()
            self._context.ports.release(key)

    def report(self, key: str) -> ProcessReport | None:
        """Return the report of one process, or None if there is no process of that key."""
        with self._lock:
            worker = self._workers.get(key)
        return worker.report() if worker is not None else None

    def reports(self) -> dict[str, ProcessReport]:
        """Return the reports of all processes."""
        return {key: worker.report() for key, worker in self._live().items() if not is_daemon_key(key)}

    def list_desired(self) -> dict[str, Desired]:
        """Return the desired state of every process that is not being removed."""
        live = self._live().items()
        return {key: worker.last_desired for key, worker in live if worker.wanted and not is_daemon_key(key)}

    def plans(self) -> dict[str, ProcessPlan]:
        """Return the plan of every process that is not being removed."""
        return {key: desired.plan for key, desired in self.list_desired().items()}

    def handles(self) -> dict[str, Handle]:
        """Return the running processes for measurements. Includes shared daemons, but not the models in them."""
        units = {key: worker.unit for key, worker in self._live().items()}
        return {key: unit for key, unit in units.items() if isinstance(unit, Handle)}

    def log(
        self, key: str, *, tail: int | None = None, offset: int | None = None, previous: bool = False
    ) -> LogPiece | None:
        """Read the log of a process, even of a removed one. Returns None if there is no log. See `process_log.read`."""
        with self._lock:
            worker = self._workers.get(key)
        plan = worker.last_desired.plan if worker is not None else None
        daemon = self._daemons.key_of(plan) if plan is not None and plan.daemon_model is not None else key
        path = self._context.store.log_file(daemon)
        return process_log.read(process_log.copy_of(path, 1) if previous else path, tail=tail, offset=offset)

    # --- called by the shared daemons ---------------------------------------------------------------------------------

    def run_daemon(self, key: str, plan: ProcessPlan, port: int | None) -> None:
        """Keep a shared daemon running as planned; `port` is tried first."""
        desired = self._desired_of(plan, 0)
        with self._lock:
            worker = self._workers.get(key)
            if self._stopping or (worker is not None and worker.set_desired(desired)):
                return
            self._begin(key, desired, ProcessStatus(), self._orphans.pop(key, None), port)

    def stop_daemon(self, key: str) -> None:
        """Stop a shared daemon."""
        self.remove(key)

    def daemon_report(self, key: str) -> ProcessReport | None:
        """Return the report of a shared daemon, or None if the agent runs none of that key."""
        worker = self._live().get(key)
        return worker.report() if worker is not None else None

    def daemon_plan(self, key: str) -> ProcessPlan | None:
        """Return the plan of a shared daemon that the agent runs."""
        worker = self._live().get(key)
        return worker.last_desired.plan if worker is not None else None

    def daemon_unit(self, key: str) -> Unit | None:
        """Return the process of a shared daemon."""
        worker = self._live().get(key)
        return worker.unit if worker is not None else None

    def stop(self, *, keep_processes: bool) -> None:
        """End all workers and wait for them. Their processes stop as well, unless `keep_processes` is set."""
        with self._lock:
            self._stopping = True
            workers = list(self._workers.values())
        # Models are unloaded before their daemons stop.
        self._end([w for w in workers if not is_daemon_key(w.key)], keep_processes=keep_processes)
        self._end([w for w in workers if is_daemon_key(w.key)], keep_processes=keep_processes)

    def _end(self, workers: list[Worker], *, keep_processes: bool) -> None:
        for worker in workers:
            if keep_processes:
                worker.detach()
            else:
                worker.stop_process()
        deadline = time.monotonic() + max((w.longest_stop_s for w in workers), default=0.0) + 15.0
        for worker in workers:
            if not worker.join(max(0.1, deadline - time.monotonic())):
                _log.warning("Left a process behind", process=worker.key)

    def _live(self) -> dict[str, Worker]:
        with self._lock:
            return {key: worker for key, worker in self._workers.items() if not worker.finished}

    def _desired_of(self, plan: ProcessPlan, generation: int) -> Desired:
        return Desired(plan, launch_hash(plan, self._context.listening(plan)), generation)

    def _begin(
        self, key: str, desired: Desired, status: ProcessStatus, found: Found | None, port: int | None
    ) -> Worker:
        unit: Unit | None = None
        if found is not None:
            status = lifecycle.process_adopted(status, found.running, now=self._context.clock())
            unit = found.handle or self._launcher.adopt(key, found.plan or desired.plan, found.running)
            _log.info("Adopted a running process", process=key, pid=unit.pid, port=found.running.port)
        worker = Worker(key, self._context, self._launcher, desired, status, unit, found.plan if found else None)
        self._workers[key] = worker
        worker.start(port=port)
        return worker
