"""The priorities of services and the PriorityClasses behind them: one table for pods, hosts, queue and status."""

from __future__ import annotations

from typing import Literal, get_args

Priority = Literal["critical", "high", "normal", "low", "batch"]

PRIORITIES: dict[str, int] = {"critical": 1_000_000, "high": 100_000, "normal": 10_000, "low": 1_000, "batch": 100}
"""The value of each priority's class: the scheduler takes places from lower values for higher ones."""
NEVER_PREEMPTS = frozenset({"batch"})
"""Their pods wait for room and take nobody's place."""

assert set(PRIORITIES) == set(get_args(Priority)), "a priority without a value"


def class_name(priority: str) -> str:
    """Name the PriorityClass of a priority, as LLMKube does."""
    return f"llmkube-{priority}"
