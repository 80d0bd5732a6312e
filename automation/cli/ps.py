"""`herdsman ps`: the services that run now."""

from __future__ import annotations

from automation.cli.list import Output, Watch, show_services
from automation.cli.place_options import AllNamespaces, Context, Kubeconfig, Namespace, errors_end, open_place
from automation.cli.service_rows import ListFormat


def ps(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    watch: Watch = False,
    output: Output = ListFormat.WIDE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List the services that run or start now, with the place where they run.

    Services that sleep or are stopped are left out; `herdsman list` shows them.
    """
    with errors_end():
        place = open_place(kubeconfig, context)
        show_services(place, [], namespace, all_namespaces, watch=watch, output=output, only_running=True)
