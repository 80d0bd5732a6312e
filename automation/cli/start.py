"""`herdsman start NAME`: start a stopped service again."""

from __future__ import annotations

from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.output import say
from automation.cli.place_options import Context, Kubeconfig, Name, Namespace, errors_end, full_name, open_place


def start(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Start a stopped service again, with the replicas that it had."""
    changes: list[str] = []
    with errors_end():
        place = open_place(kubeconfig, context, dry_run=changes if dry_run else None)
        service = place.find(name, namespace)
        place.start(service)
    if dry_run:
        end_dry_run(changes)
    say(f"Started {full_name(service)}")
