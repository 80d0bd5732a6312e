"""Steps, each of which looks before it acts: done twice, the second time changes nothing.

Used by `automation.cli.agent_service` on this machine and over SSH by `agent.client`. A step keeps no state: whether it
has to act is seen on the machine alone, so that a run that was cut off is finished by the next one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agent.steps.machine import Machine, MachineError

DIFF_LINES = 200
"""More lines of a difference are not shown."""


@dataclass(frozen=True)
class Change:
    """What a step would do: in words, and as a unified diff where a text file changes. Never shows a secret."""

    summary: str
    diff: str = ""


class Step(Protocol):
    """One thing that should be so on a machine."""

    @property
    def title(self) -> str:
        """What should be so, as a person would list it: `unit file /etc/…`."""

    def compare(self, machine: Machine) -> Change | None:
        """Tell what `do` would change; None when all is as it should be. Changes nothing, raises MachineError.

        Steps before this one may not have been done (a preview), so what they bring may be missing.
        """

    def apply(self, machine: Machine) -> None:
        """Make it so. Called only after `look` told of a change. Raises MachineError."""


class State(StrEnum):
    """What became of a step."""

    OK = "ok"
    CHANGED = "changed"
    WOULD_CHANGE = "would-change"
    FAILED = "failed"
    SKIPPED = "skipped"
    """A step before it failed."""


@dataclass(frozen=True)
class Outcome:
    """One step's part of a run."""

    title: str
    state: State
    detail: str = ""
    diff: str = ""
    hint: str = ""


def run_steps(
    steps: Sequence[Step],
    machine: Machine,
    *,
    dry_run: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Take the steps in order and stop at the first that fails; those after it are skipped.

    Raises nothing of the machine's: a MachineError is the failed step's detail. `on_outcome` hears of each at once.
    """
    outcomes: list[Outcome] = []
    failed = False
    for step in steps:
        outcome = Outcome(step.title, State.SKIPPED) if failed else _run(step, machine, dry_run=dry_run)
        failed = failed or outcome.state is State.FAILED
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
    return outcomes


def _run(step: Step, machine: Machine, *, dry_run: bool) -> Outcome:
    try:
        change = step.compare(machine)
        if change is None:
            return Outcome(step.title, State.OK)
        if not dry_run:
            step.apply(machine)
    except MachineError as error:
        return Outcome(step.title, State.FAILED, error.message, hint=error.hint)
    state = State.WOULD_CHANGE if dry_run else State.CHANGED
    return Outcome(step.title, state, change.summary, change.diff)


def is_failed(outcomes: Sequence[Outcome]) -> bool:
    return any(outcome.state is State.FAILED for outcome in outcomes)


def is_changed(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether anything changed, or in a preview would."""
    return any(outcome.state in (State.CHANGED, State.WOULD_CHANGE) for outcome in outcomes)


def difference(path: str, before: bytes | None, after: bytes | None) -> str:
    """Give the unified diff of a text file's content; empty where a side is no text."""
    try:
        old = (before or b"").decode().splitlines(keepends=True)
        new = (after or b"").decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return ""
    source, target = ("/dev/null" if side is None else path for side in (before, after))
    lines = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, source, target)
    ]
    cut = len(lines) - DIFF_LINES
    return "".join(lines[:DIFF_LINES]) + (f"… and {cut} more lines\n" if cut > 0 else "")
