"""The stored status of one process, and how the outcome of each action changes it. Values, without I/O.

Both executors keep a `ProcessStatus` for each process: `agent.server.processes.worker` for processes that the agent
starts and reaps itself, `agent.client.ssh.processes` for units of a service manager. They observe, call `next_step`,
perform its action and pass the outcome to one of the functions below. Times are seconds of a monotonic clock that the
caller provides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason
from agent.processes.decision import RESTART_AFTER, UNHEALTHY_AFTER, Action, Desired, Observed, backoff_s, decide
from agent.processes.draining import SETTLE_S, Drain
from agent.processes.replacing import Replacement


@dataclass(frozen=True)
class Policy:
    """Check intervals, waits between attempts, and limits of one executor."""

    check_interval_s: float = 5.0
    stable_check_interval_s: float = 10.0
    """Between health checks of a process that has been ready for `stable_s`."""
    starting_check_interval_s: float = 0.2
    """Longest interval while a process starts. The first interval is `first_check_interval_s`, so that a quick start is
    not delayed."""
    first_check_interval_s: float = 0.02
    failing_check_interval_s: float = 1.0
    """After a failed health check of a process that was ready."""
    unhealthy_after: int = UNHEALTHY_AFTER
    """Failed health checks in a row before the process counts as not ready."""
    restart_after: int = RESTART_AFTER
    """Failed health checks in a row before the process is stopped and started again."""
    backoff_base_s: float = 1.0
    backoff_cap_s: float = 60.0
    """Longest wait after a crash."""
    retry_cap_s: float = 300.0
    """Longest wait before another try for a failed download or a missing binary."""
    stable_s: float = 60.0
    """After this time a ready process is stable and its crash count returns to 0."""
    max_crashes: int = 6
    """Crashes in a row, without a stable time between them, after which a process is Failed."""
    admission_retry_s: float = 5.0
    """Wait before a process that was not admitted asks again, unless it is woken earlier."""


@dataclass(frozen=True)
class Hold:
    """Why a planned process must not run now. It is stopped, and does not start before the hold is released."""

    phase: ProcessPhase
    """The phase that the process reports meanwhile: PENDING or ASLEEP."""
    reason: str
    message: str
    drain_timeout_s: float | None = None
    """Upper limit for the drain timeout, if the plan's own value is too long for this hold."""


@dataclass(frozen=True)
class Running:
    """A process that this or an earlier executor started."""

    pid: int
    mark: str
    """Distinguishes this start of the process from all others, including a later one with the same pid."""
    port: int
    launch_hash: str
    since: float
    """When it was started, or first observed by this executor."""
    started_at: str
    """RFC 3339, for people."""
    proved: bool = False
    """It has answered a real completion, or needs none."""


@dataclass(frozen=True)
class ProcessStatus:
    """All values that an executor keeps about one process."""

    phase: ProcessPhase = ProcessPhase.PENDING
    reason: str = ""
    message: str = ""
    launch_hash: str = ""
    """The launch hash of the plan that this status belongs to. Empty: no plan contains the process."""
    running: Running | None = None
    is_healthy: bool = False
    """The process is starting, its health check succeeded, and the completion must still be tested."""
    ready_since: float | None = None
    failed_checks: int = 0
    """Failed health checks in a row."""
    check_at: float = 0.0
    """When the next check is due."""
    drain: Drain | None = None
    """The progress of a drain that the executor performs step by step."""
    crashes: int = 0
    """Crashes in a row."""
    restarts: int = 0
    attempts: int = 0
    """Failed downloads, starts or stops in a row."""
    retry_at: float = 0.0
    """Failed actions are not tried again before this time."""
    replacement: Replacement | None = None
    """Set while the files of the plan are fetched and the process of an earlier plan serves. Phase, reason and message
    are those of that process."""
    is_held: bool = False
    """Phase, reason and message are those of a hold."""
    model_path: str | None = None
    """Path of the plan's main file. None after the process has ended."""
    file_paths: tuple[tuple[str, str], ...] = ()
    """Name and path of each of the plan's other files."""


@dataclass(frozen=True)
class Step:
    """The next action."""

    action: Action
    until: float | None = None
    """Only for WAIT and WATCH: when to decide again. None: when something changes."""


def observe(status: ProcessStatus, plan: ProcessPlan | None, *, is_alive: bool, now: float) -> Observed:
    """Return the observed state of the process. `is_alive`: `status.running` still runs."""
    running = status.running
    if running is None:
        # Ollama fetches its models itself.
        has_model = plan is not None and (
            plan.file is not None or (plan.runtime == "ollama" and bool(plan.daemon_model))
        )
        lacks_model = has_model and status.model_path is None
        lacks_files = plan is not None and bool(plan.files) and not status.file_paths
        return Observed(has_given_up=status.phase is ProcessPhase.FAILED, has_files=not lacks_model and not lacks_files)
    kept = status.replacement
    return Observed(
        running=running.launch_hash,
        has_ended=not is_alive,
        has_files=kept is None,
        fetch_at=kept.fetch_at if kept is not None else 0.0,
        is_ready=status.ready_since is not None,
        is_healthy=status.is_healthy,
        running_s=now - running.since,
        failed_checks=status.failed_checks,
        check_at=status.check_at,
    )


def next_step(
    status: ProcessStatus,
    desired: Desired | None,
    observed: Observed,
    *,
    now: float,
    policy: Policy,
    is_held: bool = False,
) -> Step:
    """Return the next action, and the end of a WAIT or WATCH."""
    action = decide(
        desired, observed, now=now, retry_at=status.retry_at, is_held=is_held, restart_after=policy.restart_after
    )
    if action is Action.WAIT and not is_held and not observed.has_given_up:
        return Step(action, status.retry_at)
    if action is not Action.WATCH:
        return Step(action)
    return Step(action, observed.check_at if observed.has_files else min(observed.check_at, observed.fetch_at))


def stop_cause(
    status: ProcessStatus, desired: Desired | None, hold: Hold | None = None
) -> tuple[ProcessReason | None, str]:
    """Return why the process is stopped: None for the plan or a hold, else the failure that counts as a crash."""
    if status.running is None or desired is None or status.running.launch_hash != desired.launch_hash:
        return None, ""
    if hold is not None:
        return None, hold.message
    if status.ready_since is None:
        detail = f": {status.message}" if status.message else ""
        return ProcessReason.STARTUP_TIMEOUT, f"not ready after {desired.plan.startup_timeout_s:g} s{detail}"
    return ProcessReason.NOT_RESPONDING, status.message


def plan_changed(status: ProcessStatus, desired: Desired | None, *, needs_other_files: bool = False) -> ProcessStatus:
    """Apply a changed plan: failure counts return to 0, and a process of the old plan must be stopped.

    With `needs_other_files` a process that serves is kept until the files of the plan are fetched.
    """
    if desired is None:
        done = replace(status, launch_hash="", attempts=0, retry_at=0.0, replacement=None)
        return done if status.launch_hash else status
    if desired.launch_hash == status.launch_hash:
        return status
    fresh = replace(
        status,
        launch_hash=desired.launch_hash,
        crashes=0,
        attempts=0,
        check_at=0.0,
        retry_at=0.0,
        drain=None,
        is_held=False,
        model_path=None,
        file_paths=(),
        replacement=None,
    )
    if status.running is None:
        return replace(fresh, phase=ProcessPhase.PENDING, reason="", message="")
    if status.running.launch_hash != desired.launch_hash:
        if needs_other_files and status.ready_since is not None and status.phase is not ProcessPhase.STOPPING:
            return replace(fresh, replacement=Replacement())
        return replace(fresh, phase=ProcessPhase.STOPPING, reason=ProcessReason.REPLACING, message="")
    return fresh


def hold_changed(status: ProcessStatus, desired: Desired | None, hold: Hold | None) -> ProcessStatus:
    """Report the hold of a process that does not run. After the release of the hold, report it as pending."""
    if status.running is not None or desired is None or status.phase is ProcessPhase.FAILED:
        return status
    if hold is not None:
        return replace(status, is_held=True, phase=hold.phase, reason=hold.reason, message=hold.message)
    if status.is_held:
        return replace(status, is_held=False, phase=ProcessPhase.PENDING, reason="", message="", retry_at=0.0)
    return status


def fetch_started(status: ProcessStatus, *, message: str = "") -> ProcessStatus:
    """Record that files are being fetched."""
    return replace(status, phase=ProcessPhase.DOWNLOADING, reason="", message=message)


def replacement_due(status: ProcessStatus, *, message: str = "") -> ProcessStatus:
    """Record that the process of the earlier plan may be stopped, because the files of the plan are there.

    `message` says why it is stopped although they are not.
    """
    phase, reason = ProcessPhase.STOPPING, ProcessReason.REPLACING
    return replace(status, phase=phase, reason=reason, message=message, replacement=None)


def files_fetched(status: ProcessStatus, path: str | None, others: dict[str, str]) -> ProcessStatus:
    """Record that all files are present and verified: the main file by its path, the others by name."""
    status = replace(status, file_paths=tuple(sorted(others.items())))
    return replace(status, model_path=path, phase=ProcessPhase.PENDING, reason="", message="", attempts=0)


def start_refused(
    status: ProcessStatus, hold: Hold, *, now: float, policy: Policy, retry_s: float | None = None
) -> ProcessStatus:
    """Record that the process was not admitted. It tries again later and keeps its files."""
    retry_at = now + (policy.admission_retry_s if retry_s is None else retry_s)
    return replace(status, phase=hold.phase, reason=hold.reason, message=hold.message, retry_at=retry_at)


def admission_retried(status: ProcessStatus) -> ProcessStatus:
    """Let a process that was not admitted try again immediately."""
    return status if status.running is not None or status.attempts else replace(status, retry_at=0.0)


def attempt_failed(
    status: ProcessStatus,
    *,
    reason: str,
    message: str,
    now: float,
    policy: Policy,
    base_s: float | None = None,
    cap_s: float | None = None,
) -> ProcessStatus:
    """Record a failed download, start or stop.

    There is no limit to the number of retries, because the cause is outside. `base_s` and `cap_s` are the first and the
    longest wait; None means those of the policy.
    """
    attempts = status.attempts + 1
    wait = backoff_s(attempts, base_s=base_s or policy.backoff_base_s, cap_s=cap_s or policy.retry_cap_s)
    return replace(
        status,
        phase=ProcessPhase.BACKING_OFF,
        reason=reason,
        message=message,
        attempts=attempts,
        retry_at=now + wait,
        model_path=None,
        file_paths=(),
    )


def process_started(status: ProcessStatus, running: Running) -> ProcessStatus:
    """Record that the process was started."""
    return replace(
        status,
        phase=ProcessPhase.STARTING,
        running=running,
        reason="",
        message="",
        attempts=0,
        failed_checks=0,
        is_healthy=False,
        ready_since=None,
        check_at=0.0,
        retry_at=0.0,
    )


def process_adopted(status: ProcessStatus, running: Running, *, now: float) -> ProcessStatus:
    """Record a running process that an earlier executor started.

    If its completion has succeeded, it counts as ready until a check fails, so that a restart of the executor removes
    no endpoint.
    """
    return replace(
        status,
        phase=ProcessPhase.READY if running.proved else ProcessPhase.STARTING,
        running=replace(running, since=now),
        launch_hash=running.launch_hash,
        ready_since=now if running.proved else None,
    )


def health_checked(
    status: ProcessStatus, plan: ProcessPlan, *, failure: str | None, now: float, policy: Policy
) -> ProcessStatus:
    """Record a health check. `failure` None: the process is healthy."""
    if status.running is None:
        return status
    is_starting = status.ready_since is None
    if failure is not None:
        failures = status.failed_checks + 1
        if is_starting:
            # Wait a tenth of the start time so far, so that every start is noticed soon after its end with few checks.
            soon = max(policy.first_check_interval_s, (now - status.running.since) / 10)
            check_at = now + min(policy.starting_check_interval_s, soon)
            return replace(status, failed_checks=failures, is_healthy=False, message=failure, check_at=check_at)
        is_unhealthy = failures >= policy.unhealthy_after
        return replace(
            status,
            phase=ProcessPhase.UNHEALTHY if is_unhealthy else status.phase,
            reason=ProcessReason.NOT_RESPONDING if is_unhealthy else status.reason,
            message=failure if is_unhealthy else status.message,
            failed_checks=failures,
            check_at=now + policy.failing_check_interval_s,
        )
    if is_starting and plan.completion_path is not None and not status.running.proved:
        return replace(status, failed_checks=0, is_healthy=True, check_at=0.0)
    return _ready(status, now=now, policy=policy)


def completion_checked(status: ProcessStatus, *, failure: str | None, now: float, policy: Policy) -> ProcessStatus:
    """Record the completion that each start must answer once. `failure` None: the process answered it."""
    if status.running is None:
        return status
    if failure is None:
        return _ready(replace(status, running=replace(status.running, proved=True)), now=now, policy=policy)
    return replace(
        status,
        reason=ProcessReason.COMPLETION_FAILED,
        message=failure,
        failed_checks=1,
        is_healthy=False,
        check_at=now + max(1.0, policy.starting_check_interval_s),
    )


def _ready(status: ProcessStatus, *, now: float, policy: Policy) -> ProcessStatus:
    is_steady = status.phase is ProcessPhase.READY and status.ready_since is not None
    since = status.ready_since if is_steady and status.ready_since is not None else now
    is_stable = now - since >= policy.stable_s
    return replace(
        status,
        phase=ProcessPhase.READY,
        reason="",
        message="",
        failed_checks=0,
        is_healthy=False,
        ready_since=since,
        crashes=0 if is_stable else status.crashes,
        check_at=now + (policy.stable_check_interval_s if is_stable else policy.check_interval_s),
    )


def stop_started(status: ProcessStatus, *, reason: str = "", message: str = "") -> ProcessStatus:
    """Record that the process is being stopped."""
    return replace(status, phase=ProcessPhase.STOPPING, reason=reason, message=message)


def drain_answered(
    status: ProcessStatus, busy: bool | None, timeout_s: float, *, now: float
) -> tuple[ProcessStatus, bool]:
    """Record whether requests are running; None if that is unknown.

    The second value is True if the process may be stopped.
    """
    drain = (status.drain or Drain(since=now, known_at=now)).answered(busy, now=now)
    is_over = drain.outcome(timeout_s=timeout_s, now=now, settle_s=SETTLE_S) is not None
    return replace(stop_started(status), drain=drain), is_over


def stop_cancelled(status: ProcessStatus) -> ProcessStatus:
    """Record that a process that was about to be stopped continues to run as planned."""
    phase = ProcessPhase.STARTING if status.ready_since is None else ProcessPhase.READY
    return replace(status, phase=phase, reason="", message="", failed_checks=0, check_at=0.0, drain=None)


def process_stopped(status: ProcessStatus) -> ProcessStatus:
    """Record that the process was stopped by its plan or by a hold."""
    kept = status.replacement
    if kept is not None and kept.attempts:
        # The process of an earlier plan has ended. The fetch for the plan keeps its back-off.
        backs_off = replace(status, replacement=None, attempts=kept.attempts, retry_at=kept.retry_at)
        stopped = process_stopped(backs_off)
        return replace(stopped, phase=ProcessPhase.BACKING_OFF, reason=kept.reason, message=kept.message)
    return replace(
        status,
        replacement=None,
        phase=ProcessPhase.PENDING,
        running=None,
        model_path=None,
        file_paths=(),
        failed_checks=0,
        is_healthy=False,
        ready_since=None,
        check_at=0.0,
        drain=None,
    )


def daemon_lost(status: ProcessStatus, *, reason: str, message: str, now: float, policy: Policy) -> ProcessStatus:
    """Record that the daemon of a model has ended. The model is loaded again, without counting a crash."""
    return replace(
        process_stopped(status),
        phase=ProcessPhase.BACKING_OFF,
        reason=reason,
        message=message,
        restarts=status.restarts + 1,
        retry_at=now + policy.backoff_base_s,
    )


def process_crashed(status: ProcessStatus, *, reason: str, message: str, now: float, policy: Policy) -> ProcessStatus:
    """Record a process that ended by itself, or was stopped because it did not serve."""
    was_stable = status.ready_since is not None and now - status.ready_since >= policy.stable_s
    crashes = 1 if was_stable else status.crashes + 1
    ended = replace(process_stopped(status), crashes=crashes, reason=reason, message=message)
    if crashes >= policy.max_crashes:
        return replace(
            ended,
            phase=ProcessPhase.FAILED,
            reason=ProcessReason.CRASH_LOOP,
            message=f"gave up after {crashes} crashes in a row; the last one: {message}",
        )
    wait = backoff_s(crashes, base_s=policy.backoff_base_s, cap_s=policy.backoff_cap_s)
    return replace(ended, phase=ProcessPhase.BACKING_OFF, restarts=status.restarts + 1, retry_at=now + wait)
