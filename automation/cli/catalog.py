"""`herdsman catalog list`, `info` and `check`: models by a short id, and where each fits.

`list` and `info` need no cluster and no network: without a cluster, FITS is about this machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from automation.catalog.checking import check_entry
from automation.catalog.entries import Catalog, CatalogError, Entry
from automation.catalog.fits import Fit, entry_object, fits, fits_text, tokens_text
from automation.catalog.fitting import USABLE_SHARE, Room, gib
from automation.catalog.loading import load
from automation.catalog.rooms import rooms_of_host, rooms_of_node, rooms_of_this_machine
from automation.cli.output import OutputFormat, complain, print_json, print_table, report_checks, say, size_text
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.hub import HUB

CLUSTER_TIMEOUT_S = 5.0
"""A cluster that does not answer within this time is left out, because the catalog is useful without it."""

app = typer.Typer(no_args_is_help=True)


class Output(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


CatalogSource = Annotated[
    str, typer.Option("--catalog", help="Another catalog: a file, or an https address.", show_default="Herdsman's own")
]
Format = Annotated[Output, typer.Option("-o", "--output", help="table, wide or json.")]
Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig.")]
Local = Annotated[bool, typer.Option("--local", help="Show what fits on this machine, not on the hosts of a cluster.")]


@app.callback()
def catalog() -> None:
    """Show models that Herdsman knows by a short id, and where they fit."""


@app.command("list")
def list_models(
    source: CatalogSource = "",
    output: Format = Output.TABLE,
    local: Local = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List the models with their size, context and licence, and the largest variant that fits each place.

    FITS is about the ready hosts and GPU nodes of the cluster, or about this machine if no cluster answers.
    """
    models = _load(source).models
    rooms = _rooms(kubeconfig, local=local)
    found = [(entry, fits(entry, rooms)) for entry in models]
    if output is Output.JSON:
        print_json([entry_object(entry, each) for entry, each in found])
        return
    wide = output is Output.WIDE
    columns = [
        "ID",
        "PARAMETERS",
        "SIZE",
        "CONTEXT",
        "LICENCE",
        "CAN",
        *(("RELEASED", "SOURCE") if wide else ()),
        "FITS",
    ]
    print_table(columns, [_row(entry, each, wide=wide) for entry, each in found])


@app.command()
def info(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a model, as in `herdsman catalog list`.")],
    context: Annotated[
        int | None, typer.Option("--context", min=128, help="Tokens of context.", show_default="what fits, up to 32768")
    ] = None,
    quant: Annotated[
        str | None, typer.Option("--quant", "-q", help="Only this quantisation.", show_default="the largest that fits")
    ] = None,
    vision: Annotated[bool, typer.Option("--vision", help="Count the projector, which reads pictures.")] = False,
    source: CatalogSource = "",
    output: Format = Output.TABLE,
    local: Local = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show one model: its files, and the memory that it needs on each place."""
    try:
        entry = _load(source).entry(model_id)
        rooms = _rooms(kubeconfig, local=local)
        found = fits(entry, rooms, context=context, quant=quant, vision=vision)
    except CatalogError as error:
        _fail(error)
    if output is Output.JSON:
        print_json(entry_object(entry, found))
        return
    _describe(entry)
    say()
    print_table(
        ("QUANT", "SIZE", "FILES", "SOURCE"),
        [
            (each.quant, _size(each.bytes, rounded=each.is_rounded), str(len(each.files)), each.source)
            for each in entry.by_size
        ],
    )
    say()
    for line in _memory_lines(found):
        say(line)


@app.command()
def check(
    model_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of models.", show_default="all models")
    ] = None,
    source: CatalogSource = "",
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Check that the files of the catalog exist, and that sizes, contexts and headers are those of the files.

    Each variant is one row. Of each file only the header is requested. HF_TOKEN and HERDSMAN_HUB_URL count as for
    `inspect`. Exit code 1 when a file is missing or differs.
    """
    catalog = _load(source)
    try:
        entries = [catalog.entry(each) for each in model_ids] if model_ids else list(catalog.models)
    except CatalogError as error:
        _fail(error)
    hub_url = os.environ.get("HERDSMAN_HUB_URL", HUB)
    checks = [each for entry in entries for each in check_entry(entry, hub_url=hub_url, environment=os.environ)]
    report_checks(checks, output)


def _describe(entry: Entry) -> None:
    parameters = entry.parameters or "-"
    if entry.active_parameters:
        parameters += f", {entry.active_parameters} for each token"
    lines = {
        "Id": entry.id,
        "Parameters": parameters,
        "Context": f"{entry.context:,} tokens" if entry.context else "-",
        "Licence": entry.licence or "-; `herdsman inspect` reads it from the file",
        "Capabilities": ", ".join(entry.capabilities),
        "Template": "in the file",
        "Header": _header_text(entry),
    }
    if entry.released:
        lines["Released"] = entry.released.isoformat()
    for name, text in lines.items():
        say(f"{name + ':':<14}{text}")


def _header_text(entry: Entry) -> str:
    """Describe the numbers of the header, and where they are from."""
    if entry.header is None:
        return "unknown; the KV cache counts as a fifth of the weights"
    text = f"{entry.header.architecture}, {entry.header.layer_count} layers"
    if not entry.unchecked:
        return text
    names = [each.removeprefix("header.") for each in entry.unchecked if each != "header"]
    which = f"{', '.join(names)}; " if names else ""
    return f"{text}; source: not yet checked ({which}`herdsman catalog check {entry.id}` compares it)"


def _memory_lines(found: Sequence[Fit]) -> list[str]:
    lines = []
    for each in found:
        if each.choice is None:
            lines.append(f"{each.place}: does not fit. {str(each.refusal).partition(': ')[2]}")
            continue
        choice = each.choice
        cache = f" and a KV cache of type {choice.cache_type}" if choice.cache_type else ""
        lines.append(f"{choice.room}: {choice.variant.quant} with {choice.context:,} tokens of context{cache}")
        lines.append(f"  {choice.sum_text}")
    return [*lines, f"A model may take {USABLE_SHARE:.0%} of the free memory of a place."]


def _row(entry: Entry, found: Sequence[Fit], *, wide: bool) -> list[str]:
    first = entry.variants[0]
    parameters = f"{entry.parameters} a{entry.active_parameters}" if entry.active_parameters else entry.parameters
    more = [entry.released.isoformat() if entry.released else "-", first.source] if wide else []
    return [
        entry.id,
        parameters or "-",
        _size(first.bytes, rounded=first.is_rounded),
        tokens_text(entry.context),
        entry.licence or "-",
        ",".join(each for each in entry.capabilities if each != "chat") or "-",
        *more,
        fits_text(found, long=wide),
    ]


def _size(size_bytes: int, *, rounded: bool) -> str:
    return f"~{size_text(size_bytes)}" if rounded else size_text(size_bytes)


def _load(source: str) -> Catalog:
    try:
        return load(source)
    except CatalogError as error:
        _fail(error)


def _rooms(kubeconfig: str | None, *, local: bool) -> list[Room]:
    """Return the rooms of the cluster, or of this machine; says on stderr which, unless the user chose."""
    if not local:
        try:
            rooms = _rooms_of_cluster(kubeconfig)
        except KubeError as error:
            if kubeconfig is not None:
                complain(f"the cluster of {kubeconfig} does not answer: {error}", hint="--local is about this machine")
                raise typer.Exit(1) from None
            say("No cluster answers; FITS is about this machine.", err=True)
        else:
            if rooms:
                return rooms
            say("The cluster has no ready host and no labelled GPU node; FITS is about this machine.", err=True)
    rooms = rooms_of_this_machine()
    say(", ".join(f"{room}: {gib(room.free_bytes)} for models" for room in rooms), err=True)
    return rooms


def _rooms_of_cluster(kubeconfig: str | None) -> list[Room]:
    """Return the rooms of all ready hosts and labelled nodes. Raises KubeError."""
    client = KubeClient.default(kubeconfig)
    try:
        hosts = [room for host in _items(client, kinds.HOSTS) for room in rooms_of_host(host)]
    except NotFound:
        # Herdsman is not installed in this cluster.
        hosts = []
    try:
        nodes = [room for node in _items(client, kinds.NODES) for room in rooms_of_node(node)]
    except KubeError:
        # Not everybody may list nodes.
        nodes = []
    return [*hosts, *nodes]


def _items(client: KubeClient, kind: Kind) -> list[Json]:
    found = client.request("GET", kind.path(None), timeout_s=CLUSTER_TIMEOUT_S).get("items") or []
    return sorted(found, key=lambda each: str(each["metadata"]["name"]))


def _fail(error: CatalogError) -> NoReturn:
    complain(str(error), hint=error.hint)
    raise typer.Exit(1) from None
