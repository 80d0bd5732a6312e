"""`herdsman start NAME`: start a stopped service again."""

from __future__ import annotations

from automation.cli.dry_run import DryRun
from automation.cli.output import say
from automation.cli.place_options import Context, Kubeconfig, Name, Namespace, find_service, full_name, place_to_change


def start(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Start a stopped service again, with the replicas that it had."""
    with place_to_change(kubeconfig, context, dry_run=dry_run) as place:
        service = find_service(place, name, namespace)
        place.start(service)
    say(f"Started {full_name(service)}")
