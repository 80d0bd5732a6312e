"""`herdsman queue`: the services that wait, and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli.output import OutputFormat, print_json, print_table, say
from automation.cli.place_options import AllNamespaces, Context, Kubeconfig, Namespace, errors_end, open_place
from automation.cli.service_rows import cells
from automation.places.place import State

if TYPE_CHECKING:
    from automation.places.place import ServiceState
    from kubeapi.json_types import Json

COLUMNS = ("NAMESPACE", "NAME", "QUEUE", "WAITING FOR", "PRIORITY", "AGE", "WHY")


def queue(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List the services that wait for a GPU, memory, a host or an approval, in the order of the queue."""
    with errors_end():
        place = open_place(kubeconfig, context)
        found = place.services(None if all_namespaces else namespace or place.default_namespace)
    rows = [row(each) for each in sorted(filter(waits, found), key=_order)]
    if output is OutputFormat.JSON:
        print_json(rows)
    elif not rows:
        say(f"No service of {place.title} waits", err=True)
    else:
        keys = ("namespace", "name", "queue", "waitingFor", "priority", "age", "message")
        print_table(COLUMNS, [[str(each[key] if each[key] is not None else "") for key in keys] for each in rows])


def waits(service: ServiceState) -> bool:
    """Return whether a service waits for something that it does not control."""
    return service.state is State.WAITING or bool(_status(service).get("queuePosition"))


def row(service: ServiceState) -> Json:
    """Return a row. `position` counts from 1 among the services that wait for the same resource; else it is null."""
    status = _status(service)
    position, length = status.get("queuePosition") or None, status.get("queueLength") or None
    age, message = cells(service, ("age", "message"))
    return {
        "namespace": service.namespace,
        "name": service.name,
        "position": position,
        "length": length,
        "queue": f"{position}/{length or '?'}" if position else "",
        "waitingFor": status.get("waitingFor") or service.reason,
        "priority": status.get("effectivePriority"),
        "age": age,
        "message": message,
    }


def _order(service: ServiceState) -> tuple[str, int, str, str]:
    status = _status(service)
    resource = str(status.get("waitingFor") or "~").partition(":")[0]
    return resource, int(status.get("queuePosition") or 0), service.namespace, service.name


def _status(service: ServiceState) -> Json:
    return dict(service.document.get("status") or {})
