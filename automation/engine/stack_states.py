"""Reads, makes, overwrites and re-encrypts the states of one backend's stacks.

Files are read and written directly, the table of PostgreSQL is read directly; the CLI does the rest.

`pulumi_engine` calls it under the lock of the stack; `automation.state` moves, saves and repairs backends with it.
Nothing here deletes an unreadable state: a file is moved aside, and in a bucket or table the CLI keeps a copy (`.bak`).
"""

from __future__ import annotations

import json
from typing import Any

import structlog

from automation.engine import outcomes, recovery
from automation.engine.checkpoint import CheckpointBroken
from automation.engine.key_keeper import PROVIDER_URL, KeyKeeper
from automation.engine.port import Stack, StateSealed, StateUnreadable
from automation.engine.run_log import RunLog
from automation.engine.stack_cli import Run, StackCli
from automation.engine.state_files import StateFiles
from automation.engine.state_table import StateTable, TableUnreadable
from automation.engine.workspace import Workspace

log = structlog.get_logger(__name__)

Deployment = dict[str, Any]
_SEALED_VALUE = '"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"'
"""Pulumi's mark of a secret value in a state, as json.dumps writes it."""


class StackStates:
    """One backend. Calls for one stack must not overlap."""

    def __init__(
        self,
        cli: StackCli,
        workspace: Workspace,
        keeper: KeyKeeper,
        files: StateFiles | None,
        table: StateTable | None = None,
    ) -> None:
        self._cli = cli
        self._workspace = workspace
        self._keeper = keeper
        self._files = files
        self._table = table

    def stacks(self, run: Run) -> set[Stack]:
        """Return the stacks of Herdsman's project. Costs a CLI process for a bucket, and where a direct read fails.

        Raises StateUnreadable when one of them is broken and the CLI lists them: it reads each.
        """
        return {Stack.parse(name) for name in self.names(run)}

    def names(self, run: Run) -> set[str]:
        """Return the names of all stacks of the project, also of stacks that no loop has made. Raises as `stacks`."""
        if self._files:
            return self._files.names()
        if self._table:
            self._cli.check_backend()
            try:
                return self._table.names(timeout_s=run.left_s)
            except TableUnreadable as error:
                log.debug("Could not list the stacks without the CLI", error=str(error))
        result = self._cli.call(Stack("-"), ["stack", "ls", "--json"], run, whole_output=True)
        if result.code != 0 and recovery.is_unreadable(result.output):
            raise StateUnreadable(outcomes.failure_message(RunLog(), result))
        return {str(entry["name"]).rpartition("/")[2] for entry in outcomes.parse_query(result)}

    def deployment(self, stack: Stack, run: Run) -> Deployment | None:
        """Return the deployment; empty when nothing was deployed yet, None when there is no such stack.

        Raises StateUnreadable.
        """
        export = self.export(stack, run)
        return None if export is None else export.get("deployment") or {}

    def export(self, stack: Stack, run: Run) -> dict[str, Any] | None:
        """Return the state as `pulumi stack export` does, still encrypted; None when there is no such stack.

        Raises StateUnreadable.
        """
        if self._files:
            try:
                return self._files.export(stack)
            except CheckpointBroken as error:
                raise StateUnreadable(str(error)) from error
        if self._table:
            self._cli.check_backend()
            try:
                return self._table.export(stack, timeout_s=run.left_s)
            except TableUnreadable as error:
                log.debug("Could not read a state without the CLI", stack_name=stack.name, error=str(error))
        result = self._cli.call(stack, ["stack", "export", "--stack", stack.name], run, whole_output=True)
        if result.code != 0:
            if recovery.is_missing(result.output):
                return None
            if recovery.is_unreadable(result.output):
                raise StateUnreadable(outcomes.failure_message(RunLog(), result))
        exported: dict[str, Any] = outcomes.parse_query(result)
        return exported

    def create(self, stack: Stack, run: Run) -> None:
        """Make an empty stack. An existing one stays as it is."""
        if self._files and self._files.make(stack):
            return
        argv = ["stack", "init", "--no-select", "--secrets-provider", PROVIDER_URL, "--stack", stack.name]
        result = self._cli.call(stack, argv, run)
        if result.code != 0 and "already exists" not in result.output:
            raise outcomes.run_error(RunLog(), result)

    def replace(self, stack: Stack, export: dict[str, Any], run: Run) -> None:
        """Overwrite the whole state of a stack. Raises StackLocked."""
        path = self._cli.directory(stack).path / "import.json"
        path.write_text(json.dumps(export))
        path.chmod(0o600)
        try:
            result = self._cli.call(
                stack, ["stack", "import", "--force", "--file", str(path), "--stack", stack.name], run
            )
        finally:
            path.unlink(missing_ok=True)
        if result.code != 0:
            recovery.check_lock(result.output, self._cli.directory(stack).record, stack=stack.name, sole=False)
            raise outcomes.run_error(RunLog(), result)

    def rebuild(self, stack: Stack, run: Run) -> None:
        """Replace the state by an empty one. The state is a cache: the next apply adopts Herdsman's objects."""
        log.warning("The state of a stack is unreadable; rebuilding it from the live objects", stack_name=stack.name)
        self._workspace.discard_settings(stack)
        if self._files:
            self._files.mend()
            self._files.set_aside(stack)
            self.create(stack, run)
            return
        # An unreadable stack cannot be removed, but it can be overwritten.
        self.replace(stack, {"version": 3, "deployment": {}}, run)

    def reseal(self, stack: Stack, run: Run) -> None:
        """Give a stack a new key when the passphrase does not open its key.

        Raises StateSealed if that would lose secrets.

        The key encrypts only secrets, and Herdsman's programs put none into a state. Everything else can be read
        without the key.
        """
        export = self.export(stack, run)
        if export is None or not export.get("deployment"):
            self._workspace.discard_settings(stack)
            return
        self.replace(stack, resealed(export, self._keeper), run)
        self._workspace.discard_settings(stack)
        log.warning(
            "The passphrase does not decrypt the key of a stack without secrets; gave the stack a new key",
            stack_name=stack.name,
        )

    def holder(self, stack: Stack, run: Run) -> tuple[str, str] | None:
        """Return the holder of the stack's lock and the time in the lock; None for no lock.

        A rename of a stack to its present name takes the lock and is then refused. It is the only command that reports
        a lock and changes nothing.
        """
        if self._files:
            return self._files.holder(stack)
        result = self._cli.call(stack, ["stack", "rename", stack.name, "--stack", stack.name], run)
        return recovery.lock_of(result.output)

    def unlock(self, stack: Stack, run: Run) -> None:
        """Delete the stack's locks, whoever holds them."""
        if self._files:
            self._files.drop_broken_locks(stack)
        result = self._cli.call(stack, ["cancel", "--yes", "--stack", stack.name], run)
        if result.code != 0:
            raise outcomes.run_error(RunLog(), result)

    def remove(self, stack: Stack, run: Run, *, backups: bool = False) -> None:
        """Delete the stack's state and history. Objects stay; copies of the state stay unless `backups` is True."""
        argv = ["stack", "rm", "--force", "--yes", "--stack", stack.name]
        result = self._cli.call(stack, [*argv, "--remove-backups"] if backups else argv, run)
        if result.code != 0 and not recovery.is_missing(result.output):
            raise outcomes.run_error(RunLog(), result)
        self._workspace.discard(stack)


def resealed(export: dict[str, Any], keeper: KeyKeeper) -> dict[str, Any]:
    """Return a copy of an export with a key that the current passphrase opens.

    The key is the export's if the old passphrase opens it, else a new one. Raises StateSealed when that would lose
    secrets.
    """
    deployment: Deployment = export.get("deployment") or {}
    sealed = ((deployment.get("secrets_providers") or {}).get("state") or {}).get("encryptedkey")
    key = keeper.rewrapped(sealed) if isinstance(sealed, str) else None
    if key is None:
        if has_secrets(deployment):
            raise StateSealed(
                "the state contains secrets that the passphrase does not decrypt; use the passphrase that encrypted "
                "them, or change it with `herdsman state rekey --old-passphrase-file FILE`"
            )
        key = keeper.new_data_key()
    provider = {"type": "cloud", "state": {"url": PROVIDER_URL, "encryptedkey": key}}
    return {**export, "deployment": {**deployment, "secrets_providers": provider}}


def has_secrets(deployment: Deployment) -> bool:
    """Return whether a deployment contains an encrypted value."""
    return _SEALED_VALUE in json.dumps(deployment)


def opens(export: dict[str, Any], keeper: KeyKeeper) -> bool:
    """Return whether the current passphrase opens an export's key.

    True for an export without a key of the key keeper.
    """
    deployment: Deployment = export.get("deployment") or {}
    provider = deployment.get("secrets_providers") or {}
    state = provider.get("state") or {}
    sealed = state.get("encryptedkey")
    if provider.get("type") != "cloud" or state.get("url") != PROVIDER_URL or not isinstance(sealed, str):
        return True
    return keeper.opens(sealed)
