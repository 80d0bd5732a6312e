"""`herdsman status NAME`: the state of one service, and what to do next."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli.output import phase_style, print_json, say, say_yaml, styled
from automation.cli.place_options import Context, Kubeconfig, Name, Namespace, errors_end, find_service, open_place
from automation.cli.remedies import remedy
from automation.cli.service_rows import qualified_name, row, why, without_managed_fields
from automation.places.place import ServiceState, State

if TYPE_CHECKING:
    from automation.places.place import Place

LOOK_S = 30.0


class StatusFormat(StrEnum):
    """The values of `-o`."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def status(
    name: Name,
    namespace: Namespace = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and print each change.")] = False,
    output: Annotated[
        StatusFormat, typer.Option("-o", "--output", help="text, json, yaml or name.")
    ] = StatusFormat.TEXT,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the state of a service, why it is not ready, and the next step.

    `herdsman describe` shows more of a service in a cluster: pods, conditions and Events.
    """
    if watch and output is not StatusFormat.TEXT:
        raise typer.BadParameter("--watch prints lines: use -o text")
    with errors_end():
        place = open_place(kubeconfig, context)
        service = find_service(place, name, namespace)
        match output:
            case StatusFormat.JSON:
                print_json(row(service))
            case StatusFormat.YAML:
                say_yaml([without_managed_fields(service.document)])
            case StatusFormat.NAME:
                say(qualified_name(service))
            case _:
                _print(service)
        while watch:
            service = _next(place, service)


def _next(place: Place, service: ServiceState) -> ServiceState:
    now = place.watch(service, pause_s=LOOK_S)
    if row(now) != row(service):
        say(f"{now.state.value}: {why(now) or now.phase}")
    return now


def _print(service: ServiceState) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    lines = {
        "Name": f"{service.namespace}/{service.name}",
        "Kind": service.kind,
        "Why": why(service),
        "Model": service.model,
        "Context": f"{service.context_size} tokens" if service.context_size else "",
        "Replicas": f"{service.ready_replicas} of {service.desired_replicas} ready",
        "Runs on": service.runs_on,
        "Endpoint": service.endpoint,
        "Next": next_step(service),
    }
    reason = f" ({service.phase}: {service.reason})" if service.reason else f" ({service.phase})"
    for title, text in lines.items():
        if text:
            console.print(styled(f"{title + ':':<10} ", style="bold") + styled(text))
        if title == "Kind":
            state = styled(service.state.value, style=phase_style(service.phase))
            console.print(styled(f"{'State:':<10} ", style="bold") + state + styled(reason))
            if not service.is_current and service.state is not State.UNKNOWN:
                console.print(styled("           of an earlier spec; the last edit was not looked at yet"))


def next_step(service: ServiceState) -> str:
    """Return the command that helps next; empty where none is known."""
    name = service.name
    if service.state in (State.FAILED, State.WAITING, State.STARTING) and (found := remedy(service)):
        return found
    match service.state:
        case State.READY | State.ASLEEP:
            return f"herdsman chat {name}"
        case State.STOPPED:
            return f"herdsman start {name}" if service.phase == "Suspended" else f"herdsman scale {name} --replicas 1"
        case State.FAILED:
            return f"herdsman logs {name}, herdsman describe {name}"
        case State.WAITING | State.STARTING:
            return f"herdsman status {name} --watch"
    return "herdsman doctor"
