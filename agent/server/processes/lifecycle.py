"""What the agent remembers of one process, and the next step for it: values, without a clock, threads or I/O.

Called by `worker`, which performs each step and feeds the outcome back. `agent.processes.decision` decides; this module
says what the decision means for a process that the agent itself fetches files for, starts and reaps. Times are seconds
of a monotonic clock that the caller passes in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason
from agent.processes.decision import RESTART_AFTER, UNHEALTHY_AFTER, Action, Desired, Observed, decide
from agent.processes.decision import backoff_s as backoff_s
from agent.processes.launch_hash import launch_hash as launch_hash


@dataclass(frozen=True)
class Policy:
    """How patient the supervisor is."""

    probe_interval_s: float = 5.0
    stable_probe_interval_s: float = 10.0
    """Between health checks of a process that was ready for `stable_s`; its exit is seen at once in any case."""
    starting_probe_interval_s: float = 0.2
    """While a process starts; at first every `first_probe_interval_s`, so that a quick start is not held up."""
    first_probe_interval_s: float = 0.02
    failing_probe_interval_s: float = 1.0
    """After a failed health check the next one comes sooner."""
    unhealthy_after: int = UNHEALTHY_AFTER
    """Failed health checks in a row before the process counts as not ready."""
    restart_after: int = RESTART_AFTER
    """Failed health checks in a row before the process is stopped and started again."""
    backoff_base_s: float = 1.0
    backoff_cap_s: float = 60.0
    retry_cap_s: float = 300.0
    """Longest wait before a failed download or a missing binary is tried again."""
    stable_s: float = 60.0
    """A process that was ready for this long has its earlier crashes forgiven."""
    max_crashes: int = 6
    """Crashes in a row, none of them after a stable time, that make a process Failed."""
    admission_retry_s: float = 5.0
    """Wait before a process that was not admitted asks again, unless something wakes it."""


@dataclass(frozen=True)
class Goal:
    """What the plan wants of the process."""

    plan: ProcessPlan
    launch_hash: str
    generation: int = 0


@dataclass(frozen=True)
class Hold:
    """Why a wanted process must not run now: it is stopped, and not started, until this is taken back."""

    phase: ProcessPhase
    """What it is then: PENDING or ASLEEP."""
    reason: str
    message: str
    drain_timeout_s: float | None = None
    """How long requests under way may take at most, where the plan's own time is too long for the cause."""


@dataclass(frozen=True)
class Running:
    """A process that was started, by this agent or by the one before it."""

    pid: int
    mark: str
    """Tells this process from a later one with the same pid (`agent.server.processes.identity`)."""
    port: int
    launch_hash: str
    since: float
    started_at: str
    """RFC 3339, for people."""
    proved: bool = False
    """It has answered a real completion, or needs none."""


@dataclass(frozen=True)
class Life:
    """All that the supervisor remembers of one process."""

    phase: ProcessPhase = ProcessPhase.PENDING
    running: Running | None = None
    goal_hash: str = ""
    model_path: str | None = None
    """Where the file of the plan lies; set by a fetch, forgotten with the process."""
    file_paths: tuple[tuple[str, str], ...] = ()
    """Name and path of each of the plan's other files."""
    reason: str = ""
    message: str = ""
    restarts: int = 0
    crashes: int = 0
    attempts: int = 0
    """Failed fetches or launches in a row."""
    probe_failures: int = 0
    healthy: bool = False
    """Starting: health is good and the completion is still to be asked for."""
    ready_since: float | None = None
    wait_until: float = 0.0
    held: bool = False
    """Phase, reason and message are those of a hold."""


class Do(Enum):
    """The steps that a worker can be told to take."""

    WAIT = auto()
    FETCH = auto()
    LAUNCH = auto()
    PROBE = auto()
    PROVE = auto()
    BURY = auto()
    """The process is gone: read its exit and its last words."""
    TERMINATE = auto()
    FORGET = auto()
    """Nothing runs and nothing is wanted."""


@dataclass(frozen=True)
class Step:
    do: Do
    until: float | None = None
    """WAIT only: when to look again; None means when something changes."""


def adjusted(life: Life, goal: Goal | None) -> Life:
    """Give a changed plan a fresh start: past failures are forgotten, a process of the old plan counts as leaving."""
    if goal is None or goal.launch_hash == life.goal_hash:
        return life
    fresh = replace(life, goal_hash=goal.launch_hash, crashes=0, attempts=0, wait_until=0.0, held=False)
    fresh = replace(fresh, model_path=None, file_paths=())
    if life.running is None:
        return replace(fresh, phase=ProcessPhase.PENDING, reason="", message="")
    if life.running.launch_hash != goal.launch_hash:
        return replace(fresh, phase=ProcessPhase.STOPPING, reason=ProcessReason.REPLACING, message="")
    return fresh


def with_hold(life: Life, goal: Goal | None, hold: Hold | None) -> Life:
    """Let a process that does not run say why it is held, or, once it is not any more, that its turn has come."""
    if life.running is not None or goal is None or life.phase is ProcessPhase.FAILED:
        return life
    if hold is not None:
        return replace(life, held=True, phase=hold.phase, reason=hold.reason, message=hold.message)
    if life.held:
        return replace(life, held=False, phase=ProcessPhase.PENDING, reason="", message="", wait_until=0.0)
    return life


def next_step(
    life: Life, goal: Goal | None, *, alive: bool, now: float, policy: Policy, hold: Hold | None = None
) -> Step:
    """Decide the one next step. `alive` tells whether `life.running` still runs."""
    desired = None if goal is None else Desired(goal.launch_hash, goal.plan.startup_timeout_s, is_held=hold is not None)
    # A stop is not put off: only fetches, starts and probes wait.
    retry_at = life.wait_until if life.running is None and goal is not None else 0.0
    observed = _observed(life, alive=alive, now=now)
    action = decide(desired, observed, now=now, retry_at=retry_at, restart_after=policy.restart_after)
    if action is Action.WAIT:
        waits_for_change = hold is not None or observed.has_given_up
        return Step(Do.WAIT, None if waits_for_change else life.wait_until)
    if action is Action.PREPARE and goal is not None:
        return Step(Do.FETCH if _lacks_files(goal.plan, life) else Do.LAUNCH)
    if action is Action.WATCH:
        if now < life.wait_until:
            return Step(Do.WAIT, life.wait_until)
        return Step(Do.PROVE if life.phase is ProcessPhase.STARTING and life.healthy else Do.PROBE)
    if action is Action.COLLECT:
        return Step(Do.BURY)
    return Step(Do.FORGET if action is Action.REMOVE else Do.TERMINATE)


def _observed(life: Life, *, alive: bool, now: float) -> Observed:
    running = life.running
    if running is None:
        return Observed(has_given_up=life.phase is ProcessPhase.FAILED)
    return Observed(
        running=running.launch_hash,
        has_ended=not alive,
        is_ready=life.phase is not ProcessPhase.STARTING,
        running_s=now - running.since,
        failed_probes=life.probe_failures,
    )


def _lacks_files(plan: ProcessPlan, life: Life) -> bool:
    """Tell whether something is still to be brought: a file, or the model that Ollama fetches itself."""
    brought = plan.file is not None or (plan.runtime == "ollama" and plan.daemon_model is not None)
    return (brought and life.model_path is None) or (bool(plan.files) and not life.file_paths)


def stop_cause(life: Life, goal: Goal | None, hold: Hold | None = None) -> tuple[ProcessReason | None, str]:
    """Say why a TERMINATE was decided: None when the plan wants it so, else the failure that counts as a crash."""
    if life.running is None or goal is None or life.running.launch_hash != goal.launch_hash:
        return None, ""
    if hold is not None:
        return None, hold.message
    if life.phase is ProcessPhase.STARTING:
        detail = f": {life.message}" if life.message else ""
        return ProcessReason.STARTUP_TIMEOUT, f"not ready after {goal.plan.startup_timeout_s:g} s{detail}"
    return ProcessReason.NOT_RESPONDING, life.message


def fetching(life: Life) -> Life:
    """Note that the file is being brought."""
    return replace(life, phase=ProcessPhase.DOWNLOADING, reason="", message="")


def fetched(life: Life, path: str | None, others: dict[str, str]) -> Life:
    """Note that all files are there and verified: the model's own, and the others by name."""
    life = replace(life, file_paths=tuple(sorted(others.items())))
    return replace(life, model_path=path, phase=ProcessPhase.PENDING, reason="", message="", attempts=0)


def refused(life: Life, hold: Hold, *, now: float, policy: Policy, retry_s: float | None = None) -> Life:
    """Note that the process was not admitted; it asks again, and its files stay where they are."""
    wait_until = now + (policy.admission_retry_s if retry_s is None else retry_s)
    return replace(life, phase=hold.phase, reason=hold.reason, message=hold.message, wait_until=wait_until)


def retried(life: Life) -> Life:
    """Let a process that was not admitted ask again at once."""
    return life if life.running is not None or life.attempts else replace(life, wait_until=0.0)


def put_off(
    life: Life,
    *,
    reason: str,
    message: str,
    now: float,
    policy: Policy,
    base_s: float | None = None,
    cap_s: float | None = None,
) -> Life:
    """Note a failed fetch or launch: try again after a back-off, without end, because the cause is outside.

    `base_s` and `cap_s` are the first and the longest wait where they are not the policy's.
    """
    attempts = life.attempts + 1
    wait = backoff_s(attempts, base_s=base_s or policy.backoff_base_s, cap_s=cap_s or policy.retry_cap_s)
    return replace(
        life,
        phase=ProcessPhase.BACKING_OFF,
        reason=reason,
        message=message,
        attempts=attempts,
        wait_until=now + wait,
        model_path=None,
        file_paths=(),
    )


def launched(life: Life, running: Running) -> Life:
    """Note that the process was started."""
    return replace(
        life,
        phase=ProcessPhase.STARTING,
        running=running,
        reason="",
        message="",
        attempts=0,
        probe_failures=0,
        healthy=False,
        ready_since=None,
        wait_until=0.0,
    )


def adopted(life: Life, running: Running, *, now: float) -> Life:
    """Note that a process of an earlier agent still runs.

    One that had proved itself counts as ready until a probe says otherwise, so that a restarted agent takes no
    endpoint out of service.
    """
    return replace(
        life,
        phase=ProcessPhase.READY if running.proved else ProcessPhase.STARTING,
        running=replace(running, since=now),
        goal_hash=running.launch_hash,
        ready_since=now if running.proved else None,
    )


def probed(life: Life, plan: ProcessPlan, *, failure: str | None, now: float, policy: Policy) -> Life:
    """Take in a health check: `failure` says what is wrong, None that all is well."""
    if life.running is None:
        return life
    starting = life.phase is ProcessPhase.STARTING
    if failure is not None:
        failures = life.probe_failures + 1
        if starting:
            # A tenth of the time so far: a start of any length is noticed soon after, without many questions.
            soon = max(policy.first_probe_interval_s, (now - life.running.since) / 10)
            wait = now + min(policy.starting_probe_interval_s, soon)
            return replace(life, probe_failures=failures, healthy=False, message=failure, wait_until=wait)
        lost = failures >= policy.unhealthy_after
        return replace(
            life,
            phase=ProcessPhase.UNHEALTHY if lost else life.phase,
            reason=ProcessReason.NOT_RESPONDING if lost else life.reason,
            message=failure if lost else life.message,
            probe_failures=failures,
            wait_until=now + policy.failing_probe_interval_s,
        )
    if starting and plan.completion_path is not None and not life.running.proved:
        return replace(life, probe_failures=0, healthy=True, wait_until=0.0)
    return _ready(life, now=now, policy=policy)


def proved(life: Life, *, failure: str | None, now: float, policy: Policy) -> Life:
    """Take in the completion that every start must answer once."""
    if life.running is None:
        return life
    if failure is None:
        return _ready(replace(life, running=replace(life.running, proved=True)), now=now, policy=policy)
    wait = now + max(1.0, policy.starting_probe_interval_s)
    return replace(
        life, reason=ProcessReason.COMPLETION_FAILED, message=failure, probe_failures=1, healthy=False, wait_until=wait
    )


def _ready(life: Life, *, now: float, policy: Policy) -> Life:
    steady = life.phase is ProcessPhase.READY and life.ready_since is not None
    since = life.ready_since if steady and life.ready_since is not None else now
    stable = now - since >= policy.stable_s
    return replace(
        life,
        phase=ProcessPhase.READY,
        reason="",
        message="",
        probe_failures=0,
        ready_since=since,
        crashes=0 if stable else life.crashes,
        wait_until=now + (policy.stable_probe_interval_s if stable else policy.probe_interval_s),
    )


def stopping(life: Life, *, reason: str = "", message: str = "") -> Life:
    """Note that the process is being stopped."""
    return replace(life, phase=ProcessPhase.STOPPING, reason=reason, message=message)


def kept(life: Life) -> Life:
    """Note that a process which was being drained is wanted again as it is."""
    return replace(life, phase=ProcessPhase.READY, reason="", message="", probe_failures=0, wait_until=0.0)


def stranded(life: Life, *, reason: str, message: str, now: float, policy: Policy) -> Life:
    """Note that what the process depends on is gone: it starts again, and the fault does not count as its own."""
    return replace(
        stopped(life),
        phase=ProcessPhase.BACKING_OFF,
        reason=reason,
        message=message,
        restarts=life.restarts + 1,
        wait_until=now + policy.backoff_base_s,
    )


def stopped(life: Life) -> Life:
    """Note that the process was stopped because the plan wanted it so."""
    return replace(
        life,
        phase=ProcessPhase.PENDING,
        running=None,
        model_path=None,
        file_paths=(),
        probe_failures=0,
        healthy=False,
        ready_since=None,
        wait_until=0.0,
    )


def crashed(life: Life, *, reason: str, message: str, now: float, policy: Policy) -> Life:
    """Take in a process that ended by itself, or had to be stopped because it did not serve."""
    stable = life.ready_since is not None and now - life.ready_since >= policy.stable_s
    crashes = 1 if stable else life.crashes + 1
    gone = replace(stopped(life), crashes=crashes, reason=reason, message=message)
    if crashes >= policy.max_crashes:
        return replace(
            gone,
            phase=ProcessPhase.FAILED,
            reason=ProcessReason.CRASH_LOOP,
            message=f"gave up after {crashes} crashes in a row; the last one: {message}",
        )
    wait = backoff_s(crashes, base_s=policy.backoff_base_s, cap_s=policy.backoff_cap_s)
    return replace(gone, phase=ProcessPhase.BACKING_OFF, restarts=life.restarts + 1, wait_until=now + wait)
