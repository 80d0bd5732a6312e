"""Checks a state backend and reports problems with a remedy. For `herdsman state doctor` and `herdsman doctor`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from automation.console.check import Check
from automation.engine.port import EngineFailed, Stack, StateUnreachable, StateUnreadable
from automation.engine.stack_cli import Run
from automation.engine.stack_states import has_secrets, opens
from automation.engine.state_backend import StateBackend

QUESTION_S = 30.0


@dataclass(frozen=True)
class StackRow:
    """One stack, as a list shows it."""

    name: str
    resources: int = 0
    written: str = ""
    """Time of the last write, RFC 3339; empty when never."""
    key: Literal["fits", "other", "none"] = "none"
    """Whether the passphrase opens its key."""
    secrets: bool = False
    locked_by: str = ""
    locked_since: str = ""
    problem: str = ""


def rows(backend: StateBackend, names: Iterable[str]) -> tuple[StackRow, ...]:
    """Read stacks, one after the other. Raises StateUnreachable."""
    return tuple(_row(backend, name) for name in sorted(names))


def check_state(backend: StateBackend) -> tuple[Check, ...]:
    """Check that the backend answers and accepts writes, and that each stack is usable. Changes nothing."""
    where = backend.url.shown
    try:
        names = backend.states.names(Run(QUESTION_S))
    except StateUnreachable as error:
        return (Check("state backend", "missing", error.message, _hint(backend)),)
    except StateUnreadable as error:
        hint = (
            "a loop repairs it at its next pass over that namespace; to repair it now, run `herdsman state repair "
            "STACK`"
        )
        return (Check("state backend", "warning", f"{where}: a stack cannot be read: {error.message}", hint),)
    except EngineFailed as error:
        return (Check("state backend", "missing", f"{where}: {error.message}", _hint(backend)),)
    checks = [Check("state backend", "ok", f"{where}, {len(names)} stacks"), _writable(backend)]
    try:
        checks += [found for row in rows(backend, names) if (found := _of_stack(row)) is not None]
    except EngineFailed as error:
        checks.append(Check("state backend", "missing", error.message, _hint(backend)))
    return tuple(checks)


def _row(backend: StateBackend, name: str) -> StackRow:
    stack = Stack(name)
    try:
        export = backend.states.export(stack, Run(QUESTION_S)) or {}
    except StateUnreadable as error:
        return StackRow(name, problem=error.message)
    by, since = backend.states.holder(stack, Run(QUESTION_S)) or ("", "")
    deployment = export.get("deployment") or {}
    sealed = bool((deployment.get("secrets_providers") or {}).get("type"))
    written = str((deployment.get("manifest") or {}).get("time") or "")
    return StackRow(
        name,
        resources=len(deployment.get("resources") or ()),
        written="" if written.startswith("0001") else written,
        key="none" if not sealed else "fits" if opens(export, backend.keeper) else "other",
        secrets=has_secrets(deployment),
        locked_by=by,
        locked_since=since,
    )


def _of_stack(row: StackRow) -> Check | None:
    name = f"stack {row.name}"
    if row.problem:
        return Check(name, "warning", f"cannot be read: {row.problem}", f"`herdsman state repair {row.name}`")
    if row.locked_by:
        detail = f"locked by {row.locked_by} since {row.locked_since}"
        return Check(name, "warning", detail, f"if that process has ended: `herdsman state unlock {row.name}`")
    if row.key == "other" and row.secrets:
        hint = "use the passphrase that encrypted them, or run `herdsman state rekey --old-passphrase-file FILE`"
        return Check(name, "missing", "contains secrets that the passphrase does not decrypt", hint)
    if row.key == "other":
        detail = (
            "has a key that the passphrase does not decrypt; no secret depends on it, and the next change replaces it"
        )
        return Check(name, "warning", detail, "nothing to do; `herdsman state rekey` replaces it now")
    return None


def _writable(backend: StateBackend) -> Check:
    """Make an empty stack and remove it: backends do not report in advance whether they accept writes."""
    probe, run = Stack(f"doctor-{secrets.token_hex(4)}"), Run(QUESTION_S)
    try:
        backend.states.create(probe, run)
        backend.states.remove(probe, run, backups=True)
    except EngineFailed as error:
        return Check("state writable", "missing", error.message, _hint(backend))
    return Check("state writable", "ok", "created and removed an empty stack")


def _hint(backend: StateBackend) -> str:
    return {
        "s3": "check bucket, endpoint and region in the URL, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "postgres": "check host, user and database in the URL, and PGPASSWORD; the database must exist",
        "file": "check that the directory exists and belongs to the loop's user",
    }.get(backend.url.scheme, "check the URL and the credentials in the environment")
