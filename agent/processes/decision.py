"""What to do next about one process on a host: the decision that the agent and the loop over SSH share.

A pure function of values. Called by `agent.server.processes.lifecycle` for processes that the agent starts itself, and
by `agent.client.ssh.life` for units of a service manager. Both perform the action in their own way and observe again.
Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

UNHEALTHY_AFTER = 3
"""Failed health checks in a row before a process counts as not ready."""
RESTART_AFTER = 8
"""Failed health checks in a row before a process that was ready is restarted."""


class Action(Enum):
    """What to do next."""

    WAIT = auto()
    """Nothing, until something changes or the back-off is over."""
    PREPARE = auto()
    """Bring the files of the plan to the host, then start the process."""
    WATCH = auto()
    """Leave the process running, and probe it when a probe is due."""
    STOP = auto()
    """Drain the process, then stop it: the plan wants none, or another one."""
    RESTART = auto()
    """Stop the process without a drain, and start it again: it runs as planned and does not serve."""
    COLLECT = auto()
    """Read how the process ended."""
    REMOVE = auto()
    """Remove what is left of a process that is not planned any more."""


@dataclass(frozen=True)
class Desired:
    """What the plan says of a process."""

    launch_hash: str
    startup_timeout_s: float
    is_held: bool = False
    """It must not run now, for another reason than its plan: memory, sleep."""


@dataclass(frozen=True)
class Observed:
    """How the process is. The defaults describe a process that does not run."""

    running: str | None = None
    """The launch hash that the running process was started by, empty where that is not known; None: none runs."""
    has_ended: bool = False
    """It was running when it was last looked at, and runs no more."""
    has_given_up: bool = False
    """It ended by this very plan, and is not started again until the plan changes; or the service manager starts it."""
    is_ready: bool = False
    """It has been ready at least once since it was started."""
    running_s: float = 0.0
    """How long it has been running."""
    failed_probes: int = 0
    """Failed health checks in a row."""


def decide(
    desired: Desired | None,
    observed: Observed,
    *,
    now: float,
    retry_at: float = 0.0,
    restart_after: int = RESTART_AFTER,
) -> Action:
    """Decide the next action. `desired` None: no plan names the process. Before `retry_at` nothing is tried again."""
    if observed.has_ended:
        return Action.COLLECT
    backs_off = now < retry_at
    if observed.running is not None:
        if desired is None or desired.is_held or desired.launch_hash != observed.running:
            return Action.WAIT if backs_off else Action.STOP
        starts_too_long = not observed.is_ready and observed.running_s > desired.startup_timeout_s
        if starts_too_long or (observed.is_ready and observed.failed_probes >= restart_after):
            return Action.RESTART
        return Action.WATCH
    if desired is None:
        return Action.WAIT if backs_off else Action.REMOVE
    if desired.is_held or observed.has_given_up or backs_off:
        return Action.WAIT
    return Action.PREPARE


def backoff_s(failures: int, *, base_s: float, cap_s: float) -> float:
    """Give the wait after the nth failure in a row: doubling from `base_s`, at most `cap_s`."""
    return min(cap_s, base_s * 2.0 ** min(max(0, failures - 1), 32))
