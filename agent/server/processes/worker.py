"""The thread of one process: asks `agent.processes.lifecycle` for the next step, performs it, records the outcome.

Started by `supervisor`. A download or a slow stop delays only this process. `lifecycle` makes all decisions,
`launching` fetches files and starts processes, and `drain` waits before a stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import structlog

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes import lifecycle
from agent.processes.decision import Action, Desired
from agent.processes.draining import Drained, drain_timeout_of
from agent.processes.engine_probe import EngineProbe
from agent.processes.lifecycle import Hold, ProcessStatus, Step
from agent.processes.replacing import MODEL, Replacement, files_of, needs_other_files
from agent.server.daemons.plans import is_daemon_key
from agent.server.processes import process_log
from agent.server.processes.drain import Draining, drain
from agent.server.processes.early_fetch import EarlyFetches, fetch_failure
from agent.server.processes.launching import Launcher, NotAdmitted, NotLaunched, Progress, rotate
from agent.server.processes.process import Unit
from agent.server.processes.records import plan_in_force, record_of, report_of
from agent.server.processes.worker_context import WorkerContext

EXIT_POLL_S = 1.0
"""Poll interval for the exit of a serving process, if the kernel does not notify the agent of exits."""
STOP_RETRY_S = 1.0
"""How long after a failed stop the agent tries to stop the process again."""
PROGRESS_INTERVAL_S = 1.0
COMPLETION_TIMEOUT_S = 120.0

_log = structlog.get_logger(__name__)


class Worker:
    """The thread of one process."""

    def __init__(
        self,
        key: str,
        context: WorkerContext,
        launcher: Launcher,
        desired: Desired,
        status: ProcessStatus,
        unit: Unit | None = None,
        running_plan: ProcessPlan | None = None,
    ) -> None:
        """`unit` is a process that an earlier agent left running, `running_plan` the plan of that process, if known."""
        self.key = key
        self._context = context
        self._launcher = launcher
        self._desired: Desired | None = desired
        self._last_desired = desired
        self._reported_desired = desired
        """The plan that `_status` belongs to. A newer plan may already be set."""
        self._status = status
        self._unit = unit
        self._running_plan = running_plan
        self._port = status.running.port if status.running else None
        self._log_start = 0
        self._progress: tuple[int, int | None] | None = None
        self._last_report: ProcessReport | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._cancel = threading.Event()
        self._probe = EngineProbe()
        self._early = EarlyFetches(key, context, launcher, ended=self._wake.set)
        self._note = ""
        """Why a process was stopped before the files of its successor were there. Reported during their download."""
        self._detaching = False
        self._agent_stops = False
        self._done = False
        self._retry = False
        """A start that was refused may be admitted now."""
        self._log = _log.bind(process=key)
        self._thread = threading.Thread(target=self._run, name=f"process-{key}", daemon=True)

    def start(self, *, port: int | None = None) -> None:
        """Start the thread. The process tries `port` first."""
        self._port = self._port or port
        self._thread.start()

    def set_desired(self, desired: Desired | None) -> bool:
        """Set the desired process; None means no process.

        Returns False if this worker has finished and cannot accept it.
        """
        with self._lock:
            if self._done:
                return False
            before, self._desired = self._desired, desired
            if desired is not None:
                self._last_desired = desired
            if desired is None or before is None or files_of(desired.plan) != files_of(before.plan):
                self._cancel.set()
            if desired is None or before is None or desired.launch_hash != before.launch_hash:
                self._probe.interrupt()
        self._wake.set()
        return True

    def stop_process(self) -> None:
        """Stop the process because the agent stops. Its record stays."""
        self._agent_stops = True
        self.set_desired(None)

    def detach(self) -> None:
        """End the thread and leave the process running."""
        self._detaching = True
        self._cancel.set()
        self._probe.interrupt()
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread. Returns False if it still runs after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Check again now, because a hold was set or removed, or memory became free."""
        if self._context.holds.of(self.key) is not None:
            self._probe.interrupt()
        self._retry = True
        self._wake.set()

    @property
    def finished(self) -> bool:
        return self._done

    @property
    def wanted(self) -> bool:
        """Whether the plan still contains this process."""
        return self._desired is not None

    @property
    def last_desired(self) -> Desired:
        """The last desired process that was not None."""
        return self._last_desired

    @property
    def unit(self) -> Unit | None:
        """The running process, for measurements."""
        return self._unit

    @property
    def longest_stop_s(self) -> float:
        """The longest time that a stop may take: drain timeout plus grace period."""
        plan = plan_in_force(self._last_desired, self._status.running, self._running_plan)
        return drain_timeout_of(plan) + self._last_desired.plan.stop_grace_s

    def report(self) -> ProcessReport:
        """Return the report of the process."""
        desired, status = self._reported_desired, self._status
        return report_of(self.key, self._context, desired, status, self._progress, running_plan=self._running_plan)

    def _run(self) -> None:
        self._report_change()
        while True:
            # Before the flag and the plan are read: a later change of them interrupts the check of this step.
            self._probe.resume()
            if self._detaching:
                return
            desired = None if self._agent_stops else self._desired
            hold = self._context.holds.of(self.key)
            before = self._status.launch_hash
            self._status = lifecycle.plan_changed(
                self._status,
                desired,
                needs_other_files=desired is not None and needs_other_files(desired.plan, self._running_plan),
            )
            if self._status.launch_hash != before:
                self._note = ""  # it was about the files of the plan before
            self._status = lifecycle.hold_changed(self._status, desired, hold)
            if self._retry:
                self._retry = False
                self._status = lifecycle.admission_retried(self._status)
            self._reported_desired = desired or self._reported_desired
            try:
                if (outcome := self._early.take(self._status)) is not None:
                    self._status, self._note = outcome
                self._report_change()
                if self._perform(self._next_step(desired, hold), desired, hold):
                    return
            except Exception as error:
                # No exception is expected here. The process must keep its supervisor in any case.
                self._log.exception("Failed to take a step")
                self._status = self._early.begun_again(self._status)
                if self._status.running is None:
                    self._attempt_failed(ProcessReason.LAUNCH_FAILED, f"{type(error).__name__}: {error}")
                self._wake.wait(1.0)
            self._report_change()

    def _next_step(self, desired: Desired | None, hold: Hold | None) -> Step:
        now, is_alive = self._context.clock(), self._unit is not None and self._unit.alive()
        observed = lifecycle.observe(self._status, desired.plan if desired else None, is_alive=is_alive, now=now)
        policy = self._context.policy
        return lifecycle.next_step(self._status, desired, observed, now=now, policy=policy, is_held=hold is not None)

    def _perform(self, step: Step, desired: Desired | None, hold: Hold | None) -> bool:
        """Perform one step. Returns True if the worker has finished."""
        if step.action in (Action.WAIT, Action.WATCH):
            self._wait(step.until)
        elif step.action is Action.REAP:
            self._reap(desired, hold)
        elif step.action in (Action.STOP, Action.RESTART):
            self._stop(desired, hold)
        elif step.action is Action.REMOVE:
            return self._remove()
        elif desired is not None:
            if step.action is Action.FETCH and self._status.replacement is not None:
                self._fetch_early(desired)
            elif step.action is Action.FETCH:
                self._fetch(desired)
            elif step.action is Action.START:
                self._start_process(desired)
            elif step.action is Action.CHECK_HEALTH:
                self._check_health(desired)
            else:
                self._check_completion(desired)
        return False

    def _wait(self, until: float | None) -> None:
        timeout = None if until is None else max(0.0, until - self._context.clock())
        if self._status.running is not None and not self._context.exits.follows(self.key, self._unit, self._wake.set):
            timeout = EXIT_POLL_S if timeout is None else min(timeout, EXIT_POLL_S)
        self._wake.wait(timeout)
        self._wake.clear()

    def _fetch(self, desired: Desired) -> None:
        self._status = lifecycle.fetch_started(self._status, message=self._note)
        cancel = self._fetch_begins(desired)
        if cancel is None:
            return
        try:
            paths = self._launcher.fetch(self.key, desired, self._note_progress(self._report_change), cancel)
        except Exception as error:
            failure = fetch_failure(error, self._context.policy)
            if failure is not None:
                self._start_failed(failure, "Failed to fetch the files of the process")
        else:
            self._note = ""
            self._status = lifecycle.files_fetched(self._status, paths.pop(MODEL, None), paths)

    def _note_progress(self, report: Callable[[], None]) -> Progress:
        """Return a function that keeps the progress of a fetch, and calls `report` at most once an interval."""
        reported = 0.0

        def on_progress(done: int, total: int | None) -> None:
            nonlocal reported
            self._progress = (done, total)
            if self._context.clock() - reported >= PROGRESS_INTERVAL_S:
                reported = self._context.clock()
                report()

        return on_progress

    def _fetch_begins(self, desired: Desired) -> threading.Event | None:
        """Report the beginning of a fetch. Returns the event that cancels it, or None if it is not needed any more."""
        self._progress = (0, desired.plan.file.size_bytes if desired.plan.file else None)
        self._report_change()
        with self._lock:
            self._cancel = cancel = threading.Event()
            if self._desired is None or files_of(self._desired.plan) != files_of(desired.plan):
                return None
        return None if self._detaching else cancel

    def _fetch_early(self, desired: Desired) -> None:
        """Begin to fetch files beside the process of an earlier plan."""
        assert self._status.replacement is not None
        self._status = replace(self._status, replacement=self._status.replacement.started())
        cancel = self._fetch_begins(desired)
        if cancel is None:
            self._status = replace(self._status, replacement=Replacement())
            return
        # The worker's thread reports the progress.
        self._early.begin(desired, self._note_progress(self._wake.set), cancel)

    def _start_process(self, desired: Desired) -> None:
        try:
            launched = self._launcher.launch(self.key, desired, self._status, port=self._port)
        except (NotAdmitted, NotLaunched) as failure:
            self._start_failed(failure)
            return
        running = launched.running
        self._unit, self._running_plan = launched.unit, desired.plan
        self._log_start, self._port = launched.log_start, running.port
        self._status = lifecycle.process_started(self._status, running)
        self._log.info("Started the process", pid=running.pid, port=running.port)

    def _start_failed(self, failure: NotAdmitted | NotLaunched, event: str = "Failed to start the process") -> None:
        """Wait for the next attempt, after the start or one of its steps failed. `event` is the line of the log."""
        now, policy = self._context.clock(), self._context.policy
        if isinstance(failure, NotAdmitted):
            self._status = lifecycle.start_refused(
                self._status, failure.hold, now=now, policy=policy, retry_s=failure.retry_s
            )
            return
        if failure.message != self._status.message:
            self._log.warning(event, reason=failure.reason, error=failure.message)
        base_s, cap_s = failure.waits_s or (None, None)
        self._attempt_failed(failure.reason, failure.message, base_s=base_s, cap_s=cap_s)

    def _check_health(self, desired: Desired) -> None:
        running = self._status.running
        assert running is not None
        plan = plan_in_force(desired, running, self._running_plan)
        failure = self._probe.health(self._context.listening(plan), running.port, plan.health_path)
        if failure is None and self._unit is not None:
            failure = self._unit.not_yet()
        now, before = self._context.clock(), self._status.phase
        self._status = lifecycle.health_checked(
            self._status, plan, failure=failure, now=now, policy=self._context.policy
        )
        self._log_change(before)
        rotate(self._context.store.log_file(self.key))

    def _check_completion(self, desired: Desired) -> None:
        assert self._status.running is not None
        assert desired.plan.completion_path is not None
        failure = self._probe.completion(
            self._context.listening(desired.plan),
            self._status.running.port,
            desired.plan.completion_path,
            model=desired.plan.daemon_model or "",
            timeout_s=COMPLETION_TIMEOUT_S,
        )
        now, before = self._context.clock(), self._status.phase
        status = lifecycle.completion_checked(self._status, failure=failure, now=now, policy=self._context.policy)
        # Write the record before the report: a process that was reported ready must be ready for the next agent too.
        self._write_record(self._last_desired, status)
        self._status = status
        self._log_change(before)

    def _log_change(self, before: ProcessPhase) -> None:
        if self._status.phase is not before:
            self._log.info("Changed phase", phase=self._status.phase.value, was=before.value, why=self._status.message)

    def _reap(self, desired: Desired | None, hold: Hold | None) -> None:
        assert self._unit is not None
        assert self._status.running is not None
        text, reason = self._unit.exit_text(), self._unit.exit_reason
        # The leader has ended, but its children may still hold the port or the memory.
        self._unit.terminate(grace_s=desired.plan.stop_grace_s if desired else 5.0)
        self._unit = None
        if desired is None or hold is not None or self._status.running.launch_hash != desired.launch_hash:
            self._status = lifecycle.process_stopped(self._status)
        elif reason == ProcessReason.DAEMON_UNREACHABLE:
            now, policy = self._context.clock(), self._context.policy
            self._status = lifecycle.daemon_lost(self._status, reason=reason, message=text, now=now, policy=policy)
            self._log.warning("Lost the shared daemon", why=text)
        else:
            self._process_crashed(reason, text if desired.plan.daemon_model else f"`{desired.plan.argv[0]}` {text}")

    def _stop(self, desired: Desired | None, hold: Hold | None) -> None:
        assert self._unit is not None
        cause, message = lifecycle.stop_cause(self._status, desired, hold)
        replacing = cause is None and desired is not None
        reason = cause or (hold.reason if hold else ProcessReason.REPLACING if replacing else "")
        message = message or (self._note if replacing else "")
        self._status = lifecycle.stop_started(self._status, reason=reason, message=message)
        self._report_change()
        if cause is None and self._status.ready_since is not None and not self._drain(hold):
            return
        gentle = self._unit.terminate(grace_s=self._last_desired.plan.stop_grace_s)
        if not gentle and self._unit.alive():
            # The process still holds its memory and its port. A second process must not start beside it.
            self._log.warning("Failed to stop the process; trying again", pid=self._unit.pid)
            self._wake.wait(STOP_RETRY_S)
            return
        self._log.info("Stopped the process", pid=self._unit.pid, gently=gentle, why=message or reason)
        self._unit = None
        if cause is not None:
            self._process_crashed(cause, message)
        else:
            self._status = lifecycle.process_stopped(self._status)

    def _drain(self, hold: Hold | None) -> bool:
        """Wait until running requests have ended. Returns False if the process must not be stopped now.

        That is the case if the next agent will take the process over, or if the process is wanted again.
        """
        assert self._unit is not None
        assert self._status.running is not None
        running = self._status.running
        plan = plan_in_force(self._last_desired, running, self._running_plan)
        timeout_s = drain_timeout_of(plan, hold.drain_timeout_s if hold else None)
        if timeout_s <= 0:
            return True
        work = Draining(
            plan=plan,
            address=self._context.listening(plan),
            port=running.port,
            pid=running.pid,
            timeout_s=timeout_s,
            withdrawn=lambda: self._context.withdrawn(self.key),
            called_off=lambda: self._detaching or self._wanted_again(),
            alive=self._unit.alive,
        )
        outcome = drain(work)
        if outcome is Drained.CALLED_OFF:
            if not self._detaching:
                self._log.info("Kept the process, because its plan returned during the drain")
                self._status = lifecycle.stop_cancelled(self._status)
            return False
        if outcome is Drained.TIMED_OUT:
            self._log.warning("Stopping the process although requests may be running", waited_s=timeout_s)
        return True

    def _wanted_again(self) -> bool:
        """Whether the process that is being drained is wanted again without a change."""
        desired, running = None if self._agent_stops else self._desired, self._status.running
        if desired is None or running is None or self._context.holds.of(self.key) is not None:
            return False
        return desired.launch_hash == running.launch_hash

    def _process_crashed(self, reason: str, message: str) -> None:
        quote = process_log.last_lines(self._context.store.log_file(self.key), since_byte=self._log_start)
        detail = f"{message}; its last lines:\n{quote}" if quote else message
        now = self._context.clock()
        self._status = lifecycle.process_crashed(
            self._status, reason=reason, message=detail, now=now, policy=self._context.policy
        )
        self._log.warning("Lost the process", reason=reason, why=message, phase=self._status.phase.value)

    def _attempt_failed(
        self, reason: str, message: str, *, base_s: float | None = None, cap_s: float | None = None
    ) -> None:
        now, policy = self._context.clock(), self._context.policy
        self._status = lifecycle.attempt_failed(
            self._status, reason=reason, message=message, now=now, policy=policy, base_s=base_s, cap_s=cap_s
        )

    def _remove(self) -> bool:
        # Not under the lock, because the daemons ask the supervisor, whose lock is held while it takes this one. If the
        # plan has returned, the process uses its daemon again at its next start.
        self._launcher.remove_process(self.key)
        with self._lock:
            if self._desired is not None and not self._agent_stops:
                return False
            # All of this happens under the lock, so that a later worker of this key writes only after this worker's
            # last write.
            self._context.ports.release(self.key)
            self._status = replace(self._status, phase=ProcessPhase.STOPPED, reason="", message="")
            self._progress = None
            self._report_change()
            if not self._agent_stops:
                self._context.store.remove_record(self.key)
                self._context.holds.remove_process(self.key)
            self._done = True
        return True

    def _report_change(self) -> None:
        """Write the record and report a change."""
        status, desired = self._status, self._last_desired
        self._write_record(desired, status)
        report = self.report()
        if report != self._last_report:
            self._last_report = report
            if not is_daemon_key(self.key):
                self._context.on_report(self.key, desired, report)

    def _write_record(self, desired: Desired, status: ProcessStatus) -> None:
        unwanted = self._desired is None and not self._agent_stops
        record = record_of(
            desired,
            status,
            port=self._port,
            running_plan=self._running_plan,
            unwanted=unwanted,
            reserved_bytes=self._context.reserved(self.key),
        )
        try:
            self._context.store.write_record(self.key, record)
        except OSError as error:
            # The disk is full. The marker in the environment of the process still identifies it after a restart.
            self._log.warning("Failed to write the state", error=str(error))
