"""`herdsman stop NAME`: end all replicas of a service and keep their number."""

from __future__ import annotations

from automation.cli.dry_run import DryRun
from automation.cli.output import say
from automation.cli.place_options import Context, Kubeconfig, Name, Namespace, find_service, full_name, place_to_change


def stop(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """End all replicas of a service; `herdsman start` starts the same number again."""
    with place_to_change(kubeconfig, context, dry_run=dry_run) as place:
        service = find_service(place, name, namespace)
        place.stop(service)
    say(f"Stopped {full_name(service)}")
