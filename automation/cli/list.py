"""`herdsman list`: the services of a namespace or of all, in a cluster or on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli.output import plain_table, print_json, print_table, say, say_yaml
from automation.cli.place_options import AllNamespaces, Context, Kubeconfig, Namespace, errors_end, open_place
from automation.cli.service_rows import COLUMNS, WIDE, ListFormat, cells, documents, qualified_name, row

if TYPE_CHECKING:
    from automation.places.place import Place, ServiceState

LOOK_EVERY_S = 2.0
_MOVING = ("starting", "waiting")
Output = Annotated[ListFormat, typer.Option("-o", "--output", help="table, wide, json, yaml or name.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on, and print each service that changes.")]


def list_(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Services to list: NAME or KIND/NAME. All by default.")
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    watch: Watch = False,
    output: Output = ListFormat.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List services with their state, model, replicas and context.

    WHY says what a service that is not ready waits for.
    """
    with errors_end():
        place = open_place(kubeconfig, context)
        show_services(place, names or [], namespace, all_namespaces, watch=watch, output=output)


def show_services(
    place: Place,
    names: list[str],
    namespace: str | None,
    all_namespaces: bool,
    *,
    watch: bool,
    output: ListFormat,
    only_running: bool = False,
) -> None:
    """Print services; with `watch` also each later change, until interrupted."""
    among = None if all_namespaces else namespace or place.default_namespace
    if watch and output in (ListFormat.JSON, ListFormat.YAML):
        raise typer.BadParameter("--watch prints rows: use -o table, wide or name")
    found = _read(place, names, among, only_running=only_running)
    _print(found, output, with_namespace=all_namespaces)
    if not found and output in (ListFormat.TABLE, ListFormat.WIDE):
        where = "" if among is None else f" in namespace `{among}`"
        say(
            f"No services{where} of {place.title}. `herdsman deploy ID` makes one; `herdsman catalog list` shows ids.",
            err=True,
        )
    shown = _rows(found)
    while watch:
        time.sleep(LOOK_EVERY_S)
        now = _read(place, names, among, only_running=only_running)
        rows = _rows(now)
        changed = [each for each in now if shown.get(_key(each)) != rows[_key(each)]]
        if changed:
            _print(changed, output, with_namespace=all_namespaces, with_header=False)
        shown = rows


def _read(place: Place, names: list[str], among: str | None, *, only_running: bool) -> list[ServiceState]:
    found = [place.find(name, among) for name in names] if names else place.services(among)
    return [each for each in found if not only_running or each.ready_replicas or each.state in _MOVING]


def _key(service: ServiceState) -> tuple[str, str, str]:
    return service.namespace, service.kind, service.name


def _rows(services: Iterable[ServiceState]) -> dict[tuple[str, str, str], object]:
    return {_key(each): row(each) for each in services}


def _print(services: list[ServiceState], output: ListFormat, *, with_namespace: bool, with_header: bool = True) -> None:
    match output:
        case ListFormat.JSON:
            print_json([row(each) for each in services])
        case ListFormat.YAML:
            say_yaml(documents(services))
        case ListFormat.NAME:
            for each in services:
                say(qualified_name(each))
        case _ if services:
            columns = dict(WIDE if output is ListFormat.WIDE else COLUMNS)
            if not with_namespace:
                del columns["NAMESPACE"]
            table = [cells(each, columns.values()) for each in services]
            if with_header:
                print_table(tuple(columns), table, phase_column=list(columns).index("STATE"))
            else:
                for line in plain_table(table):
                    say(line)
