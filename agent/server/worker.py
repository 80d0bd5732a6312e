"""One thread that carries one process through its life: asks `lifecycle` for the next step, performs it, feeds it back.

Started by `agent.server.supervisor`. A download or a slow stop holds up this process only. All I/O of a process is
here; every decision is in `agent.server.lifecycle`.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.server import command_line, health, lifecycle, process_log
from agent.server.errors import Cancelled, FileError
from agent.server.flags import spoken
from agent.server.lifecycle import Do, Goal, Hold, Life, Running, Step
from agent.server.ports import NoPortFree
from agent.server.process import Handle, LaunchFailed, Marker, launch
from agent.server.store import ProcessRecord, RunningRecord
from agent.server.surroundings import Surroundings

EXIT_POLL_S = 1.0
"""How long the exit of a process that serves may go unseen."""
PROGRESS_INTERVAL_S = 1.0
COMPLETION_TIMEOUT_S = 120.0
MODEL = "model"
"""Name of the plan's own file among all its files, and in `argv`."""
LASTING_BACKOFF_S = 30.0
"""First wait after a failure that only somebody's action ends."""

_log = structlog.get_logger(__name__)


class Worker:
    """The thread of one process."""

    def __init__(self, key: str, around: Surroundings, goal: Goal, life: Life, handle: Handle | None = None) -> None:
        self.key = key
        self._around = around
        self._goal: Goal | None = goal
        self._last_goal = goal
        self._seen_goal = goal
        """The plan that the life below speaks of; a newer one may have been offered since."""
        self._life = life
        self._handle = handle
        self._port = life.running.port if life.running else None
        self._log_start = 0
        self._progress: tuple[int, int | None] | None = None
        self._said: ProcessReport | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._cancel = threading.Event()
        self._question = health.Question()
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
            if goal is None or before is None or _files(goal.plan) != _files(before.plan):
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
        if self._around.holds.of(self.key) is not None:
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
    def handle(self) -> Handle | None:
        """The running process, for measuring."""
        return self._handle

    def report(self) -> ProcessReport:
        """Say how the process is."""
        goal, life = self._seen_goal, self._life
        progress = self._progress if life.phase is ProcessPhase.DOWNLOADING else None
        running = life.running
        return ProcessReport(
            phase=life.phase,
            reason=life.reason,
            message=life.message,
            observed_generation=goal.generation,
            pid=running.pid if running else None,
            port=self._around.front_port(self.key, goal.plan) or (running.port if running else None),
            address=self._around.address if running else None,
            restarts=life.restarts,
            downloaded_bytes=progress[0] if progress else None,
            total_bytes=progress[1] if progress else None,
            started_at=running.started_at if running else None,
            ready=life.phase is ProcessPhase.READY,
        )

    def _run(self) -> None:
        self._say()
        while not self._leaving:
            goal = None if self._halting else self._goal
            hold = self._around.holds.of(self.key)
            self._life = lifecycle.with_hold(lifecycle.adjusted(self._life, goal), goal, hold)
            if self._retry:
                self._retry = False
                self._life = lifecycle.retried(self._life)
            self._seen_goal = goal or self._seen_goal
            self._say()
            alive = self._handle is not None and self._handle.alive()
            now, policy = self._around.clock(), self._around.policy
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
            return self._forget()
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
        timeout = None if until is None else max(0.0, until - self._around.clock())
        if self._life.running is not None:
            timeout = EXIT_POLL_S if timeout is None else min(timeout, EXIT_POLL_S)
        self._wake.wait(timeout)
        self._wake.clear()

    def _fetch(self, goal: Goal) -> None:
        self._life = lifecycle.fetching(self._life)
        self._progress = (0, goal.plan.file.size_bytes if goal.plan.file else None)
        self._say()
        with self._lock:
            self._cancel = cancel = threading.Event()
            if self._goal is None or _files(self._goal.plan) != _files(goal.plan):
                return
        if self._leaving:
            return
        said = 0.0

        def on_progress(done: int, total: int | None) -> None:
            nonlocal said
            self._progress = (done, total)
            if self._around.clock() - said >= PROGRESS_INTERVAL_S:
                said = self._around.clock()
                self._say()

        try:
            fetch = self._around.fetch
            paths = {name: str(fetch(each, on_progress, cancel)) for name, each in _files(goal.plan).items()}
        except Cancelled:
            return
        except FileError as failure:
            self._log.warning("Failed to fetch the file", reason=failure.reason.value, error=failure.message)
            # Asking again for a file that is wrong costs the whole download, so that waits longer.
            self._put_off(failure.reason, failure.message, base_s=None if failure.transient else LASTING_BACKOFF_S)
            return
        self._life = lifecycle.fetched(self._life, paths.pop(MODEL, None), paths)

    def _launch(self, goal: Goal) -> None:
        around, plan = self._around, goal.plan
        binary = around.find_binary(plan.argv[0]) if plan.argv else None
        if binary is None:
            name = plan.argv[0] if plan.argv else ""
            self._put_off(ProcessReason.RUNTIME_MISSING, f"`{name}` was not found on this host; install it")
            return
        model, files = self._life.model_path, dict(self._life.file_paths)
        hold = around.admit(self.key, goal, {**files, **({MODEL: model} if model else {})})
        if hold is not None:
            self._life = lifecycle.refused(self._life, hold, now=around.clock(), policy=around.policy)
            return
        log_file = around.store.log_file(self.key)
        self._rotate(log_file)
        self._log_start = process_log.size_of(log_file)
        try:
            port = around.ports.claim(self.key, preferred=self._port)
            address = around.listening(plan)
            arguments = command_line.arguments(plan, address=address, port=port, model=model, files=files)
            if plan.runtime == "llamacpp":
                arguments = spoken(arguments, around.vocabulary.of(binary))
            argv = [binary, *arguments]
            marker = Marker(around.agent_id, self.key, goal.launch_hash, port)
            self._handle = launch(argv, env=plan.env, log=log_file, marker=marker)
        except command_line.FileMissing as failure:
            self._put_off(ProcessReason.PLAN_INVALID, str(failure))
            return
        except NoPortFree as failure:
            self._put_off(ProcessReason.LAUNCH_FAILED, str(failure))
            return
        except LaunchFailed as failure:
            self._log.warning("Failed to start the process", error=str(failure))
            self._put_off(ProcessReason.LAUNCH_FAILED, str(failure))
            return
        self._port = port
        running = Running(
            pid=self._handle.pid,
            mark=self._handle.mark,
            port=port,
            launch_hash=goal.launch_hash,
            since=around.clock(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            proved=plan.completion_path is None,
        )
        self._life = lifecycle.launched(self._life, running)
        self._log.info("Started the process", pid=running.pid, port=port)

    def _probe(self, goal: Goal) -> None:
        assert self._life.running is not None
        failure = self._question.health(
            self._around.listening(goal.plan), self._life.running.port, goal.plan.health_path
        )
        now, before = self._around.clock(), self._life.phase
        self._life = lifecycle.probed(self._life, goal.plan, failure=failure, now=now, policy=self._around.policy)
        self._log_change(before)
        self._rotate(self._around.store.log_file(self.key))

    def _rotate(self, log_file: Path) -> None:
        try:
            process_log.rotate(log_file)
        except OSError as error:
            # A full disk must not take a process down that serves.
            self._log.warning("Failed to rotate the log", error=str(error))

    def _prove(self, goal: Goal) -> None:
        assert self._life.running is not None
        assert goal.plan.completion_path is not None
        failure = self._question.completion(
            self._around.listening(goal.plan),
            self._life.running.port,
            goal.plan.completion_path,
            model=goal.plan.service,
            timeout_s=COMPLETION_TIMEOUT_S,
        )
        now, before = self._around.clock(), self._life.phase
        self._life = lifecycle.proved(self._life, failure=failure, now=now, policy=self._around.policy)
        self._log_change(before)

    def _log_change(self, before: ProcessPhase) -> None:
        if self._life.phase is not before:
            self._log.info("Changed phase", phase=self._life.phase.value, was=before.value, why=self._life.message)

    def _bury(self, goal: Goal | None, hold: Hold | None) -> None:
        assert self._handle is not None
        # The leader is gone; what it started may still hold the port or the memory.
        self._handle.terminate(grace_s=goal.plan.stop_grace_s if goal else 5.0)
        text = self._handle.exit_text()
        wanted = goal is not None and hold is None and self._life.running is not None
        if wanted and goal is not None and self._life.running and self._life.running.launch_hash == goal.launch_hash:
            self._crashed(ProcessReason.EXITED, f"`{goal.plan.argv[0]}` {text}")
        else:
            self._life = lifecycle.stopped(self._life)
        self._handle = None

    def _terminate(self, goal: Goal | None, hold: Hold | None) -> None:
        assert self._handle is not None
        cause, message = lifecycle.stop_cause(self._life, goal, hold)
        replacing = cause is None and goal is not None
        reason = cause or (hold.reason if hold else ProcessReason.REPLACING if replacing else "")
        served = self._life.ready_since is not None
        self._life = lifecycle.stopping(self._life, reason=reason, message=message)
        self._say()
        if served and cause is None and self._life.running is not None:
            self._around.drain(self.key, self._seen_goal, self._life.running.port)
        gentle = self._handle.terminate(grace_s=self._last_goal.plan.stop_grace_s)
        self._log.info("Stopped the process", pid=self._handle.pid, gently=gentle, why=message or reason)
        self._handle = None
        if cause is not None:
            self._crashed(cause, message)
        else:
            self._life = lifecycle.stopped(self._life)

    def _crashed(self, reason: str, message: str) -> None:
        quote = process_log.last_lines(self._around.store.log_file(self.key), since_byte=self._log_start)
        told = f"{message}; its last lines:\n{quote}" if quote else message
        now = self._around.clock()
        self._life = lifecycle.crashed(self._life, reason=reason, message=told, now=now, policy=self._around.policy)
        self._log.warning("Lost the process", reason=reason, why=message, phase=self._life.phase.value)

    def _put_off(self, reason: str, message: str, *, base_s: float | None = None) -> None:
        now, policy = self._around.clock(), self._around.policy
        self._life = lifecycle.put_off(
            self._life, reason=reason, message=message, now=now, policy=policy, base_s=base_s
        )

    def _forget(self) -> bool:
        with self._lock:
            if self._goal is not None and not self._halting:
                return False
            # All of it under the lock: a later worker of this key writes only after this one wrote its last.
            self._around.ports.release(self.key)
            self._life = replace(self._life, phase=ProcessPhase.STOPPED, reason="", message="")
            self._progress = None
            self._say()
            if not self._halting:
                self._around.store.forget(self.key)
                self._around.holds.forget(self.key)
            self._done = True
        return True

    def _say(self) -> None:
        """Write down and report what changed."""
        life, goal = self._life, self._last_goal
        running = life.running
        record = ProcessRecord(
            plan=goal.plan,
            generation=goal.generation,
            restarts=life.restarts,
            port=self._port,
            running=RunningRecord(
                pid=running.pid,
                mark=running.mark,
                port=running.port,
                launch_hash=running.launch_hash,
                started_at=running.started_at,
                proved=running.proved,
            )
            if running
            else None,
        )
        try:
            self._around.store.remember(self.key, record)
        except OSError as error:
            # A full disk. The marker in its environment still finds the process after a restart.
            self._log.warning("Failed to write the state", error=str(error))
        report = self.report()
        if report != self._said:
            self._said = report
            self._around.on_report(self.key, goal, report)


def _files(plan: ProcessPlan) -> dict[str, FilePlan]:
    """Name all files of a plan."""
    return {**({MODEL: plan.file} if plan.file else {}), **(plan.files or {})}
