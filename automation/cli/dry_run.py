"""The option `--dry-run` of all commands that change something, and how a dry run ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from automation.cli import exits
from automation.cli.output import say
from kubeapi.client import KubeClient
from kubeapi.dry_run import DryRunClient

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would change. Exit code 2: something would change.")
]
OlderPreview = Annotated[bool, typer.Option("--preview", hidden=True, help="The older name of --dry-run.")]


def client_of(kubeconfig: str | None, *, context: str | None = None, dry_run: bool = False) -> KubeClient:
    """Return a client; in a dry run one that stores nothing. Raises ConfigInvalid."""
    return (DryRunClient if dry_run else KubeClient).default(kubeconfig, context=context)


def end_dry_run(changes: Sequence[str] | KubeClient) -> NoReturn:
    """Print what would be done, such as `delete Host mac-1`, and end the command: with code 2, or 0 for nothing."""
    if isinstance(changes, KubeClient):
        changes = changes.changes if isinstance(changes, DryRunClient) else ()
    for each in changes:
        say(f"Would {each}")
    if not changes:
        say("Nothing would change")
    raise typer.Exit(exits.WOULD_CHANGE if changes else exits.DONE)
