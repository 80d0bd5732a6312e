"""`herdsman scale NAME --replicas N`: change the number of a service's replicas."""

from __future__ import annotations

from typing import Annotated

import typer

from automation.cli.dry_run import DryRun
from automation.cli.output import say
from automation.cli.place_options import Context, Kubeconfig, Name, Namespace, full_name, place_to_change


def scale(
    name: Name,
    replicas: Annotated[int, typer.Option("--replicas", "-r", min=0, help="Number of replicas; 0 stops all.")],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Change the number of a service's replicas.

    If an autoscaler owns the number, the command says so.
    """
    with place_to_change(kubeconfig, context, dry_run=dry_run) as place:
        service = place.find(name, namespace)
        note = place.scale(service, replicas)
    say(f"Scaled {full_name(service)} to {replicas} replica{'' if replicas == 1 else 's'}")
    if note:
        say(f"Note: {note}", err=True)
