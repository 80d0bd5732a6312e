"""When a process that is drained may be stopped: the rules, without I/O.

Called by `agent.server.processes.drain`, which waits in a loop, and by `lifecycle` for hosts over SSH,
which are asked once a pass.
Times are seconds of a monotonic clock that the caller passes in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum, auto

from agent.contract import DRAIN_TIMEOUT_S, IdleQuestion, ProcessPlan

SETTLE_S = 1.0
"""How long clients may still send requests after the endpoint is withdrawn: kube-proxy of each node has to follow."""
UNKNOWN_S = 5.0
"""How long requests have where nobody can tell whether there are any."""
IDLE_ANSWERS = 2
"""Idle answers in a row that count: a request may lie between two that are asked for one after the other."""


class Drained(Enum):
    """How a drain ended."""

    IDLE = auto()
    TIMED_OUT = auto()
    CALLED_OFF = auto()
    """The process is wanted again, or the agent leaves it to the next one."""


@dataclass(frozen=True)
class Drain:
    """How far a drain is."""

    since: float
    known_at: float
    """When the engine last said whether it works on a request; before any answer, when it was first asked."""
    idle_answers: int = 0
    """Idle answers in a row."""

    def answered(self, busy: bool | None, *, now: float) -> Drain:
        """Count an answer; None means that nobody can tell whether a request is under way."""
        if busy is None:
            return replace(self, idle_answers=0)
        return replace(self, idle_answers=0 if busy else self.idle_answers + 1, known_at=now)

    def outcome(self, *, timeout_s: float, now: float, settle_s: float = 0.0) -> Drained | None:
        """Give how the drain ended; None while it goes on. Within `settle_s` of its begin no idle answer ends it."""
        if self.idle_answers >= IDLE_ANSWERS and now - self.since >= min(settle_s, timeout_s):
            return Drained.IDLE
        if now - self.since >= timeout_s or now - self.known_at >= UNKNOWN_S:
            return Drained.TIMED_OUT
        return None


def drain_timeout_of(plan: ProcessPlan, cap_s: float | None = None) -> float:
    """Give how long requests under way may take: the plan's time or the usual one, at most `cap_s`."""
    planned = DRAIN_TIMEOUT_S if plan.drain_timeout_s is None else plan.drain_timeout_s
    return max(0.0, planned if cap_s is None else min(planned, cap_s))


def is_busy_by(question: IdleQuestion, status: int, body: bytes) -> bool | None:
    """Read the answer to an idle question: True means busy; None that the answer does not tell."""
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
    """Read the value of a line of Prometheus' text; after it there may be a time."""
    rest = line.rpartition("}")[2].split() if "}" in line else line.split()[1:]
    try:
        return float(rest[0])
    except (IndexError, ValueError):
        return None
