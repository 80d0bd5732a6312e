"""`herdsman approve NAME`: approve the pending change of a service in mode Preview, and no other change.

Reads the change from the status and writes its digest into the annotation `herdsman.dev/approved`, on the version that
was shown. If the service was edited meanwhile, the write fails. The loop compares the digest with the change that it
would make at that moment.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from automation.approval.writing import write_approval
from automation.cli.dry_run import client_of
from automation.cli.output import OutputFormat, complain, print_json, say
from automation.cli.place_options import Context
from automation.cli.service_lookup import VERSIONED_HELP, find_versioned
from automation.places.service_view import conditions_of, observed_generation, pending_of
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeError
from kubeapi.json_types import Json
from program.dialects.registry import kind_of, split_referrer
from program.dialects.status.conditions import Reason

EXIT_NOTHING_PENDING = 2
EXIT_ANOTHER_CHANGE = 3
LOOK_S = 0.25

_BLOCKED = (
    Reason.APPLYING,
    Reason.APPLY_FAILED,
    Reason.AWAITING_APPROVAL,
    Reason.FOREIGN_OBJECT,
    Reason.NOT_ALLOWED_ON_HOST,
    Reason.POLICY_VIOLATED,
    Reason.QUOTA_EXCEEDED,
    Reason.SPEC_INVALID,
)
"""Reasons of Ready that mean that the change was not applied."""


def approve(
    name: Annotated[str, typer.Argument(help=VERSIONED_HELP)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the service, if several namespaces have the name."),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", help="Approve only if the pending change has this digest. Asks for no confirmation."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the loop has applied the change.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait with --wait.")] = 120.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the change, and approve nothing.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table (text) or json.")] = OutputFormat.TABLE,
) -> None:
    """Approve the pending change of a service or resource in mode Preview.

    Exit code 2: none is pending. 3: another one is pending.
    """
    try:
        client = client_of(kubeconfig, context=context, dry_run=dry_run)
        service = find_versioned(client, namespace, name)
        pending = _pending(service)
        as_text = output is OutputFormat.TABLE
        if as_text:
            _show(service, pending)
        if digest is not None and digest != pending["digest"]:
            complain(
                f"the pending change is {pending['digest']}, not {digest}",
                hint="read the new change, then approve its digest",
            )
            raise typer.Exit(EXIT_ANOTHER_CHANGE)
        if not (dry_run or yes or digest is not None or _agreed(pending)):
            raise typer.Exit(1)
        write_approval(client, service, pending)
        result = _outcome(client, service, pending, timeout_s=timeout_s) if wait and not dry_run else "approved"
    except Conflict:
        complain(f"`{name}` was edited during the command; nothing was approved", hint="run the command again")
        raise typer.Exit(EXIT_ANOTHER_CHANGE) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if as_text and dry_run:
        say("Would approve this change")
    elif as_text:
        words = {"approved": "Approved; the loop makes the change now", "applied": "The change was made"}
        if result in words:
            say(words[result])
    else:
        metadata = service["metadata"]
        print_json(
            {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "result": "dry-run" if dry_run else result,
                "change": pending,
            }
        )
    if result == "changed":
        complain(
            "the loop has not applied the approved change, because another change is pending now",
            hint="run the command again to read and approve the new change",
        )
        raise typer.Exit(EXIT_ANOTHER_CHANGE)
    if result not in ("approved", "applied"):
        complain(
            f"the change is approved, but the loop has not applied it yet: {result}",
            hint=f"see `herdsman {'describe' if split_referrer(name) is None else 'preview --live'} {name}`",
        )
        raise typer.Exit(1)


def _pending(service: Json) -> Json:
    """Return the pending change. Without one, prints the reason and raises typer.Exit."""
    pending = pending_of(service)
    name = service["metadata"]["name"]
    paused = _condition(service, "ChangePending").get("reason") == Reason.PAUSED
    if pending is None and not paused:
        complain(f"no change of `{name}` is pending")
        raise typer.Exit(EXIT_NOTHING_PENDING)
    if pending is None or paused:
        complain(
            f"`{name}` is paused; the loop applies no change, approved or not",
            hint="set herdsman.dev/mode to Preview or Apply",
        )
        raise typer.Exit(EXIT_NOTHING_PENDING)
    generation = service["metadata"].get("generation")
    if observed_generation(service) != generation:
        complain(
            f"`{name}` was edited, and the loop has not computed the new change yet",
            hint="run the command again in some seconds",
        )
        raise typer.Exit(EXIT_ANOTHER_CHANGE)
    return pending


def _show(service: Json, pending: Json) -> None:
    metadata = service["metadata"]
    say(f"{metadata['namespace']}/{metadata['name']}: change {pending['digest']}: {pending.get('summary', '')}")
    for change in pending.get("changes") or ():
        say(f"  {change}")


def _agreed(pending: Json) -> bool:
    if not sys.stdin.isatty():
        complain(
            "cannot ask for a confirmation: standard input is not a terminal",
            hint=f"add --yes, or better --digest {pending['digest']}",
        )
        return False
    return typer.confirm("Make this change?", default=False)


def _outcome(client: KubeClient, service: Json, pending: Json, *, timeout_s: float) -> str:
    """Wait for the change. Return `applied`, `changed` (another one is pending), or at the timeout what prevents it."""
    metadata, kind, deadline = service["metadata"], kind_of(service), time.monotonic() + timeout_s
    while True:
        found = client.get(kind, metadata["namespace"], metadata["name"])
        now = pending_of(found)
        ready = _condition(found, "Ready")
        if now is None and ready.get("reason") not in _BLOCKED:
            return "applied"
        if now is not None and now.get("digest") != pending["digest"]:
            return "changed"
        if time.monotonic() > deadline:
            said = ready or _condition(found, "ChangePending")  # a ModelRouter has no condition Ready
            return f"{said.get('reason', 'Unknown')}: {said.get('message', '')}"
        time.sleep(LOOK_S)


def _condition(service: Json, kind: str) -> Json:
    return conditions_of(service).get(kind) or {}
