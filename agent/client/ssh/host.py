"""A host over SSH as a `HostClient`. A thread of this process does the work of an agent, as long as the caller runs.

Called by `components.providers.host_transports`, and so by `pulumi up`. The loop uses `processes` directly. If the
caller ends before a plan is reached, the next `put` of the plan continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from agent.client.port import HostError, HostRefused, ProcessNotFound, ProcessState
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.layout import LayoutInvalid, unit_name
from agent.client.ssh.processes import SshProcesses
from agent.client.ssh.target import SshTarget
from agent.contract import HostPlan, HostReport, ProcessPhase, ProcessPlan, ProcessReport
from agent.sources.source_policy import SourcePolicy
from agent.steps.step import Outcome

PASS_S = 0.3
IDLE_S = 60.0
"""The thread ends after this time without work."""

_log = structlog.get_logger(__name__)


class SshHost:
    """One host over SSH (`agent.client.port.HostClient`). Thread-safe."""

    def __init__(
        self,
        target: SshTarget,
        *,
        host: str,
        policy: SourcePolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.host = host
        self._connection = SshConnection(target)
        self._processes = SshProcesses(self._connection, host=host, policy=policy)
        self._sleep = sleep
        self._lock = threading.RLock()
        """Held during each exchange with the host, so that there is only one at a time."""
        self._driven: dict[str, ProcessPlan | None] = {}
        """The plans that are not reached yet, by key. None: the process is being removed."""
        self._states: dict[str, ProcessState] = {}
        """The state of these processes after the last pass."""
        self._errors: dict[str, HostError] = {}
        self._driver: threading.Thread | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop the thread and close the connection. Processes on the host continue."""
        self._closed.set()
        with self._lock:
            self._connection.close()

    def changes(self, key: str, plan: ProcessPlan | None) -> list[Outcome]:
        """Return the steps that `put` (or, for None, `delete`) would perform. Changes nothing."""
        with self._lock:
            return self._processes.changes(_valid(key), plan)

    def plan(self) -> HostPlan:
        with self._lock:
            seen = self._processes.list_processes()
        plans = {key: each.record.plan for key, each in seen.items() if not each.record.removing}
        return HostPlan(host=self.host, processes=plans)

    def report(self) -> HostReport:
        with self._lock:
            seen = self._processes.list_processes()
            return HostReport(
                facts=self._processes.facts(),
                processes={key: self._processes.observe(key, each) for key, each in seen.items()},
            )

    def get(self, key: str) -> ProcessState:
        with self._lock:
            error = self._errors.pop(key, None)
            if error is not None:
                raise error
            if key in self._driven and key in self._states:
                # The last pass observed it a moment ago, and the next one will soon.
                return self._states[key]
            seen = self._processes.list_processes().get(_valid(key))
            if seen is None:
                raise ProcessNotFound("NotFound", f"host `{self.host}` has no process `{key}`")
            report = self._processes.observe(key, seen)
        return ProcessState(None if seen.record.removing else seen.record.plan, report, seen.record.generation)

    def put(self, key: str, plan: ProcessPlan) -> ProcessState:
        with self._lock:
            seen = self._processes.list_processes()
            before = seen.get(_valid(key))
            generation = 1
            if before is not None:
                changed = before.record.plan != plan or before.record.removing
                generation = before.record.generation + (1 if changed else 0)
            record = self._processes.write(key, plan, generation, seen)
            report = ProcessReport(phase=ProcessPhase.PENDING)
            if before is not None and before.record == record:
                report = self._processes.observe(key, before)
            state = self._states[key] = ProcessState(plan, report, record.generation)
            self._drive(key, plan)
        return state

    def delete(self, key: str) -> None:
        with self._lock:
            seen = self._processes.list_processes().get(_valid(key))
            if seen is not None:
                report = ProcessReport(phase=ProcessPhase.STOPPING)
                self._states[key] = ProcessState(None, report, seen.record.generation)
                self._drive(key, None)

    def _drive(self, key: str, plan: ProcessPlan | None) -> None:
        self._driven[key] = plan
        self._errors.pop(key, None)
        if self._driver is None or not self._driver.is_alive():
            self._driver = threading.Thread(target=self._run, name=f"ssh-{self.host}", daemon=True)
            self._driver.start()

    def _run(self) -> None:
        idle_since = time.monotonic()
        while not self._closed.is_set():
            with self._lock:
                if self._driven:
                    idle_since = time.monotonic()
                    self._pass()
                elif time.monotonic() - idle_since > IDLE_S:
                    self._driver = None
                    return
            self._sleep(PASS_S)

    def _pass(self) -> None:
        try:
            for key, plan in list(self._driven.items()):
                seen = self._processes.list_processes()
                if plan is None:
                    report = self._processes.remove(key, seen)
                else:
                    report = self._processes.advance(key, plan, self._states[key].generation, seen)
                self._errors.pop(key, None)
                if report is not None:
                    self._states[key] = ProcessState(plan, report, self._states[key].generation)
                if report is None or report.phase in (ProcessPhase.READY, ProcessPhase.FAILED):
                    del self._driven[key]
                    self._states.pop(key, None)
        except HostError as error:
            # `get` raises the error to the caller. The next pass tries again.
            self._errors.update(dict.fromkeys(self._driven, error))
        except Exception:
            _log.exception("Failed to drive a process over SSH", host=self.host)


def _valid(key: str) -> str:
    try:
        unit_name(key)
    except LayoutInvalid as error:
        raise HostRefused("KeyInvalid", str(error)) from error
    return key
