"""`herdsman top`: resource use of hosts and services, live on a terminal, or once.

Reads Hosts, HostProcesses and the services of all dialects; `resource_use` computes the rows, `top_rows` sorts them.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from automation.cli import top_rows
from automation.cli.output import OutputFormat, complain, phase_style, print_json, size_text, styled
from automation.cli.place_options import Context
from automation.cli.service_lookup import list_services
from automation.cli.top_rows import Order, bar, rate_text, slots_text
from automation.places import resource_use
from automation.places.resource_use import HostUse, ServiceUse
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.registry import is_part_of_another

REFRESH_S = 2.0
_REST = 4
"""The pause between two reads lasts at least this many times as long as a read."""
_BAR_WIDTH = 8
_NAME_WIDTH = 8
"""The least width of a name."""
_NEARLY_FULL = 0.85
_PIPE_WIDTH = 200
_PRESSURE_STYLES = {"Warning": "yellow", "Critical": "bold red", "Normal": "green"}
_ORDER_KEYS: dict[str, Order] = {"m": "memory", "t": "tokens", "n": "name"}


class What(StrEnum):
    """The objects to show."""

    HOSTS = "hosts"
    SERVICES = "services"


class Sort(StrEnum):
    """The column to sort by."""

    NAME = "name"
    MEMORY = "memory"
    TOKENS = "tokens"


@dataclass(frozen=True)
class View:
    """The objects at one moment; None for kinds that were not requested."""

    hosts: list[HostUse] | None
    services: list[ServiceUse] | None


def top(
    what: Annotated[
        What | None, typer.Argument(help="hosts or services. The default is both.", show_default=False)
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Show only services of this namespace.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and exit. This is the default without a terminal.")
    ] = False,
    sort: Annotated[
        Sort, typer.Option(help="Order of the rows: name, memory or tokens. The keys n, m and t change it.")
    ] = Sort.NAME,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Show the memory, processor time, tokens and slots that hosts and services use. `q` ends it."""
    order: Order = sort.value
    try:
        client = KubeClient.default(kubeconfig, context=context)
        view = read_view(client, what, namespace)
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if output is OutputFormat.JSON:
        print_json(as_json(view, order))
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        console.print(draw(view, order, width=console.width))
    else:
        _live(client, what, namespace, view, order)


def read_view(client: KubeClient, what: What | None, namespace: str | None) -> View:
    """Read the cluster. Raises KubeError."""
    # A host has processes of all namespaces, also when one namespace is selected.
    hosts = _listed(client, kinds.HOSTS, None)
    processes = _listed(client, kinds.HOST_PROCESSES, None if what is not What.SERVICES else namespace)
    services = _services(client, namespace) if what is not What.HOSTS else []
    return View(
        hosts=resource_use.host_uses(hosts, processes) if what is not What.SERVICES else None,
        services=resource_use.service_uses(services, processes, hosts) if what is not What.HOSTS else None,
    )


def _services(client: KubeClient, namespace: str | None) -> list[Json]:
    try:
        return [service for service in list_services(client, namespace) if not is_part_of_another(service)]
    except NotFound:
        return []


def _listed(client: KubeClient, kind: Kind, namespace: str | None) -> list[Json]:
    try:
        return list(client.list(kind, namespace)["items"])
    except NotFound:
        # A cluster without hosts may not serve the kind.
        return []


def as_json(view: View, order: Order) -> dict[str, object]:
    """Return the view for JSON output; sizes are bytes."""
    told: dict[str, object] = {}
    if view.hosts is not None:
        told["hosts"] = [_camel(asdict(use)) for use in top_rows.sorted_hosts(view.hosts, order)]
    if view.services is not None:
        rows = [asdict(use) for use in top_rows.sorted_services(view.services, order)]
        told["services"] = [_camel({key: row[key] for key in row if key != "kind" or row[key]}) for row in rows]
    return told


def _camel(row: dict[str, object]) -> dict[str, object]:
    return {name.split("_")[0] + "".join(part.title() for part in name.split("_")[1:]): row[name] for name in row}


def draw(view: View, order: Order, *, width: int, height: int | None = None, note: str = "") -> Group:
    """Draw the view in lines of `width`. `height` is the number of lines; None: as many as needed."""
    parts: list[Table | Text] = []
    room = None if height is None else max(4, height - (3 if note else 2))
    if view.hosts is not None:
        # Hosts come first, and leave half of the screen to services if there are any.
        share = room if room is None or view.services is None else room // 2
        table, lines = _hosts_table(top_rows.sorted_hosts(view.hosts, order), width, share)
        parts.append(table)
        room = None if room is None else room - lines
    if view.services is not None:
        parts += [styled("")] if parts else []
        parts.append(_services_table(top_rows.sorted_services(view.services, order), width, room))
    if note:
        last = styled(note, "dim")
        last.no_wrap, last.overflow = True, "ellipsis"
        parts.append(last)
    return Group(*parts)


def _hosts_table(uses: list[HostUse], width: int, room: int | None) -> tuple[Table, int]:
    shown = uses if room is None else uses[: max(1, room - 2)]
    rows: list[list[str | Text]] = [
        [
            use.name,
            styled(use.state, style="green" if use.ready else "red"),
            f"{use.serving}/{use.processes}",
            styled(bar(use.share, _BAR_WIDTH), style=_fullness_style(use.share)),
            f"{size_text(use.memory_bytes)}/{size_text(use.budget_bytes)}",
            styled(use.pressure or "-", style=_PRESSURE_STYLES.get(use.pressure, "")),
            rate_text(use.tokens_per_second),
        ]
        for use in shown
    ]
    columns = ("HOST", "STATE", "PROCS", "", "USED/BUDGET", "PRESSURE", "TOK/S")
    table = _table(columns, rows, width, more=len(uses) - len(shown), names={0}, right={2, 4, 6})
    return table, table.row_count + 2


def _services_table(uses: list[ServiceUse], width: int, room: int | None) -> Table:
    shown = uses if room is None else uses[: max(1, room - 2)]
    rows: list[list[str | Text]] = [
        [
            f"{use.namespace}/{use.name}" + (f" ({use.kind})" if use.kind else ""),
            styled(use.phase, style=phase_style(use.phase)),
            f"{use.ready_replicas}/{use.replicas}",
            use.runs_on,
            size_text(use.memory_bytes),
            rate_text(use.cpu_percent),
            rate_text(use.tokens_per_second),
            slots_text(use),
        ]
        for use in shown
    ]
    columns = ("SERVICE", "PHASE", "READY", "ON", "MEM", "CPU%", "TOK/S", "SLOTS")
    return _table(columns, rows, width, more=len(uses) - len(shown), names={0, 1, 3}, right={2, 4, 5, 6, 7})


def _fullness_style(share: float | None) -> str:
    if share is None or share <= _NEARLY_FULL:
        return "cyan"
    return "yellow" if share <= 1 else "red"


def _table(
    columns: tuple[str, ...],
    given: list[list[str | Text]],
    width: int,
    *,
    more: int,
    names: set[int],
    right: set[int],
) -> Table:
    """Lay out rows. On a narrow terminal names are shortened, and figures are not."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    rows = [[cell if isinstance(cell, Text) else styled(cell) for cell in row] for row in given]
    longest = [max([len(column), *(len(row[index]) for row in rows)]) for index, column in enumerate(columns)]
    left = width - sum(each + 1 for index, each in enumerate(longest) if index not in names) - len(names)
    last = f"… {more} more" if more > 0 else "" if rows else f"no {columns[0].lower()}s"
    # The shortest names first: the others get the width that they leave.
    for rank, index in enumerate(sorted(names, key=lambda index: longest[index])):
        longest[index] = max(_NAME_WIDTH, min(longest[index], left // (len(names) - rank)))
        left -= longest[index]
    longest[0] = max(longest[0], len(last))
    for index, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if index in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=longest[index],
        )
    for row in rows:
        table.add_row(*row)
    if last:
        table.add_row(styled(last, style="dim"))
    return table


def _live(client: KubeClient, what: What | None, namespace: str | None, view: View, order: Order) -> None:
    """Redraw in the same place until `q` or Ctrl-C."""
    console, problem, due_at = Console(highlight=False), "", time.monotonic() + REFRESH_S
    with _keys() as key_within, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            note = f"{datetime.now():%H:%M:%S}  sorted by {order}  n/m/t sort  q quit  {problem}"
            live.update(draw(view, order, width=console.width, height=console.height, note=note), refresh=True)
            key = key_within(max(0.0, due_at - time.monotonic()))
            if key in ("q", "Q", "\x03", "\x04"):
                return
            order = _ORDER_KEYS.get(key.lower(), order)
            began = time.monotonic()
            if began >= due_at:
                try:
                    view, problem = read_view(client, what, namespace), ""
                except KubeError as error:
                    # The last view stays on the screen.
                    problem = str(error)
                # A slow cluster is read less often.
                due_at = time.monotonic() + max(REFRESH_S, _REST * (time.monotonic() - began))


@contextmanager
def _keys() -> Iterator[_KeyWithin]:
    """Read single keys, without an echo, until the block ends."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        yield _KeyWithin(handle)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


class _KeyWithin:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __call__(self, seconds: float) -> str:
        """Wait for a key; empty at the timeout. The end of the input counts as Ctrl-D."""
        readable, _, _ = select.select([self._handle], [], [], seconds)
        if not readable:
            return ""
        data = os.read(self._handle, 1)
        return data.decode("ascii", "replace") if data else "\x04"
