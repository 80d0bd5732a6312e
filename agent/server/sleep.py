"""Puts processes to sleep that get no requests, and wakes them for the next one. A proxy listens in their place.

Made by `agent.server.main`. Workers ask for the port that clients use and pass their reports. Processes are held and
released through the supervisor, with the source `idle`. One thread handles calls of the proxy and of workers in order,
so that neither waits. Ports and sleeping processes are written to a small file in the store for the next agent.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import structlog
from pydantic import Field, ValidationError

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason, ProcessReport, Wire
from agent.processes.decision import Desired
from agent.processes.lifecycle import Hold
from agent.proxy.limits import DEFAULT_MAX_HELD, DEFAULT_WAKE_TIMEOUT_S, Limits
from agent.proxy.server import Proxy
from agent.proxy.service import Callbacks
from agent.server.processes.ports import NoPortFree, Ports
from agent.server.processes.supervisor import Supervisor
from agent.server.processes.worker_context import LOOPBACK, Holds
from agent.server.store import Store

FILE = "front-state.json"


class SleepRecord(Wire):
    """The stored record of one process that may sleep."""

    port: int | None = None
    asleep: str | None = None
    """Launch hash of the sleeping plan. None: the process does not sleep."""


class _SleepFile(Wire):
    version: int = 1
    fronts: dict[str, SleepRecord] = Field(default_factory=dict)


def load_records(directory: Path) -> dict[str, SleepRecord]:
    """Read the records of the previous agent, by process. A file that cannot be read counts as empty."""
    try:
        return _SleepFile.model_validate_json((directory / FILE).read_bytes()).fronts
    except (OSError, ValidationError):
        return {}


def save_records(directory: Path, fronts: dict[str, SleepRecord]) -> None:
    """Write the records atomically. Raises OSError."""
    draft = directory / f".{FILE}.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(_SleepFile(fronts=fronts).model_dump(mode="json", by_alias=True, exclude_none=True), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / FILE)


SOURCE = "idle"
"""The source of the holds."""

_SERVING = frozenset({ProcessPhase.READY, ProcessPhase.UNHEALTHY})
_ON_THE_WAY = frozenset(
    {ProcessPhase.PENDING, ProcessPhase.DOWNLOADING, ProcessPhase.STARTING, ProcessPhase.STOPPING, ProcessPhase.ASLEEP}
)

_log = structlog.get_logger(__name__)


class ProcessSleep:
    """The processes of one agent that may sleep. Thread-safe."""

    def __init__(
        self,
        store: Store,
        ports: Ports,
        holds: Holds,
        *,
        address: str,
        wanted: Callable[[str], None] = lambda _key: None,
        used: Callable[[str], None] = lambda _key: None,
    ) -> None:
        """`address` is the address at which clients reach the host.

        `wanted` is called with a process that requests wait for, each second while they wait. `used` is called with a
        process that is in use, and must not block.
        """
        self.proxy = Proxy("front")
        self._store = store
        self._ports = ports
        self._holds = holds
        self._address = address
        self._wanted = wanted
        self._used = used
        self._supervisor: Supervisor | None = None
        self._lock = threading.RLock()
        self._open: dict[str, Limits] = {}
        self._records: dict[str, SleepRecord] = {}
        self._accepting: set[str] = set()
        """Processes that served once and are asleep or waking. Their requests are accepted although they do not run."""
        self._stopping = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="front-jobs", daemon=True)

    def start(self, supervisor: Supervisor) -> None:
        """Start, before the supervisor does. A process that slept when the previous agent ended continues to sleep."""
        self._supervisor = supervisor
        known = self._store.load()
        self._records = {key: each for key, each in load_records(self._store.root).items() if key in known}
        for key, record in self._records.items():
            if record.asleep is not None:
                self._accepting.add(key)
                self._holds.put(key, SOURCE, _hold(None))

    def stop_routing(self) -> None:
        """Send no further request to the processes, because they are about to stop. Running requests continue."""
        self._stopping = True
        with self._lock:
            for key in self._open:
                self.proxy.set_starting(key)

    def stop(self) -> None:
        """Close all listeners. The records of ports and sleeping processes stay."""
        self._stopping = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(5.0)
        self.proxy.stop()

    # --- called by workers ------------------------------------------------------------------------------------

    def port(self, key: str, plan: ProcessPlan) -> int | None:
        """Return the port that clients use, or None for a plan that never sleeps. As `WorkerContext.front_port`."""
        if plan.idle_timeout_s is None:
            if key in self._open and not self._stopping:
                self._close(key)
            return None
        limits = _limits(plan)
        # A removed process may still be asked for a report. Only a process with a record gets a listener.
        wanted = key in self._open or key in self._store.records()
        if self._open.get(key) != limits and wanted and not self._stopping:
            self._open_or_change(key, limits)
        record = self._records.get(key)
        return record.port if record is not None else None

    def accepts_requests(self, key: str, phase: ProcessPhase) -> bool:
        """Return whether requests are accepted although the process does not run, because it sleeps or wakes."""
        return phase in _ON_THE_WAY and key in self._accepting

    def requests_in_flight(self, key: str) -> int:
        """Return how many requests are running or wait."""
        return self.proxy.requests_in_flight(key)

    def on_report(self, key: str, desired: Desired, report: ProcessReport) -> None:
        """Handle a report of a process in this object's thread. Never blocks."""
        if report.phase is ProcessPhase.STOPPED and key not in self._records:
            return
        if desired.plan.idle_timeout_s is not None and not self._stopping:
            self._jobs.put(lambda: self._handle_report(key, desired, report))

    def _open_or_change(self, key: str, limits: Limits) -> None:
        with self._lock:
            if key in self._open:
                self._open[key] = limits
                self.proxy.set_limits(key, limits)
                return
            record = self._records.get(key, SleepRecord())
            if not self._thread.is_alive():
                # An agent without a process that may sleep does not need the threads.
                self.proxy.start()
                self._thread.start()
            try:
                port = self._ports.claim(_port_key(key), preferred=record.port, address=self._address)
                self.proxy.open(key, self._address, port, limits, self._callbacks())
            except (NoPortFree, OSError) as error:
                # Clients cannot reach the process then, and its report contains no port. The next report tries again.
                _log.error("Failed to listen for a process that may sleep", process=key, error=str(error))
                return
            self._open[key] = limits
            if record.asleep is None:
                self.proxy.set_starting(key)
            self._write(key, SleepRecord(port=port, asleep=record.asleep))

    def _callbacks(self) -> Callbacks:
        return Callbacks(
            wake=lambda key: self._jobs.put(lambda: self._wake(key)),
            idle=lambda key: self._jobs.put(lambda: self._sleep(key)),
            waiting=lambda key: self._jobs.put(lambda: self._wanted(key)),
            used=self._used,
        )

    # --- in this object's thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._stopping:
                continue
            try:
                job()
            except Exception:
                _log.exception("Failed to update a process that may sleep")

    def _handle_report(self, key: str, desired: Desired, report: ProcessReport) -> None:
        asleep = self._asleep(key)
        if report.phase is ProcessPhase.STOPPED:
            self._close(key)
        elif report.running_phase in _SERVING:
            if asleep is None:
                self._route(key)
        elif report.phase in (ProcessPhase.FAILED, ProcessPhase.BACKING_OFF):
            self._accepting.discard(key)
            self.proxy.set_failed(key, f"{report.reason}: {report.message.partition(chr(10))[0]}")
        elif report.phase is ProcessPhase.ASLEEP:
            if asleep is not None and asleep != desired.launch_hash:
                # A new plan has to start once, as a new service does.
                self._wake(key)
            else:
                self._accepting.add(key)
                self.proxy.set_asleep(key)
        elif asleep is None:
            self.proxy.set_starting(key)

    def _route(self, key: str) -> None:
        record = self._store.records().get(key)
        if record is not None and record.running is not None and key in self._open:
            self._accepting.discard(key)
            plan = record.running.plan or record.plan
            address = self._address if plan.daemon_model is not None else LOOPBACK
            self.proxy.set_targets(key, ((address, record.running.port),))

    def _sleep(self, key: str) -> None:
        assert self._supervisor is not None
        desired = self._supervisor.list_desired().get(key)
        if desired is None or desired.plan.idle_timeout_s is None:
            return
        report = self._supervisor.report(key)
        if report is not None and report.earlier is not None:
            # Its plan cannot start yet, so the next request could not wake it.
            self._route(key)
            return
        self._accepting.add(key)
        self._write(key, self._record(key).model_copy(update={"asleep": desired.launch_hash}))
        # Repeated, because a report may have routed requests to the process after the proxy found it idle.
        self.proxy.set_asleep(key)
        _log.info("Put a process to sleep", process=key, idle_s=desired.plan.idle_timeout_s)
        self._supervisor.hold(key, SOURCE, _hold(desired.plan.idle_timeout_s))

    def _wake(self, key: str) -> None:
        assert self._supervisor is not None
        self._wanted(key)
        if self._asleep(key) is None:
            return
        self._write(key, self._record(key).model_copy(update={"asleep": None}))
        _log.info("Woke a process", process=key)
        self._supervisor.release(key, SOURCE)
        report = self._supervisor.report(key)
        if report is not None and report.running_phase in _SERVING:
            # The process was not stopped yet, so it will not send a new report.
            self._route(key)

    def _close(self, key: str) -> None:
        with self._lock:
            if self._open.pop(key, None) is not None:
                self.proxy.close(key)
            self._ports.release(_port_key(key))
            self._accepting.discard(key)
            record = self._records.pop(key, None)
            if record is not None:
                self._save()
        if record is not None and record.asleep is not None and self._supervisor is not None:
            self._jobs.put(lambda: self._supervisor.release(key, SOURCE) if self._supervisor else None)

    # --- records ----------------------------------------------------------------------------------------------

    def _record(self, key: str) -> SleepRecord:
        return self._records.get(key, SleepRecord())

    def _asleep(self, key: str) -> str | None:
        return self._record(key).asleep

    def _write(self, key: str, record: SleepRecord) -> None:
        with self._lock:
            if self._records.get(key) != record:
                self._records[key] = record
                self._save()

    def _save(self) -> None:
        try:
            save_records(self._store.root, self._records)
        except OSError as error:
            # The disk is full. Only the sleeping processes and ports would be lost if the agent restarted now.
            _log.warning("Failed to store the sleeping processes", error=str(error))


def _limits(plan: ProcessPlan) -> Limits:
    return Limits(
        idle_timeout_s=plan.idle_timeout_s,
        wake_timeout_s=DEFAULT_WAKE_TIMEOUT_S if plan.wake_timeout_s is None else plan.wake_timeout_s,
        max_held=DEFAULT_MAX_HELD if plan.max_held_requests is None else plan.max_held_requests,
    )


def _hold(idle_s: float | None) -> Hold:
    after = f" for {idle_s:g} s" if idle_s is not None else " for a while"
    message = f"No request arrived{after}; the next one starts the process"
    return Hold(ProcessPhase.ASLEEP, ProcessReason.IDLE, message, drain_timeout_s=5.0)


def _port_key(key: str) -> str:
    return f"front:{key}"
