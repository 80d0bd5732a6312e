"""`herdsman stop NAME`: end all replicas of a service and keep their number."""

from __future__ import annotations

from automation.cli.output import say
from automation.cli.place_options import Context, Kubeconfig, Name, Namespace, errors_end, full_name, open_place


def stop(name: Name, namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None) -> None:
    """End all replicas of a service; `herdsman start` starts the same number again."""
    with errors_end():
        place = open_place(kubeconfig, context)
        service = place.find(name, namespace)
        place.stop(service)
    say(f"Stopped {full_name(service)}")
