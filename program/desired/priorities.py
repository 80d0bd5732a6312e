"""The priorities of services and their PriorityClasses: one table for pods, hosts, queue and status."""

from __future__ import annotations

from typing import Literal, get_args

Priority = Literal["critical", "high", "normal", "low", "batch"]

PRIORITIES: dict[str, int] = {"critical": 1_000_000, "high": 100_000, "normal": 10_000, "low": 1_000, "batch": 100}
"""The value of each priority's class. The scheduler preempts pods of lower values for pods of higher ones."""
NEVER_PREEMPTS = frozenset({"batch"})
"""Pods of these priorities wait for room and preempt no other pod."""

assert set(PRIORITIES) == set(get_args(Priority)), "a priority without a value"


def class_name(priority: str) -> str:
    """Return the name of a priority's PriorityClass; the names are LLMKube's."""
    return f"llmkube-{priority}"
