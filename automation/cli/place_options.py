"""The options that all everyday commands share, and the place that they mean.

Called by `deploy`, `chat`, `list` and the other everyday commands. `local_place` is where this machine's own place is
offered to them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli import exits
from automation.cli.completion import service_names
from automation.cli.dry_run import end_dry_run
from automation.cli.output import complain

if TYPE_CHECKING:
    from automation.places.place import Place, ServiceState

NAME_HELP = "Service: NAME, or KIND/NAME if services of several kinds have the name (playground/chat)."

Name = Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP, autocompletion=service_names)]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace. The default is that of the context.", show_default=False),
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="The services of all namespaces.")]
Context = Annotated[
    str | None,
    typer.Option("--context", "--kube-context", help="Context of the kubeconfig.", show_default=False),
]
Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig.", show_default=False)]


def local_place(dry_run: list[str] | None = None) -> Place | None:
    """Return this machine as a place; None while it is not set up to serve models without a cluster."""
    from automation.local.place import find_local_place

    return find_local_place(dry_run)


def open_place(kubeconfig: str | None, context: str | None, *, dry_run: list[str] | None = None) -> Place:
    """Return the place of a command. Raises NoAccess.

    With `dry_run` the place changes nothing, and adds each change that it would make to this list.
    """
    from automation.places.choice import choose_place

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return choose_place(
        kubeconfig=kubeconfig, context=context, local=lambda: local_place(dry_run), colour=colour, dry_run=dry_run
    )


@contextlib.contextmanager
def errors_end() -> Iterator[None]:
    """Print a PlaceError and its hint, and end the command: with code 4 for missing access, else 1."""
    from automation.places.place import NoAccess, PlaceError

    try:
        yield
    except PlaceError as error:
        complain(str(error), hint=error.hint)
        raise typer.Exit(exits.NO_ACCESS if isinstance(error, NoAccess) else exits.FAILED) from None


@contextlib.contextmanager
def place_to_change(kubeconfig: str | None, context: str | None, *, dry_run: bool) -> Iterator[Place]:
    """Open the place that a command changes. A dry run ends the command after the block. A PlaceError ends it too."""
    changes: list[str] = []
    with errors_end():
        yield open_place(kubeconfig, context, dry_run=changes if dry_run else None)
    if dry_run:
        end_dry_run(changes)


def full_name(service: ServiceState) -> str:
    """Return NAMESPACE/NAME for messages."""
    return f"{service.namespace}/{service.name}"


def find_service(place: Place, name: str, namespace: str | None) -> ServiceState:
    """Return a service by `NAME` or `KIND/NAME`, or by the id of the catalog that `deploy` got. Raises NoSuchService.

    Names of services have no dots, so `deploy qwen3.5-4b` makes the service `qwen3-5-4b`.
    """
    from automation.places.place import NoSuchService

    try:
        return place.find(name, namespace)
    except NoSuchService:
        if "." not in name:
            raise
        with contextlib.suppress(NoSuchService):
            return place.find(name.replace(".", "-"), namespace)
        raise
