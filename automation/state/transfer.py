"""Writes states into a backend and verifies them, for moves and restores.

An existing state is overwritten only on request, and the source is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from automation.engine.port import APPLY_FAILED, EngineFailed, Stack, StackLocked, StateUnreadable
from automation.engine.stack_cli import Run
from automation.engine.stack_states import opens, resealed
from automation.engine.state_backend import StateBackend

PATIENCE_S = 120.0
"""Timeout of all commands for one stack."""
_AT_ONCE = 4
"""Stacks at the same time: a command of the CLI spends most of its time in its start."""

Export = dict[str, Any]
Result = Literal["copied", "same", "failed"]


@dataclass(frozen=True)
class Transfer:
    """The result for one stack."""

    stack: str
    result: Result
    resources: int = 0
    message: str = ""


class InTheWay(Exception):
    """The target has another state of that stack."""


def for_each(
    names: Iterable[str], work: Callable[[str], Transfer], done: Callable[[Transfer], None]
) -> tuple[Transfer, ...]:
    """Call `work` for each stack, several at the same time; a failure does not stop the others."""

    def guarded(name: str) -> Transfer:
        try:
            result = work(name)
        except (EngineFailed, InTheWay) as error:
            result = Transfer(name, "failed", message=str(error))
        done(result)
        return result

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return tuple(threads.map(guarded, sorted(names)))


def read(source: StateBackend, name: str) -> Export:
    """Export a stack. Raises EngineFailed: unreadable, gone, or the backend is away."""
    export = source.states.export(Stack(name), Run(PATIENCE_S))
    if export is None:
        raise StateUnreadable(f"no stack `{name}` in {source.url.shown}")
    return export


def check_free(backend: StateBackend, name: str) -> None:
    """Raise StackLocked when another process works on the stack."""
    holder = backend.states.holder(Stack(name), Run(PATIENCE_S))
    if holder is not None:
        by, since = holder
        raise StackLocked(
            f"`{name}` is locked by {by} since {since}; `herdsman state unlock {name}` releases it", by=by, since=since
        )


def put(target: StateBackend, name: str, export: Export, *, force: bool) -> Transfer:
    """Write a state into the target and read it back.

    Its key is wrapped again if the target's passphrase does not open it; a state without a key gets none. Raises
    InTheWay, StackLocked, StateSealed and other kinds of EngineFailed.
    """
    stack, run = Stack(name), Run(PATIENCE_S)
    resources = count(export)
    there = target.states.export(stack, run)
    if there is not None and same(there, export):
        return Transfer(name, "same", resources)
    if there is not None and count(there) and not force:
        raise InTheWay(f"{target.url.shown} has another state of `{name}`; --force overwrites it")
    if not opens(export, target.keeper):
        export = resealed(export, target.keeper)
    if there is None:
        target.states.create(stack, run)
    target.states.replace(stack, _with_deployment(export), run)
    arrived = target.states.export(stack, run)
    if arrived is None or not same(arrived, export):
        message = f"the copy of `{name}` in {target.url.shown} differs from the original"
        raise EngineFailed(APPLY_FAILED, message)
    return Transfer(name, "copied", resources)


def count(export: Export) -> int:
    """Return the number of resources in a state."""
    return len((export.get("deployment") or {}).get("resources") or ())


def same(one: Export, other: Export) -> bool:
    """Return whether two exports hold the same resources, regardless of encryption and time."""
    return _content(one) == _content(other)


def _content(export: Export) -> str:
    deployment = export.get("deployment") or {}
    return json.dumps(
        [_bare(deployment.get(part) or []) for part in ("resources", "pending_operations")], sort_keys=True
    )


def _bare(value: Any) -> Any:
    """Drop empty values: the CLI sometimes writes `{}` and sometimes omits it."""
    if isinstance(value, dict):
        bare = {key: _bare(inner) for key, inner in value.items()}
        return {key: inner for key, inner in bare.items() if inner not in ({}, [], None)}
    if isinstance(value, list):
        return [_bare(inner) for inner in value]
    return value


def _with_deployment(export: Export) -> Export:
    """Return an export that the CLI accepts: a stack without a run has no deployment."""
    return {**export, "deployment": export.get("deployment") or {}}
