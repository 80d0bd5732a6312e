"""`herdsman drift`: fields and objects of services that other clients changed or deleted, and which clients did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from automation.cli.output import OutputFormat, complain, print_json, print_table, say
from automation.cli.place_options import Context

if TYPE_CHECKING:
    from automation.drift.listing import Drifted, Listing

EXIT_DRIFTED = 2


def drift(
    name: Annotated[
        str | None, typer.Argument(help="Service (NAME or KIND/NAME). The default is all services of the namespace.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace to check.")] = "default",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Check all namespaces.")] = False,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
) -> None:
    """List fields that other clients changed, and deleted objects. Changes nothing.

    Exit code 0: no drift. 2: drift. 1: it failed.
    """
    from kubeapi.errors import KubeError

    try:
        found = _look(name, None if all_namespaces else namespace, kubeconfig, context)
    except (KubeError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if output is OutputFormat.JSON:
        print_json({"drifted": [_as_json(each) for each in found.drifted], "notes": list(found.notes)})
    else:
        _print(found)
    raise typer.Exit(EXIT_DRIFTED if found.drifted else 0)


def _look(name: str | None, namespace: str | None, kubeconfig: str | None, context: str | None) -> Listing:
    from automation.cli.service_lookup import find_service, list_services
    from automation.drift.listing import list_drift
    from automation.preview.loop_options import options_of_loop
    from kubeapi.client import KubeClient
    from program.dialects.registry import is_part_of_another

    client = KubeClient.default(kubeconfig, context=context)
    try:
        if name is not None:
            services = [find_service(client, namespace, name)]
        else:
            services = [each for each in list_services(client, namespace) if not is_part_of_another(each)]
        return list_drift(client, services, options=options_of_loop(client, on_note=complain))
    finally:
        client.close()


def _as_json(each: Drifted) -> dict[str, Any]:
    fields = [
        {
            "path": field.path,
            "ours": field.ours or None,
            "live": field.live or None,
            "what": field.words,
            "manager": field.by.manager if field.by else None,
            "operation": field.by.operation if field.by else None,
            "since": field.by.time if field.by else None,
        }
        for field in each.drift.fields
    ]
    dialect = {"dialect": each.key.dialect} if each.key.dialect != "llmkube" else {}
    return {
        **dialect,
        "namespace": each.key.namespace,
        "service": each.key.name,
        "kind": each.drift.kind,
        "name": each.drift.name,
        "deleted": each.drift.deleted,
        "policy": each.action,
        "fields": fields,
    }


def _print(found: Listing) -> None:
    for note in found.notes:
        complain(note)
    rows: list[list[str]] = []
    for each in found.drifted:
        head = [each.key.namespace, each.key.name, f"{each.drift.kind}/{each.drift.name}"]
        if each.drift.deleted:
            rows.append([*head, "(deleted)", "", "", "", "", each.action])
        for field in each.drift.fields:
            # The value of a list or a secret is not shown; a list shows its changes where possible.
            live = field.live or field.words
            manager, since = (field.by.manager, field.by.time) if field.by else ("", "")
            rows.append([*head, field.path, field.ours or "-", live, manager or "-", since or "-", each.action])
    if rows:
        columns = ("NAMESPACE", "SERVICE", "OBJECT", "FIELD", "OURS", "LIVE", "WHO", "SINCE", "POLICY")
        print_table(columns, rows)
    elif not found.notes:
        say("Nothing drifted.")
