"""Steps that compare before they act, so that a second run changes nothing.

Used by `automation.cli.agent_service` on this machine and by `agent.client` over SSH. A step stores no state: the
machine alone shows whether it has to act. So the next run completes an interrupted one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agent.steps.machine import Machine, MachineError

DIFF_LINES = 200
"""Longest difference that is shown, in lines."""


@dataclass(frozen=True)
class Change:
    """A change that a step would make, as a summary and, for text files, a unified diff. Never contains a secret."""

    summary: str
    diff: str = ""


class Step(Protocol):
    """One part of the desired state of a machine."""

    @property
    def title(self) -> str:
        """The desired state as a list entry for people: `unit file /etc/…`."""

    def compare(self, machine: Machine) -> Change | None:
        """Return what `apply` would change, or None if nothing. Changes nothing itself. Raises MachineError.

        In a preview, earlier steps were not applied, so their results may be missing.
        """

    def apply(self, machine: Machine) -> None:
        """Make the change. Called only after `compare` returned one. Raises MachineError."""


class State(StrEnum):
    """The result of a step."""

    OK = "ok"
    CHANGED = "changed"
    WOULD_CHANGE = "would-change"
    FAILED = "failed"
    SKIPPED = "skipped"
    """An earlier step failed."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one step in a run."""

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
    """Run the steps in order. After the first failure, skip the rest.

    A MachineError becomes the detail of the failed step. `on_outcome` is called after each step.
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
    """Return whether any step changed something, or would in a preview."""
    return any(outcome.state in (State.CHANGED, State.WOULD_CHANGE) for outcome in outcomes)


def difference(path: str, before: bytes | None, after: bytes | None) -> str:
    """Return the unified diff of a text file's content, or an empty string if a side is not text."""
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
