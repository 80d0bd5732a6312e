"""One thread that carries one process through its life: asks `lifecycle` for the next step, has it done, feeds it back.

Started by `supervisor`. A download or a slow stop holds up this process only. Every decision is in
`lifecycle`; files and starts are in `launching`, the wait before a stop in `drain`.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import structlog

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes.draining import Drained, drain_timeout_of
from agent.processes.engine_probe import EngineProbe
from agent.server.daemons.plans import is_daemon_key
from agent.server.daemons.port import DaemonFailed, DaemonNotReady
from agent.server.processes import lifecycle, process_log
from agent.server.processes.drain import Draining, drain
from agent.server.processes.launching import MODEL, Launcher, NotAdmitted, NotLaunched, files_of, not_ready, rotate
from agent.server.processes.lifecycle import Do, Goal, Hold, Life, Step
from agent.server.processes.records import plan_in_force, record_of, report_of
from agent.server.processes.unit import Unit
from agent.server.processes.worker_context import WorkerContext
from agent.sources.errors import Cancelled, FileError

EXIT_POLL_S = 1.0
"""How long the exit of a process that serves may go unseen, where the kernel does not tell of it."""
STOP_RETRY_S = 1.0
"""How long after a stop that failed the process is told again."""
PROGRESS_INTERVAL_S = 1.0
COMPLETION_TIMEOUT_S = 120.0
LASTING_BACKOFF_S = 30.0
"""First wait after a failure that only somebody's action ends."""

_log = structlog.get_logger(__name__)


class Worker:
    """The thread of one process."""

    def __init__(
        self,
        key: str,
        context: WorkerContext,
        launcher: Launcher,
        goal: Goal,
        life: Life,
        unit: Unit | None = None,
        running_plan: ProcessPlan | None = None,
    ) -> None:
        """`unit` is what an earlier agent left running, `running_plan` the plan that it was started by, if known."""
        self.key = key
        self._context = context
        self._launcher = launcher
        self._goal: Goal | None = goal
        self._last_goal = goal
        self._seen_goal = goal
        """The plan that the life below speaks of; a newer one may have been offered since."""
        self._life = life
        self._unit = unit
        self._running_plan = running_plan
        self._port = life.running.port if life.running else None
        self._log_start = 0
        self._progress: tuple[int, int | None] | None = None
        self._said: ProcessReport | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._cancel = threading.Event()
        self._question = EngineProbe()
        self._leaving = False
        self._halting = False
        self._done = False
        self._retry = False
        """Somebody thinks that a start which was refused may be admitted now."""
        self._log = _log.bind(process=key)
        self._thread = threading.Thread(target=self._run, name=f"process-{key}", daemon=True)

    def start(self, *, port: int | None = None) -> None:
        """Start the thread; `port` is tried first."""
        self._port = self._port or port
        self._thread.start()

    def offer(self, goal: Goal | None) -> bool:
        """Set what is wanted now (None: nothing). False when this worker has finished and cannot take it."""
        with self._lock:
            if self._done:
                return False
            before, self._goal = self._goal, goal
            if goal is not None:
                self._last_goal = goal
            if goal is None or before is None or files_of(goal.plan) != files_of(before.plan):
                self._cancel.set()
            if goal is None or before is None or goal.launch_hash != before.launch_hash:
                self._question.interrupt()
        self._wake.set()
        return True

    def halt(self) -> None:
        """Stop the process because the agent stops; its record stays."""
        self._halting = True
        self.offer(None)

    def leave(self) -> None:
        """End the thread and let the process run."""
        self._leaving = True
        self._cancel.set()
        self._question.interrupt()
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; False when it is still there after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Look again now: a hold came or went, or there is room where there was none."""
        if self._context.holds.of(self.key) is not None:
            self._question.interrupt()
        self._retry = True
        self._wake.set()

    @property
    def finished(self) -> bool:
        return self._done

    @property
    def wanted(self) -> bool:
        """Whether the plan still asks for this process."""
        return self._goal is not None

    @property
    def goal(self) -> Goal:
        """The last plan that was wanted."""
        return self._last_goal

    @property
    def unit(self) -> Unit | None:
        """What runs, for measuring."""
        return self._unit

    @property
    def longest_stop_s(self) -> float:
        """How long a stop may take."""
        plan = plan_in_force(self._last_goal, self._life.running, self._running_plan)
        return drain_timeout_of(plan) + self._last_goal.plan.stop_grace_s

    def report(self) -> ProcessReport:
        """Say how the process is."""
        return report_of(self.key, self._context, self._seen_goal, self._life, self._progress)

    def _run(self) -> None:
        self._say()
        while not self._leaving:
            goal = None if self._halting else self._goal
            hold = self._context.holds.of(self.key)
            self._life = lifecycle.with_hold(lifecycle.adjusted(self._life, goal), goal, hold)
            if self._retry:
                self._retry = False
                self._life = lifecycle.retried(self._life)
            self._seen_goal = goal or self._seen_goal
            self._say()
            alive = self._unit is not None and self._unit.alive()
            now, policy = self._context.clock(), self._context.policy
            step = lifecycle.next_step(self._life, goal, alive=alive, now=now, policy=policy, hold=hold)
            try:
                if self._take(step, goal, hold):
                    return
            except Exception as error:
                # Nothing is expected here. Whatever it is, this process must not be left without its supervisor.
                self._log.exception("Failed to take a step", step=step.do.name)
                if self._life.running is None:
                    self._put_off(ProcessReason.LAUNCH_FAILED, f"{type(error).__name__}: {error}")
                self._wake.wait(1.0)
            self._say()

    def _take(self, step: Step, goal: Goal | None, hold: Hold | None) -> bool:
        """Perform one step. True ends the worker."""
        if step.do is Do.WAIT:
            self._wait(step.until)
        elif step.do is Do.BURY:
            self._bury(goal, hold)
        elif step.do is Do.TERMINATE:
            self._terminate(goal, hold)
        elif step.do is Do.FORGET:
            return self._remove()
        elif goal is not None:
            if step.do is Do.FETCH:
                self._fetch(goal)
            elif step.do is Do.LAUNCH:
                self._launch(goal)
            elif step.do is Do.PROBE:
                self._probe(goal)
            else:
                self._prove(goal)
        return False

    def _wait(self, until: float | None) -> None:
        timeout = None if until is None else max(0.0, until - self._context.clock())
        if self._life.running is not None and not self._context.exits.follows(self.key, self._unit, self._wake.set):
            timeout = EXIT_POLL_S if timeout is None else min(timeout, EXIT_POLL_S)
        self._wake.wait(timeout)
        self._wake.clear()

    def _fetch(self, goal: Goal) -> None:
        self._life = lifecycle.fetching(self._life)
        self._progress = (0, goal.plan.file.size_bytes if goal.plan.file else None)
        self._say()
        with self._lock:
            self._cancel = cancel = threading.Event()
            if self._goal is None or files_of(self._goal.plan) != files_of(goal.plan):
                return
        if self._leaving:
            return
        said = 0.0

        def on_progress(done: int, total: int | None) -> None:
            nonlocal said
            self._progress = (done, total)
            if self._context.clock() - said >= PROGRESS_INTERVAL_S:
                said = self._context.clock()
                self._say()

        try:
            paths = self._launcher.fetch(self.key, goal, on_progress, cancel)
        except Cancelled:
            return
        except FileError as failure:
            self._log.warning("Failed to fetch the file", reason=failure.reason.value, error=failure.message)
            # Asking again for a file that is wrong costs the whole download, so that waits longer.
            self._put_off(failure.reason, failure.message, base_s=None if failure.transient else LASTING_BACKOFF_S)
        except DaemonFailed as failure:
            self._put_off(failure.reason, str(failure))
        except (NotAdmitted, NotLaunched) as failure:
            self._not_launched(failure)
        except DaemonNotReady as failure:
            self._not_launched(not_ready(failure))
        else:
            self._life = lifecycle.fetched(self._life, paths.pop(MODEL, None), paths)

    def _launch(self, goal: Goal) -> None:
        try:
            launched = self._launcher.launch(self.key, goal, self._life, port=self._port)
        except (NotAdmitted, NotLaunched) as failure:
            self._not_launched(failure)
            return
        running = launched.running
        self._unit, self._running_plan = launched.unit, goal.plan
        self._log_start, self._port = launched.log_start, running.port
        self._life = lifecycle.launched(self._life, running)
        self._log.info("Started the process", pid=running.pid, port=running.port)

    def _not_launched(self, failure: NotAdmitted | NotLaunched) -> None:
        now, policy = self._context.clock(), self._context.policy
        if isinstance(failure, NotAdmitted):
            self._life = lifecycle.refused(self._life, failure.hold, now=now, policy=policy, retry_s=failure.retry_s)
            return
        if failure.message != self._life.message:
            self._log.warning("Failed to start the process", reason=failure.reason, error=failure.message)
        base_s, cap_s = failure.waits_s or (None, None)
        self._put_off(failure.reason, failure.message, base_s=base_s, cap_s=cap_s)

    def _probe(self, goal: Goal) -> None:
        assert self._life.running is not None
        failure = self._question.health(
            self._context.listening(goal.plan), self._life.running.port, goal.plan.health_path
        )
        if failure is None and self._unit is not None:
            failure = self._unit.not_yet()
        now, before = self._context.clock(), self._life.phase
        self._life = lifecycle.probed(self._life, goal.plan, failure=failure, now=now, policy=self._context.policy)
        self._log_change(before)
        rotate(self._context.store.log_file(self.key))

    def _prove(self, goal: Goal) -> None:
        assert self._life.running is not None
        assert goal.plan.completion_path is not None
        failure = self._question.completion(
            self._context.listening(goal.plan),
            self._life.running.port,
            goal.plan.completion_path,
            model=goal.plan.daemon_model or "",
            timeout_s=COMPLETION_TIMEOUT_S,
        )
        now, before = self._context.clock(), self._life.phase
        life = lifecycle.proved(self._life, failure=failure, now=now, policy=self._context.policy)
        # Before anybody can see it: who heard that it is ready shall find it so under the next agent, too.
        self._remember(self._last_goal, life)
        self._life = life
        self._log_change(before)

    def _log_change(self, before: ProcessPhase) -> None:
        if self._life.phase is not before:
            self._log.info("Changed phase", phase=self._life.phase.value, was=before.value, why=self._life.message)

    def _bury(self, goal: Goal | None, hold: Hold | None) -> None:
        assert self._unit is not None
        assert self._life.running is not None
        text, reason = self._unit.exit_text(), self._unit.exit_reason
        # The leader is gone; what it started may still hold the port or the memory.
        self._unit.terminate(grace_s=goal.plan.stop_grace_s if goal else 5.0)
        self._unit = None
        if goal is None or hold is not None or self._life.running.launch_hash != goal.launch_hash:
            self._life = lifecycle.stopped(self._life)
        elif reason == ProcessReason.DAEMON_UNREACHABLE:
            now, policy = self._context.clock(), self._context.policy
            self._life = lifecycle.stranded(self._life, reason=reason, message=text, now=now, policy=policy)
            self._log.warning("Lost the shared daemon", why=text)
        else:
            self._crashed(reason, text if goal.plan.daemon_model else f"`{goal.plan.argv[0]}` {text}")

    def _terminate(self, goal: Goal | None, hold: Hold | None) -> None:
        assert self._unit is not None
        cause, message = lifecycle.stop_cause(self._life, goal, hold)
        replacing = cause is None and goal is not None
        reason = cause or (hold.reason if hold else ProcessReason.REPLACING if replacing else "")
        self._life = lifecycle.stopping(self._life, reason=reason, message=message)
        self._say()
        if cause is None and self._life.ready_since is not None and not self._drained(hold):
            return
        gentle = self._unit.terminate(grace_s=self._last_goal.plan.stop_grace_s)
        if not gentle and self._unit.alive():
            # Forgotten, it would keep its memory and its port, and a second one would be started beside it.
            self._log.warning("Failed to stop the process; trying again", pid=self._unit.pid)
            self._wake.wait(STOP_RETRY_S)
            return
        self._log.info("Stopped the process", pid=self._unit.pid, gently=gentle, why=message or reason)
        self._unit = None
        if cause is not None:
            self._crashed(cause, message)
        else:
            self._life = lifecycle.stopped(self._life)

    def _drained(self, hold: Hold | None) -> bool:
        """Wait until its requests have ended. False: the process stays, for the next agent or because it is wanted."""
        assert self._unit is not None
        assert self._life.running is not None
        running = self._life.running
        plan = plan_in_force(self._last_goal, running, self._running_plan)
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
            called_off=lambda: self._leaving or self._wanted_again(),
            alive=self._unit.alive,
        )
        outcome = drain(work)
        if outcome is Drained.CALLED_OFF:
            if not self._leaving:
                self._log.info("Kept the process: its plan came back while its requests ended")
                self._life = lifecycle.kept(self._life)
            return False
        if outcome is Drained.TIMED_OUT:
            self._log.warning("Stops the process although requests may be under way", waited_s=timeout_s)
        return True

    def _wanted_again(self) -> bool:
        """Whether the process that is being drained is wanted again just as it is."""
        goal, running = None if self._halting else self._goal, self._life.running
        if goal is None or running is None or self._context.holds.of(self.key) is not None:
            return False
        return goal.launch_hash == running.launch_hash

    def _crashed(self, reason: str, message: str) -> None:
        quote = process_log.last_lines(self._context.store.log_file(self.key), since_byte=self._log_start)
        told = f"{message}; its last lines:\n{quote}" if quote else message
        now = self._context.clock()
        self._life = lifecycle.crashed(self._life, reason=reason, message=told, now=now, policy=self._context.policy)
        self._log.warning("Lost the process", reason=reason, why=message, phase=self._life.phase.value)

    def _put_off(self, reason: str, message: str, *, base_s: float | None = None, cap_s: float | None = None) -> None:
        now, policy = self._context.clock(), self._context.policy
        self._life = lifecycle.put_off(
            self._life, reason=reason, message=message, now=now, policy=policy, base_s=base_s, cap_s=cap_s
        )

    def _remove(self) -> bool:
        with self._lock:
            if self._goal is not None and not self._halting:
                return False
            # All of it under the lock: a later worker of this key writes only after this one wrote its last.
            self._context.ports.release(self.key)
            self._launcher.remove_process(self.key)
            self._life = replace(self._life, phase=ProcessPhase.STOPPED, reason="", message="")
            self._progress = None
            self._say()
            if not self._halting:
                self._context.store.remove_record(self.key)
                self._context.holds.remove_process(self.key)
            self._done = True
        return True

    def _say(self) -> None:
        """Write down and report what changed."""
        life, goal = self._life, self._last_goal
        self._remember(goal, life)
        report = self.report()
        if report != self._said:
            self._said = report
            if not is_daemon_key(self.key):
                self._context.on_report(self.key, goal, report)

    def _remember(self, goal: Goal, life: Life) -> None:
        unwanted = self._goal is None and not self._halting
        record = record_of(goal, life, port=self._port, running_plan=self._running_plan, unwanted=unwanted)
        try:
            self._context.store.write_record(self.key, record)
        except OSError as error:
            # A full disk. The marker in its environment still finds the process after a restart.
            self._log.warning("Failed to write the state", error=str(error))
