"""`herdsman host revoke`: end the identity of a host and its invitation, at once. Registered by `host`.

The bindings go first: the API server applies that within milliseconds, while it may remember a token for ten seconds
after its account is gone.
"""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from agent.contract import LABEL_HOST
from agent.server.cluster.host_lease import lease_name
from agent.server.joining.leftovers import ANNOTATION_INVITED, ANNOTATION_JOINED, invitation_name
from automation.cli.dry_run import DryRun, client_of, end_dry_run
from automation.cli.output import complain, say
from automation.install import host_identity
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound

FIELD_MANAGER = "herdsman-cli"
ORDER = (
    kinds.CLUSTER_ROLE_BINDINGS,
    kinds.ROLE_BINDINGS,
    kinds.SERVICE_ACCOUNTS,
    kinds.ROLES,
    host_identity.CLUSTER_ROLES,
)


def revoke(
    name: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")],
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    dry_run: DryRun = False,
) -> None:
    """End the rights of a host, all its tokens and its invitation, at once. Cordons the host.

    For machines that were lost or stolen, and for invitations that others may have seen. Also ends the grants of
    `herdsman host grant-secret` for this host. The machine's processes keep running until somebody stops them there.
    """
    if why := host_identity.refusal(name):
        raise typer.BadParameter(f"`{name}` cannot be a host that joined: {why}")
    try:
        client = client_of(kubeconfig, dry_run=dry_run)
        _check(client, name)
        ended = delete_objects(client, name, f"{LABEL_HOST}={name}")
        cordoned = _cordon(client, name)
    except KubeError as error:
        complain(str(error), hint="run the command again: it continues")
        raise typer.Exit(1) from None
    if not ended:
        complain(f"host `{name}` has no identity and no invitation", hint="`herdsman host list`")
        raise typer.Exit(1)
    if dry_run:
        end_dry_run(client)
    say(f"The identity of host `{name}` has ended: {ended} objects were deleted")
    if cordoned:
        say(f"The host is cordoned. `herdsman host remove {name}` deletes it")
    say("On its machine, `sudo herdsman agent uninstall --stop-processes` ends its processes")


def _check(client: KubeClient, name: str) -> None:
    try:
        found = client.get(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, name)
    except NotFound:
        return
    if (found["metadata"].get("labels") or {}).get(LABEL_HOST) != name:
        complain(
            f"account `{name}` of namespace {SYSTEM_NAMESPACE} was not made by `herdsman host invite`",
            hint=f"`kubectl -n {SYSTEM_NAMESPACE} delete serviceaccount {name}` ends its tokens",
        )
        raise typer.Exit(1)


def delete_objects(client: KubeClient, name: str, selector: str) -> int:
    """Delete the accounts, roles and bindings of a host that a selector names. Returns how many. Raises ApiError."""
    count = 0
    for kind in ORDER:
        found = client.list(kind, label_selector=selector)["items"]
        for each in found:
            metadata = each["metadata"]
            if kind is kinds.SERVICE_ACCOUNTS and metadata["name"] not in (name, invitation_name(name)):
                continue  # somebody else's account with that label
            try:
                client.delete(kind, metadata.get("namespace"), metadata["name"])
                count += 1
            except NotFound:
                continue
    return count


def _cordon(client: KubeClient, name: str) -> bool:
    notes = {"metadata": {"annotations": {ANNOTATION_INVITED: None, ANNOTATION_JOINED: None}}}
    with contextlib.suppress(NotFound):
        client.patch(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name), notes, field_manager=FIELD_MANAGER)
    try:
        client.patch(kinds.HOSTS, None, name, {"spec": {"unschedulable": True}}, field_manager=FIELD_MANAGER)
    except NotFound:
        return False
    return True
