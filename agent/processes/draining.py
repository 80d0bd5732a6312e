"""The rules for when a drained process may be stopped. Without I/O.

Called by `agent.server.processes.drain`, which waits in a loop, and by `lifecycle` for hosts over SSH, which are asked
once per pass. Times are seconds of a monotonic clock that the caller provides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum, auto

from agent.contract import DRAIN_TIMEOUT_S, IdleQuestion, ProcessPlan

SETTLE_S = 1.0
"""How long clients may still send requests after the endpoint is withdrawn, because kube-proxy on each node must
follow."""
UNKNOWN_S = 5.0
"""How long running requests may take if the engine cannot report whether there are any."""
IDLE_ANSWERS = 2
"""Number of idle answers in a row that end a drain: between two requests one answer alone may show idle."""


class Drained(Enum):
    """How a drain ended."""

    IDLE = auto()
    TIMED_OUT = auto()
    CALLED_OFF = auto()
    """The process is wanted again, or the next agent takes it over."""


@dataclass(frozen=True)
class Drain:
    """The progress of a drain."""

    since: float
    known_at: float
    """When the engine last reported whether it works on a request. Before the first answer: when it was first asked."""
    idle_answers: int = 0
    """Idle answers in a row."""

    def answered(self, busy: bool | None, *, now: float) -> Drain:
        """Count an answer. None means that it is unknown whether a request is running."""
        if busy is None:
            return replace(self, idle_answers=0)
        return replace(self, idle_answers=0 if busy else self.idle_answers + 1, known_at=now)

    def outcome(self, *, timeout_s: float, now: float, settle_s: float = 0.0) -> Drained | None:
        """Return how the drain ended, or None while it continues.

        Idle answers cannot end it within the first `settle_s`.
        """
        if self.idle_answers >= IDLE_ANSWERS and now - self.since >= min(settle_s, timeout_s):
            return Drained.IDLE
        if now - self.since >= timeout_s or now - self.known_at >= UNKNOWN_S:
            return Drained.TIMED_OUT
        return None


def drain_timeout_of(plan: ProcessPlan, cap_s: float | None = None) -> float:
    """Return how long running requests may take: the plan's value or the default, at most `cap_s`."""
    planned = DRAIN_TIMEOUT_S if plan.drain_timeout_s is None else plan.drain_timeout_s
    return max(0.0, planned if cap_s is None else min(planned, cap_s))


def is_busy_by(question: IdleQuestion, status: int, body: bytes) -> bool | None:
    """Parse the answer to an idle question. Returns True if the engine is busy, None if the answer is unclear."""
    if question.kind == "status":
        return not 200 <= status < 300
    if status != 200:
        return None
    text = body.decode("utf-8", "replace")
    if question.kind == "slots":
        try:
            slots = json.loads(text)
        except ValueError:
            return None
        if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
            return None
        return any(bool(slot.get("is_processing")) for slot in slots)
    values = [_sample(line) for line in text.splitlines() if line.partition("{")[0].split(" ")[0] == question.gauge]
    numbers = [value for value in values if value is not None]
    return sum(numbers) > 0 if numbers else None


def _sample(line: str) -> float | None:
    """Parse the value of a line in the Prometheus text format. A timestamp may follow the value."""
    rest = line.rpartition("}")[2].split() if "}" in line else line.split()[1:]
    try:
        return float(rest[0])
    except (IndexError, ValueError):
        return None
