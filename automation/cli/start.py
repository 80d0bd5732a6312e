"""`herdsman start NAME`: start a stopped service again."""

from __future__ import annotations

from automation.cli.output import say
from automation.cli.place_options import Context, Kubeconfig, Name, Namespace, errors_end, full_name, open_place


def start(name: Name, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None) -> None:
    """Start a stopped service again, with the replicas that it had."""
    with errors_end():
        place = open_place(kubeconfig, context)
        service = place.find(name, namespace)
        place.start(service)
    say(f"Started {full_name(service)}")
