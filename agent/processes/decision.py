"""The next action for one process on a host, which the agent and the loop over SSH decide in the same way.

Without I/O. `agent.processes.lifecycle` calls `decide` with the stored status of the process. Both executors
(`agent.server.processes.worker`, `agent.client.ssh.processes`) perform the action in their own way and observe again.
Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from agent.contract import ProcessPlan

UNHEALTHY_AFTER = 3
"""Failed health checks in a row before a process counts as not ready."""
RESTART_AFTER = 8
"""Failed health checks in a row before a process that was ready is restarted."""


class Action(Enum):
    """The next action for a process."""

    WAIT = auto()
    """Do nothing until something changes or the back-off is over."""
    FETCH = auto()
    """Bring the files of the plan to the host."""
    START = auto()
    """Start the process."""
    WATCH = auto()
    """Leave the process running; no check is due."""
    CHECK_HEALTH = auto()
    """Check the health of the running process."""
    CHECK_COMPLETION = auto()
    """Send the healthy process the completion that it must answer once per start."""
    STOP = auto()
    """Drain the process, then stop it: it must not run, or must run with another plan."""
    RESTART = auto()
    """Stop the process without a drain and start it again, because it does not serve."""
    REAP = auto()
    """Read how the process ended."""
    REMOVE = auto()
    """Remove everything of a process that no plan contains any more."""


@dataclass(frozen=True)
class Desired:
    """A plan, and the launch hash of a process that is started with it."""

    plan: ProcessPlan
    launch_hash: str
    generation: int = 0


@dataclass(frozen=True)
class Observed:
    """The observed state of a process. The defaults describe a process that does not run."""

    running: str | None = None
    """The launch hash of the running process, empty if it is unknown. None: no process runs."""
    has_ended: bool = False
    """It was running at the last observation, and does not run now."""
    has_given_up: bool = False
    """It is not started again before the plan changes, because it failed with this plan or because the service manager
    starts it."""
    has_files: bool = True
    """The files of the plan are on the host, or the executor checks them only at the start. False while a process of an
    earlier plan runs: that process is kept until the files are there."""
    fetch_at: float = 0.0
    """When the next fetch is due while a process of an earlier plan runs."""
    is_ready: bool = False
    """It has been ready at least once since its start."""
    is_healthy: bool = False
    """It is not ready yet, and its last health check succeeded."""
    running_s: float = 0.0
    """Time since its start."""
    failed_checks: int = 0
    """Failed health checks in a row."""
    check_at: float = 0.0
    """When the next check is due."""


def decide(
    desired: Desired | None,
    observed: Observed,
    *,
    now: float,
    retry_at: float = 0.0,
    is_held: bool = False,
    restart_after: int = RESTART_AFTER,
) -> Action:
    """Return the next action. `desired` None: no plan contains the process. Nothing is retried before `retry_at`.

    `is_held`: the process must not run now for a reason outside of its plan, such as memory or sleep.
    """
    if observed.has_ended:
        return Action.REAP
    backs_off = now < retry_at
    if observed.running is not None:
        is_earlier = desired is not None and desired.launch_hash != observed.running
        fails = observed.is_ready and observed.failed_checks >= restart_after
        # A process that serves is kept until the files of the plan that replaces it are there.
        is_kept = is_earlier and not observed.has_files and observed.is_ready and not fails
        if desired is None or is_held or (is_earlier and not is_kept):
            return Action.WAIT if backs_off else Action.STOP
        if is_kept and now >= observed.fetch_at:
            return Action.FETCH
        starts_too_long = not observed.is_ready and observed.running_s > desired.plan.startup_timeout_s
        if starts_too_long or fails:
            return Action.RESTART
        if now < observed.check_at:
            return Action.WATCH
        return Action.CHECK_COMPLETION if observed.is_healthy else Action.CHECK_HEALTH
    if desired is None:
        return Action.WAIT if backs_off else Action.REMOVE
    if is_held or observed.has_given_up or backs_off:
        return Action.WAIT
    return Action.START if observed.has_files else Action.FETCH


def backoff_s(failures: int, *, base_s: float, cap_s: float) -> float:
    """Return the wait after the nth failure in a row: doubled each time from `base_s`, at most `cap_s`."""
    return min(cap_s, base_s * 2.0 ** min(max(0, failures - 1), 32))
