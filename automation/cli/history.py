"""`herdsman history NAME`: the applied versions of a service or resource: time, editor and result of each."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from automation.cli.output import OutputFormat, age_text, complain, print_json, print_table, say_yaml
from automation.cli.place_options import Context
from automation.cli.service_lookup import VERSIONED_HELP, find_versioned
from automation.history.reading import models_of, revisions_of
from automation.history.revision import Revision, data_of
from components.rendered import fingerprint_of
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError

COLUMNS = ("REVISION", "AGE", "BY", "RESULT", "TOOK", "CHANGES", "CAUSE")


def history(
    name: Annotated[str, typer.Argument(help=VERSIONED_HELP)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the service, if several namespaces have the name."),
    ] = None,
    revision: Annotated[int | None, typer.Option(help="Print this revision as YAML.")] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """List the versions of a service or resource, the newest first; `*` marks the one that equals its present spec."""
    try:
        client = KubeClient.default(kubeconfig, context=context)
        service = find_versioned(client, namespace, name)
        found = revisions_of(client, service)
        now = fingerprint_of(data_of(service, models_of(client, service)))
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if revision is not None:
        _show(found, revision, output)
    elif output is OutputFormat.JSON:
        print_json([{**asdict(each), "current": each.digest == now} for each in found])
    elif not found:
        complain(
            f"no revision of `{name}` is recorded yet", hint="the loop records a revision after it has applied a spec"
        )
    else:
        print_table(COLUMNS, [_row(each, current=each.digest == now) for each in found], phase_column=3)


def _row(each: Revision, *, current: bool) -> tuple[str, ...]:
    result = "Applied" if each.made_pods else "Failed"
    changes = each.changes if each.is_applied else each.result
    return (
        f"{each.number}{'*' if current else ''}",
        age_text({"creationTimestamp": each.recorded_at}, now=datetime.now(UTC)),
        each.changed_by or "-",
        result,
        f"{each.duration_s:.1f}s",
        changes.splitlines()[0][:160] if changes else "-",
        each.cause or "-",
    )


def _show(found: tuple[Revision, ...], number: int, output: OutputFormat) -> None:
    chosen = next((each for each in found if each.number == number), None)
    if chosen is None:
        complain(
            f"no revision {number}; the kept revisions are: {', '.join(str(each.number) for each in found) or 'none'}"
        )
        raise typer.Exit(1)
    if output is OutputFormat.JSON:
        print_json(asdict(chosen))
    else:
        say_yaml([chosen.data])
