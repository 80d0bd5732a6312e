"""Shared by the `herdsman state` commands: opens the backend, checks for a leading loop, prints results."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from automation.cli.output import OutputFormat, complain, print_json, print_table, say
from components import naming

if TYPE_CHECKING:
    from automation.engine.state_backend import StateBackend
    from automation.settings import Settings
    from automation.state.transfer import Transfer
    from kubeapi.client import KubeClient


def settings_of(state: str | None, passphrase_file: pathlib.Path | None) -> Settings:
    """Return the settings for the state's URL and passphrase. Raises BadParameter."""
    from pydantic import ValidationError

    from automation.engine.state_url import StateUrl
    from automation.settings import Settings

    given: dict[str, object] = {"state": state} if state else {}
    if passphrase_file:
        given |= {"passphrase_file": passphrase_file, "passphrase": None}
    try:
        if state and StateUrl.of(state).has_secret:
            raise typer.BadParameter(
                "every user of this machine can read a password in a command line; omit it and set PGPASSWORD"
            )
        return Settings(**given)
    except ValidationError as error:
        raise typer.BadParameter(str(error.errors()[0]["msg"])) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def passphrase_of(settings: Settings) -> str:
    """Return the given passphrase, else the one beside the state, which is made if it is missing."""
    from automation.engine.key_keeper import ensure_passphrase, read_passphrase
    from automation.engine.state_url import StateUrl

    if settings.passphrase_file:
        return read_passphrase(settings.passphrase_file)
    return settings.passphrase_text or ensure_passphrase(
        (StateUrl.of(settings.state).path or settings.work_directory) / "passphrase"
    )


class StateNotOpened(Exception):
    """The state cannot be opened or used; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def opened(
    settings: Settings, *, make: bool = False, old_passphrase: str | None = None, project: str = naming.PROJECT
) -> Iterator[StateBackend]:
    """Open the backend as `backend_of`. Ends the command on an error."""
    try:
        with backend_of(settings, make=make, old_passphrase=old_passphrase, project=project) as backend:
            yield backend
    except StateNotOpened as error:
        fail(str(error), hint=error.hint)


@contextmanager
def backend_of(
    settings: Settings, *, make: bool = False, old_passphrase: str | None = None, project: str = naming.PROJECT
) -> Iterator[StateBackend]:
    """Open the backend with separate work directories, because a loop's must never be shared.

    Raises StateNotOpened, also for an error of the engine in the block.
    """
    # Imported here, so that other commands do not wait for it.
    from automation.engine.key_keeper import PassphraseMissing
    from automation.engine.port import EngineFailed
    from automation.engine.state_backend import StateBackend
    from automation.engine.state_url import StateUrl
    from tools import toolchain

    path = StateUrl.of(settings.state).path
    if path is not None and not path.is_dir() and not make:
        raise StateNotOpened(f"{settings.state} contains no state", "name the state of the loop with --state")
    own = os.environ.get("PULUMI_CONFIG_PASSPHRASE")
    try:
        with tempfile.TemporaryDirectory(prefix="herdsman-state-") as directory:
            backend = StateBackend(
                settings.state,
                work_root=pathlib.Path(directory),
                pulumi=toolchain.locate("pulumi"),
                passphrase=passphrase_of(settings),
                old_passphrase=old_passphrase,
                # Stacks of a static fleet may use Pulumi's passphrase provider.
                environment={"PULUMI_CONFIG_PASSPHRASE": own} if own else None,
                make=make,
                project=project,
            )
            try:
                yield backend
            finally:
                backend.close()
    except (PassphraseMissing, toolchain.ToolMissing, EngineFailed) as error:
        raise StateNotOpened(str(error)) from error


def names_of(backend: StateBackend) -> set[str]:
    """Return the names of the stacks. Ends the command when they cannot be listed."""
    from automation.engine.port import StateUnreadable
    from automation.engine.stack_cli import Run

    try:
        return backend.states.names(Run(60.0))
    except StateUnreadable as error:
        fail(
            f"cannot list the stacks of {backend.url.shown}, because one is unreadable: {error.message}",
            hint="`herdsman state repair STACK` replaces it; STACK is the name of the namespace",
        )


def check_quiet(settings: Settings, kubeconfig: str | None, *, force: bool) -> None:
    """End the command when a loop leads: it would write to the old state, or overwrite the new one."""
    from kubeapi.client import KubeClient
    from kubeapi.errors import KubeError

    if force:
        return
    try:
        client = KubeClient.default(kubeconfig)
    except KubeError:
        return  # no cluster is configured, as on a machine with static fleets only
    try:
        found = leaders(client, settings.lease_namespace, settings.lease_name, now=datetime.now(UTC))
    except KubeError as error:
        fail(f"cannot check whether a loop leads: {error}", hint="--force skips this check")
    finally:
        client.close()
    if found:
        fail(
            f"a loop leads ({', '.join(found)}); scale the loop to 0 first, so that the state does not change during "
            f"the command",
            hint="services keep serving; --force continues although a loop leads",
        )


def leaders(client: KubeClient, namespace: str, base: str, *, now: datetime) -> tuple[str, ...]:
    """Return the holders of loops' Leases that have not expired. Raises KubeError."""
    from automation.leadership.shards import shard_of_lease
    from kubeapi.kinds import LEASES

    found = []
    for lease in client.list(LEASES, namespace).get("items") or ():
        spec = lease.get("spec") or {}
        if shard_of_lease(lease["metadata"]["name"], base) is not None and _holds(spec, now):
            found.append(str(spec["holderIdentity"]))
    return tuple(sorted(found))


def _holds(spec: dict[str, Any], now: datetime) -> bool:
    if not spec.get("holderIdentity"):
        return False
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime")).replace("Z", "+00:00"))
    except ValueError:
        return True
    # Clocks of different machines differ, so the Lease counts as held for some time longer.
    return (now.astimezone(UTC) - renewed).total_seconds() < 2 * float(spec.get("leaseDurationSeconds") or 15) + 10


def read_old_passphrase(file: pathlib.Path) -> str:
    """Return the passphrase in a file. Ends the command when there is none."""
    from automation.engine.key_keeper import PassphraseMissing, read_passphrase

    try:
        return read_passphrase(file)
    except PassphraseMissing as error:
        fail(str(error))


@contextmanager
def progress_of(what: str, total: int) -> Iterator[Callable[[Transfer], None]]:
    """Show a progress bar on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda _: progress.advance(bar)


def print_transfers(results: tuple[Transfer, ...], output: OutputFormat, *, nothing_done: str = "") -> None:
    """Print the result for each stack. Ends the command when one failed."""
    if output is OutputFormat.JSON:
        print_json([asdict(result) for result in results])
    elif results:
        rows = [(r.stack, r.result, str(r.resources), r.message) for r in results]
        print_table(("STACK", "RESULT", "RESOURCES", ""), rows, phase_column=1)
    else:
        say("There are no stacks")
    failed = sum(result.result == "failed" for result in results)
    if failed:
        fail(f"{failed} of {len(results)} stacks failed{'; ' + nothing_done if nothing_done else ''}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal. Without a terminal, only --yes continues."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(question, hint="standard input is not a terminal: add --yes to confirm")
    typer.confirm(question, abort=True)


def fail(message: str, *, hint: str = "") -> NoReturn:
    """End the command with exit code 1."""
    complain(message, hint=hint)
    raise typer.Exit(1)
