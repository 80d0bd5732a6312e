"""`herdsman uninstall`: remove the operator from a cluster; services keep running."""

from __future__ import annotations

from typing import Annotated

import typer

from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.install import connected, exit_on_error, show_changes
from automation.cli.output import OutputFormat, say
from automation.settings import SYSTEM_NAMESPACE

WAIT_S = 30.0


def uninstall(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the operator.")] = SYSTEM_NAMESPACE,
    crds: Annotated[
        bool, typer.Option("--crds", help="Also delete all Models, all services with their replicas, and the CRDs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the operator is removed.")] = False,
    confirm_objects: Annotated[
        int | None, typer.Option(help="With --crds: the number of objects to delete. It replaces the second question.")
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
    dry_run: DryRun = False,
) -> None:
    """Remove the operator. Models, services, claims, CRDs and all running replicas stay as they are.

    No loop manages them until an operator is installed again. With --crds they are deleted as well.
    """
    from automation.install import removal

    if confirm_objects is not None and not crds:
        raise typer.BadParameter("--confirm-objects needs --crds")
    with exit_on_error():
        to = connected(kubeconfig)
        if dry_run:
            objects = to.installer.installed(namespace)
            counts = removal.count_objects(to.client) if crds else {}
            deleted = [
                f"delete {count} {kind}, and their pods and processes" for kind, count in counts.items() if count
            ]
            end_dry_run([*(f"delete {each.kind} {each.name}" for each in objects), *deleted])
        if not yes:
            typer.confirm(f"Remove the operator from namespace {namespace}?", abort=True)
        if crds:
            counts = removal.count_objects(to.client)
            total = sum(counts.values())
            told = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
            if confirm_objects is None:
                say(f"--crds deletes {total} objects ({told}), and all pods and processes that serve them.", err=True)
                confirm_objects = typer.prompt("Type the number of objects to delete", type=int, err=True)
            if confirm_objects != total:
                raise typer.BadParameter(
                    f"the command would delete {total} objects ({told}), not {confirm_objects}; nothing was deleted"
                )
            removal.remove_objects(to.client, timeout_s=WAIT_S)
        changes = to.installer.uninstall(namespace)
        removal.release_adapters(to.client)
        removed = removal.remove_crds(to.client) if crds else ()
    show_changes(changes, output)
    for name in removed:
        say(f"deleted CustomResourceDefinition {name}", err=output is OutputFormat.JSON)
