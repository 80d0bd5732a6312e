"""What the loop remembers of one process on a host over SSH, and the next action for it: values, without I/O.

Called by `processes`, which asks and acts. `agent.processes.decision` decides; this module says what a unit of a
service manager means for that. Times are seconds of a monotonic clock that the caller passes in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.client.ssh.fetch import FileState
from agent.client.ssh.observed import ObservedProcess
from agent.contract import ProcessPhase, ProcessPlan, ProcessReason, ProcessReport
from agent.processes.decision import UNHEALTHY_AFTER, Action, Desired, Observed, backoff_s, decide
from agent.processes.draining import SETTLE_S, Drain

PROBE_S = 5.0
FAILING_PROBE_S = 1.0
STARTING_PROBE_S = 0.3
BACKOFF_S = (2.0, 300.0)


@dataclass(frozen=True)
class Life:
    """What is remembered of a process between two looks; lost without harm."""

    wanted: str = ""
    """Launch hash of the plan that this speaks of."""
    start: str = ""
    """The start that this speaks of (`ObservedProcess.start`)."""
    since: float = 0.0
    proved: bool = False
    ready: bool = False
    failures: int = 0
    """Failed health checks in a row."""
    check_message: str = ""
    """What the last failed check said."""
    completion_failed: bool = False
    probe_at: float = 0.0
    drain: Drain | None = None
    attempts: int = 0
    """Failed fetches or steps in a row."""
    wait_until: float = 0.0
    reason: str = ""
    message: str = ""


def next_action(
    seen: ObservedProcess | None, life: Life, plan: ProcessPlan | None, wanted: str, *, now: float
) -> Action:
    """Decide what to do next. `wanted` is the launch hash of the plan; no plan: the process is to go."""
    desired = None if plan is None else Desired(wanted, plan.startup_timeout_s)
    return decide(desired, _observed(seen, life, wanted, now=now), now=now, retry_at=life.wait_until)


def _observed(seen: ObservedProcess | None, life: Life, wanted: str, *, now: float) -> Observed:
    if seen is None:
        return Observed()
    if not seen.runs:
        # By this very plan it is the service manager's turn, which starts it again or has given up.
        is_managed = seen.active in ("activating", "failed")
        return Observed(has_given_up=is_managed and seen.installed == wanted)
    if life.start != seen.start:
        return Observed(running=seen.launch)
    return Observed(running=seen.launch, is_ready=life.ready, running_s=now - life.since, failed_probes=life.failures)


def with_plan(life: Life, wanted: str) -> Life:
    """Give a changed plan a fresh start: past failures are forgotten, not what runs."""
    if life.wanted == wanted:
        return life
    return replace(life, wanted=wanted, attempts=0, wait_until=0.0, reason="", message="", drain=None)


def with_start(life: Life, seen: ObservedProcess, *, now: float) -> Life:
    """Take in which start runs; one that had proved itself counts as ready until a check says otherwise."""
    if life.start == seen.start:
        return life
    proved = seen.is_proved
    return Life(wanted=life.wanted, start=seen.start, since=now, proved=proved, ready=proved)


def with_health(life: Life, plan: ProcessPlan, failure: str | None, *, now: float) -> Life:
    """Take in a health check: None is healthy."""
    if failure is not None:
        wait = FAILING_PROBE_S if life.ready else STARTING_PROBE_S
        return replace(life, failures=life.failures + 1, check_message=failure, probe_at=now + wait)
    healthy = replace(life, failures=0, check_message="")
    if plan.completion_path is not None and not life.proved:
        return healthy
    return replace(healthy, ready=True, proved=True, completion_failed=False, probe_at=now + PROBE_S)


def with_completion(life: Life, failure: str | None, *, now: float) -> Life:
    """Take in the completion that every start must answer once."""
    if failure is not None:
        return replace(life, check_message=failure, completion_failed=True, probe_at=now + 1.0)
    return replace(life, proved=True, ready=True, check_message="", completion_failed=False, probe_at=now + PROBE_S)


def with_backoff(life: Life, reason: str, message: str, *, now: float) -> Life:
    """Note that something failed that is tried again after a back-off."""
    attempts = life.attempts + 1
    wait = backoff_s(attempts, base_s=BACKOFF_S[0], cap_s=BACKOFF_S[1])
    return replace(life, attempts=attempts, wait_until=now + wait, reason=reason, message=message)


def with_drain_answer(life: Life, busy: bool | None, timeout_s: float, *, now: float) -> tuple[Life, bool]:
    """Take in whether requests are under way; True: it may be stopped."""
    drain = (life.drain or Drain(since=now, known_at=now)).answered(busy, now=now)
    is_over = drain.outcome(timeout_s=timeout_s, now=now, settle_s=SETTLE_S) is not None
    return replace(life, drain=drain, ready=False), is_over


def phase_of(
    seen: ObservedProcess | None, life: Life, wanted: str, *, last_words: str = ""
) -> tuple[ProcessPhase, str, str]:
    """Say phase, reason and message of a process that is wanted, and that is not being fetched."""
    if seen is not None and seen.runs and seen.launch == wanted:
        if life.start != seen.start or not life.ready:
            reason = ProcessReason.COMPLETION_FAILED if life.completion_failed else ""
            return ProcessPhase.STARTING, reason, life.check_message
        if life.failures >= UNHEALTHY_AFTER:
            return ProcessPhase.UNHEALTHY, ProcessReason.NOT_RESPONDING, life.check_message
        return ProcessPhase.READY, "", ""
    if seen is not None and not seen.runs and seen.installed == wanted:
        words = f"; its last lines:\n{last_words}" if last_words else ""
        if seen.active == "failed":
            return ProcessPhase.FAILED, ProcessReason.CRASH_LOOP, f"it ended too often ({seen.result}){words}"
        if seen.active == "activating":
            # launchd tells a code, and with 78 that it cannot start the job at all.
            code = f" ({seen.result})" if seen.result.startswith("exit code") else ""
            return ProcessPhase.BACKING_OFF, ProcessReason.EXITED, f"it ended{code} and is started again{words}"
    if life.reason:
        return ProcessPhase.BACKING_OFF, life.reason, life.message
    if seen is not None and seen.runs:
        return ProcessPhase.STOPPING, ProcessReason.REPLACING, ""
    return ProcessPhase.PENDING, "", ""


def report_of_stopped(phase: ProcessPhase, reason: str, message: str, generation: int) -> ProcessReport:
    """Report on a process that does not run."""
    return ProcessReport(phase=phase, reason=reason, message=message, observed_generation=generation)


def report_of_download(
    state: FileState, generation: int, report: ProcessReport | None, *, still_serves: bool
) -> ProcessReport:
    """Say that a file is on its way; `report` is that of the process that runs meanwhile."""
    progress = {"downloaded_bytes": state.done_bytes, "total_bytes": state.total_bytes}
    if report is None:
        return report_of_stopped(ProcessPhase.DOWNLOADING, "", "", generation).model_copy(update=progress)
    words = {"phase": ProcessPhase.DOWNLOADING, "reason": "", "message": "", "ready": still_serves}
    return report.model_copy(update={**words, **progress})
