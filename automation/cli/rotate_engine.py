"""`herdsman key rotate-engine`: replace the key that the engines of a service demand from the gateway."""

from __future__ import annotations

import datetime
import time
from typing import Annotated

import typer

from automation.certificates import key_rotation
from automation.certificates.key_rotation import NotRotatable, Rotation
from automation.cli import exits
from automation.cli.dry_run import DryRun, client_of, end_dry_run
from automation.cli.duration_argument import duration_s
from automation.cli.output import complain, say
from automation.cli.place_options import Context
from automation.cli.service_lookup import NAME_HELP, find_service
from kubeapi import kinds
from kubeapi.errors import Conflict, Forbidden, KubeError

PAUSE_S = 2.0
"""The time between two looks at the pods."""


def rotate_engine(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the service, if several namespaces have the name."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait for the roll-out, as in 30m or 2h.")] = "30m",
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    context: Context = None,
    dry_run: DryRun = False,
) -> None:
    """Replace the key that Herdsman made for the engines of a service.

    Makes a new key, waits until the roll-out has replaced the pods with the old one, and deletes the old key. Gateways
    use the key that each pod has, so no request fails. If an earlier call was interrupted, the command goes on with it.
    """
    limit_s = duration_s(timeout, "--timeout")
    try:
        client = client_of(kubeconfig, context=context, dry_run=dry_run)
        service = find_service(client, namespace, name)
        rotation = key_rotation.begin(client, service, now=datetime.datetime.now(datetime.UTC))
        if dry_run:
            end_dry_run(_steps(rotation))
        begun = "Goes on with the change" if rotation.is_resumed else "Changes"
        say(f"{begun} to the key in Secret `{rotation.secret}`", err=True)
        deadline = time.monotonic() + limit_s
        while waiting := key_rotation.waits_for(client, rotation):
            if time.monotonic() >= deadline:
                complain(
                    f"the old key of `{name}` is still in use after {timeout}: {waiting}",
                    hint="the roll-out goes on; the same command waits for it again, and deletes the old key",
                )
                raise typer.Exit(exits.TIMED_OUT)
            time.sleep(min(PAUSE_S, max(0.0, deadline - time.monotonic())))
        key_rotation.finish(client, rotation)
    except NotRotatable as error:
        complain(str(error), hint="keys that you made are replaced as docs/how-to/gateway-tls.md says")
        raise typer.Exit(1) from None
    except Conflict:
        complain(f"`{name}` was changed at the same time", hint="run the command again")
        raise typer.Exit(1) from None
    except Forbidden as error:
        hint = "you must be allowed to get, create and delete Secrets, to list pods, and to patch the service"
        complain(str(error), hint=hint)
        raise typer.Exit(exits.NO_ACCESS) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if rotation.is_resumed:
        say(
            f"Finished the last replacement for `{name}`: the old key is deleted. Run the command again for another key"
        )
    else:
        say(f"Replaced the key of `{name}`: the old key is deleted")


def _steps(rotation: Rotation) -> list[str]:
    """Return what a rotation would do. The API server has checked the first two steps."""
    wait = f"wait until no pod uses Secret {rotation.earlier}"
    ends = [wait, f"delete Secret {rotation.namespace}/{rotation.earlier}"]
    if rotation.is_resumed:
        return ends
    service = f"change {kinds.INFERENCE_SERVICES.kind} {rotation.namespace}/{rotation.service}"
    return [f"create Secret {rotation.namespace}/{rotation.secret}", service, *ends]
