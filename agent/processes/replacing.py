"""The replacement of a running process by one with new files. Values, without I/O.

The files of the new plan are fetched and verified while the process of the earlier plan serves, so that a source that
fails stops nothing. `lifecycle` keeps the value in the status of the process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from agent.contract import FilePlan, ProcessPhase, ProcessPlan
from agent.processes.decision import backoff_s

MODEL = "model"
"""Name of the plan's main file among its files, and of its token in `argv`."""
GOES_ON = "the process of the earlier plan goes on"


@dataclass(frozen=True)
class Replacement:
    """The fetch of a plan's files while the process of an earlier plan serves."""

    phase: ProcessPhase = ProcessPhase.DOWNLOADING
    reason: str = ""
    message: str = ""
    is_fetching: bool = False
    attempts: int = 0
    """Failed fetches in a row."""
    retry_at: float = 0.0

    @property
    def fetch_at(self) -> float:
        """When the next fetch is due: never while one runs."""
        return math.inf if self.is_fetching else self.retry_at

    @property
    def told(self) -> str:
        """The message of the report, which also says what runs."""
        return f"{self.message}; {GOES_ON}" if self.message else GOES_ON

    def started(self) -> Replacement:
        """Record that the fetch has begun."""
        return replace(self, phase=ProcessPhase.DOWNLOADING, reason="", message="", is_fetching=True)

    def failed(self, reason: str, message: str, *, now: float, base_s: float, cap_s: float) -> Replacement:
        """Record a failed fetch. `base_s` and `cap_s` are the first and the longest wait in seconds."""
        attempts = self.attempts + 1
        retry_at = now + backoff_s(attempts, base_s=base_s, cap_s=cap_s)
        return Replacement(ProcessPhase.BACKING_OFF, reason, message, attempts=attempts, retry_at=retry_at)

    def deferred(self, phase: ProcessPhase, reason: str, message: str, *, retry_at: float) -> Replacement:
        """Record that the fetch may not begin yet, for a reason outside of the plan."""
        return replace(self, phase=phase, reason=reason, message=message, is_fetching=False, retry_at=retry_at)


def files_of(plan: ProcessPlan) -> dict[str, FilePlan]:
    """Return all files of a plan by name."""
    return {**({MODEL: plan.file} if plan.file else {}), **(plan.files or {})}


def needs_other_files(plan: ProcessPlan, running: ProcessPlan | None) -> bool:
    """Return whether a plan names files that the running process does not have.

    `running` is the plan of that process; None if it is unknown. Ollama fetches its models itself.
    """
    had = files_of(running).values() if running is not None else ()
    return any(each not in had for each in files_of(plan).values())
