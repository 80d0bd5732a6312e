"""`herdsman delete NAME`: delete a service, and its Model where nothing else uses it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from automation.cli import exits
from automation.cli.completion import service_names
from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.output import complain, say
from automation.cli.place_options import Context, Kubeconfig, Namespace, errors_end, full_name, open_place


def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Services to delete: NAME or KIND/NAME.", autocompletion=service_names),
    ],
    namespace: Namespace = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete the model's files from the caches too, if nothing else uses them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Delete services, and their Models where no other service uses them.

    Asks before it deletes. Without a terminal it asks nothing, and needs --yes.
    """
    changes: list[str] = []
    with errors_end():
        place = open_place(kubeconfig, context, dry_run=changes if dry_run else None)
        services = [place.find(name, namespace) for name in names]
        if dry_run:
            for service in services:
                place.delete(service, purge=purge)
            end_dry_run(list(dict.fromkeys(changes)))
        if not _agreed([full_name(each) for each in services], place.title, yes=yes):
            raise typer.Exit(exits.FAILED)
        for service in services:
            say(f"Deleted {place.delete(service, purge=purge)}")


def _agreed(names: list[str], where: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        complain(
            "cannot ask for a confirmation: standard input is not a terminal; nothing was deleted",
            hint="add --yes to delete without a question",
        )
        return False
    return typer.confirm(f"Delete {', '.join(names)} of {where}?")
