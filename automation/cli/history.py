"""`herdsman history NAME`: the applied versions of a service or resource: time, editor and result of each."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from automation.cache.owners import selector_of
from automation.cache.service_index import models_of as named_models
from automation.cli.output import OutputFormat, age_text, complain, print_json, print_table, say_yaml
from automation.cli.place_options import Context
from automation.cli.service_lookup import VERSIONED_HELP, find_versioned
from automation.history.revision import Revision, data_of, read_all
from components.rendered import fingerprint_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from program.dialects.registry import INPUT_KINDS, LLMKUBE, dialect_of, key_of, referrer_of

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


def revisions_of(client: KubeClient, service: Json) -> tuple[Revision, ...]:
    """Read the revisions of a service, the newest first. Raises KubeError."""
    metadata, key = service["metadata"], key_of(service)
    selector = selector_of(key.dialect, (key.name,))
    found = client.list(kinds.CONTROLLER_REVISIONS, metadata["namespace"], label_selector=selector)["items"]
    return read_all(found, owner=metadata["uid"])


def models_of(client: KubeClient, service: Json) -> list[Json]:
    """Read the objects of `registry.INPUT_KINDS` that a service refers to and that exist. Raises KubeError."""
    if referrer_of(service):
        return []
    if dialect_of(service) != LLMKUBE:
        # Imported here, because it imports the dialects.
        from automation.preview.requests import find_references

        known = {(kind.group, kind.kind) for kind in INPUT_KINDS}
        return [each for each in find_references(client, service) if _group_kind(each) in known]
    models = []
    for name in sorted(named_models(service)):
        try:
            models.append(client.get(kinds.MODELS, service["metadata"]["namespace"], name))
        except NotFound:
            continue
    return models


def _group_kind(obj: Json) -> tuple[str, str]:
    return str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"])


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
