"""What to do next about one process on a host: the decision that the agent and the loop over SSH share.

A pure function of values. `agent.processes.lifecycle` calls it with what an executor remembers of the process; both
executors (`agent.server.processes.worker`, `agent.client.ssh.processes`) perform the action in their own way and
observe again. Times are seconds of a monotonic clock.
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
    """What to do next."""

    WAIT = auto()
    """Nothing, until something changes or the back-off is over."""
    FETCH = auto()
    """Bring the files of the plan to the host."""
    START = auto()
    """Start the process."""
    WATCH = auto()
    """Leave the process running; no check is due."""
    CHECK_HEALTH = auto()
    """Ask the running process for its health."""
    CHECK_COMPLETION = auto()
    """Ask the healthy process for the completion that every start must answer once."""
    STOP = auto()
    """Drain the process, then stop it: the plan wants none, or another one."""
    RESTART = auto()
    """Stop the process without a drain, and start it again: it runs as planned and does not serve."""
    REAP = auto()
    """Read how the process ended."""
    REMOVE = auto()
    """Remove what is left of a process that is not planned any more."""


@dataclass(frozen=True)
class Desired:
    """A plan, and the hash that a process started by it carries."""

    plan: ProcessPlan
    launch_hash: str
    generation: int = 0


@dataclass(frozen=True)
class Observed:
    """How the process is. The defaults describe a process that does not run."""

    running: str | None = None
    """The launch hash that the running process was started by, empty where that is not known; None: none runs."""
    has_ended: bool = False
    """It was running when it was last observed, and does not run now."""
    has_given_up: bool = False
    """It ended by this very plan, and is not started again until the plan changes; or the service manager starts it."""
    has_files: bool = True
    """The files of the plan are on the host; or the executor finds that out when it starts the process."""
    is_ready: bool = False
    """It has been ready at least once since it was started."""
    is_healthy: bool = False
    """It is not ready yet, and its last health check succeeded."""
    running_s: float = 0.0
    """How long it has been running."""
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
    """Decide the next action. `desired` None: no plan names the process. Before `retry_at` nothing is tried again.

    `is_held`: the process must not run now for another reason than its plan, such as memory or sleep.
    """
    if observed.has_ended:
        return Action.REAP
    backs_off = now < retry_at
    if observed.running is not None:
        if desired is None or is_held or desired.launch_hash != observed.running:
            return Action.WAIT if backs_off else Action.STOP
        starts_too_long = not observed.is_ready and observed.running_s > desired.plan.startup_timeout_s
        if starts_too_long or (observed.is_ready and observed.failed_checks >= restart_after):
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
    """Return the wait after the nth failure in a row: doubling from `base_s`, at most `cap_s`."""
    return min(cap_s, base_s * 2.0 ** min(max(0, failures - 1), 32))
