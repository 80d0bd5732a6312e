"""`herdsman host invite`: give a host an identity of its own, and print the invitation by which its machine joins.

Registered by `host`. `host_join` runs on the machine, `host_revoke` ends the identity. The command writes with the
caller's permissions: the API server refuses to grant rights that the caller lacks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from agent.contract import LABEL_HOST
from agent.server.cluster.host_lease import lease_name
from agent.server.joining.invitation import Invitation, InvitationWrong, encoded, is_loopback, server_fault
from agent.server.joining.leftovers import ANNOTATION_INVITED, ANNOTATION_JOINED, invitation_name
from agent.server.joining.token import request_token
from automation.cli import host_rows as rows
from automation.cli.dry_run import DryRun, client_of, end_dry_run
from automation.cli.duration_argument import duration_s
from automation.cli.host_arguments import labels_of
from automation.cli.host_revoke import delete_objects
from automation.cli.output import complain, say
from automation.install import host_identity, identities
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.config import default_access
from kubeapi.errors import AlreadyExists, ConfigInvalid, Forbidden, KubeError, NotFound
from kubeapi.json_types import Json

FIELD_MANAGER = "herdsman-cli"
FORGET_S = 11.0
"""The API server accepts a token for ten seconds after its account is gone. Until then a new account of the same name
gets no rights: they would be those of the old token too."""
LEAST_S, MOST_S = 600, 7 * 86400
"""The API server makes no token that lives shorter than ten minutes. An invitation that lasts for weeks gets lost."""


def invite(
    name: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")],
    ttl: Annotated[str, typer.Option(help="How long the invitation can be used: 10m to 7d.")] = "1h",
    out: Annotated[
        Path | None, typer.Option(help="New file for the invitation, which only you can read.", show_default="stdout")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Label of the host, as KEY=VALUE. Services can select hosts by labels.")
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Namespace whose services the host runs. The default is all."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="URL by which the host reaches the API server.", show_default="your kubeconfig's")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="PEM file with the authority of the API server.", show_default="your kubeconfig's"),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Replace the host's identity: its tokens and its earlier invitation end now."),
    ] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Invite a machine to join as a host. Prints an invitation that can be used once, and that ends.

    Creates the Host, its Lease, and a ServiceAccount with the rights of that host alone. Give the invitation to nobody
    but the host's administrator: who has it can join as that host.
    """
    if why := host_identity.refusal(name):
        raise typer.BadParameter(f"`{name}` cannot be the name of a host that joins: {why}")
    life_s, labels, served = duration_s(ttl, "--ttl"), labels_of(label or ()), tuple(namespace or ())
    if not LEAST_S <= life_s <= MOST_S:
        raise typer.BadParameter(f"--ttl: `{ttl}` is not between 10m and 7d")
    if out is not None and out.exists():
        raise typer.BadParameter(f"--out: {out} exists already; name a new file")
    try:
        place = _place(kubeconfig, server, ca_file)
        client = client_of(kubeconfig, dry_run=dry_run)
        _check(client, name, again=again)
        _check_namespaces(client, served)
        _warn_of_policies(client)
        known = _replace_identity(client, name)
        host = _make_host(client, name, labels)
        if known and not dry_run:
            say(f"Waiting {FORGET_S:.0f} s until the API server has forgotten earlier tokens of the host", err=True)
            time.sleep(FORGET_S)
        for kind, where, body in (*host_identity.host_objects(name, served), *_invitation(client, name)):
            client.apply(kind, where, body, field_manager=FIELD_MANAGER, force=True)
        if dry_run:
            end_dry_run(client)
        token, expires = request_token(client, namespace=SYSTEM_NAMESPACE, account=invitation_name(name), life_s=life_s)
        _reset_lease(client, name, expires)
        text = encoded(Invitation(host=name, token=token, expires=expires, namespaces=",".join(served), **place))
    except Forbidden as error:
        _fail(str(error), "an administrator of the cluster must run this command")
    except NotFound as error:
        _fail(str(error), "install Herdsman first: `herdsman install`")
    except (ConfigInvalid, InvitationWrong, KubeError) as error:
        _fail(str(error))
    _hand_over(text, out)
    ends = datetime.fromisoformat(expires).astimezone().strftime("%H:%M on %d %B (%Z)")
    told = "" if out is None else f"The invitation is in {out}\n"
    say(
        f"{told}Host `{name}` is invited until {ends}, once. On its machine run\n"
        f"  sudo herdsman host join --user USER\n"
        f"and give it the invitation: paste it, or name its file with --file",
        err=True,
    )
    if (host.get("spec") or {}).get("unschedulable"):
        say(f"The host is cordoned: `herdsman host uncordon {name}` allows services on it", err=True)
    if is_loopback(place["server"]):
        say(f"{place['server']} leads only to this machine. For another one, add --server URL", err=True)


def _place(kubeconfig: str | None, server: str | None, ca_file: Path | None) -> dict[str, Any]:
    """Return server, authority and server name for the invitation. Raises ConfigInvalid."""
    access = default_access(kubeconfig)
    url = (server or access.server).rstrip("/")
    if fault := server_fault(url):
        raise ConfigInvalid(f"the host cannot use the server {url}: {fault}. Name another URL with --server")
    if url.startswith("http:"):
        return {"server": url, "ca": ""}
    if ca_file is not None:
        try:
            ca: str | None = ca_file.expanduser().read_text()
        except (OSError, ValueError) as error:
            raise ConfigInvalid(f"--ca-file {ca_file}: {error}") from None
    else:
        ca = access.authority()
    if not ca:
        raise ConfigInvalid(
            "the kubeconfig has no certificate of the API server's authority, by which the host recognizes the server. "
            "Name a PEM file with --ca-file"
        )
    return {"server": url, "ca": ca, "tls_server_name": access.tls_server_name or ""}


def _check(client: KubeClient, name: str, *, again: bool) -> None:
    """Refuse a host that has an identity, or whose identity would get rights that were not meant for it."""
    for each, use in ((name, "host"), (invitation_name(name), "invitation")):
        found = client.find(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, each)
        if found is None:
            continue
        labels = found["metadata"].get("labels") or {}
        if labels.get(LABEL_HOST) != name or labels.get(host_identity.LABEL_IDENTITY) != use:
            _fail(
                f"account `{each}` of namespace {SYSTEM_NAMESPACE} exists, and `herdsman host invite` did not make it "
                f"for this host",
                f"choose another name, or delete it: `kubectl -n {SYSTEM_NAMESPACE} delete serviceaccount {each}`",
            )
        if not again:
            _fail(
                f"host `{name}` has an identity already, or an invitation",
                f"`herdsman host invite {name} --again` ends both and makes new ones; a running agent then loses the "
                f"cluster until its machine joins again",
            )
    try:
        transport = (client.get(kinds.HOSTS, None, name).get("spec") or {}).get("transport", "agent")
    except NotFound:
        transport = "agent"
    if transport != "agent":
        _fail(f"host `{name}` is managed over SSH and has no agent", "choose another name")
    for binding in _foreign_bindings(client, name):
        _fail(
            f"{binding} gives account `{name}` of namespace {SYSTEM_NAMESPACE} other rights than those of a host",
            "delete it, or choose another name",
        )


def _check_namespaces(client: KubeClient, names: tuple[str, ...]) -> None:
    for each in names:
        try:
            client.get(kinds.NAMESPACES, None, each)
        except NotFound:
            _fail(f"there is no namespace `{each}`", "create it first, or name another one with --namespace")


def _foreign_bindings(client: KubeClient, name: str) -> Iterator[str]:
    subject = ("ServiceAccount", SYSTEM_NAMESPACE, name)
    for kind in (kinds.CLUSTER_ROLE_BINDINGS, kinds.ROLE_BINDINGS):
        for each in client.list(kind)["items"]:
            subjects = {(s["kind"], s.get("namespace", ""), s["name"]) for s in each.get("subjects") or ()}
            if subject in subjects and (each["metadata"].get("labels") or {}).get(LABEL_HOST) != name:
                yield f"{kind.kind} `{each['metadata']['name']}`"


def _warn_of_policies(client: KubeClient) -> None:
    for each in identities.names():
        try:
            found = client.get(identities.KINDS[1], None, each)
        except NotFound:
            found = {}
        if "Deny" not in ((found.get("spec") or {}).get("validationActions") or ()):
            say(
                f"Warning: the admission policy {each} is not in force, so the host can report the processes of other "
                f"hosts too; `herdsman install` makes it (Kubernetes {identities.KUBERNETES} or later)",
                err=True,
            )
            return


def _replace_identity(client: KubeClient, name: str) -> bool:
    """Make a new account, so that tokens of an earlier one end. Grants of Secrets stay.

    Returns whether there may be earlier tokens: there was an identity, or `revoke` left the Lease of one.
    """
    deleted = delete_objects(client, name, f"{LABEL_HOST}={name},{host_identity.LABEL_IDENTITY}")
    try:
        client.get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name))
        known = True
    except NotFound:
        known = deleted > 0
    body = host_identity.account(name, name, "host")
    client.create(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, body, field_manager=FIELD_MANAGER)
    return known


def _invitation(client: KubeClient, name: str) -> list[host_identity.Written]:
    body = host_identity.account(invitation_name(name), name, "invitation")
    client.create(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, body, field_manager=FIELD_MANAGER)
    return host_identity.invitation_objects(name)


def _make_host(client: KubeClient, name: str, labels: dict[str, str]) -> Json:
    wanted = rows.host_object(name, labels, {"transport": "agent"})
    try:
        return client.create(kinds.HOSTS, None, wanted, field_manager=FIELD_MANAGER)
    except AlreadyExists:
        change = {"metadata": {"labels": labels}}
        return client.patch(kinds.HOSTS, None, name, change, field_manager=FIELD_MANAGER)


def _reset_lease(client: KubeClient, name: str, expires: str) -> None:
    """Make the host's Lease without a holder: whoever holds it later has used the invitation."""
    notes = {ANNOTATION_INVITED: expires, ANNOTATION_JOINED: None}
    body = {
        "apiVersion": kinds.LEASES.api_version,
        "kind": kinds.LEASES.kind,
        "metadata": {
            "name": lease_name(name),
            "namespace": SYSTEM_NAMESPACE,
            "labels": {LABEL_HOST: name},
            "annotations": {ANNOTATION_INVITED: expires},
        },
        "spec": {"leaseDurationSeconds": 12},
    }
    try:
        client.create(kinds.LEASES, SYSTEM_NAMESPACE, body, field_manager=FIELD_MANAGER)
    except AlreadyExists:
        change = {"metadata": {"labels": {LABEL_HOST: name}, "annotations": notes}, "spec": {"holderIdentity": None}}
        client.patch(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name), change, field_manager=FIELD_MANAGER)


def _hand_over(text: str, out: Path | None) -> None:
    if out is None:
        say(text, nl=False)
        return
    try:
        handle = os.open(out.expanduser(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
    except OSError as error:
        _fail(f"--out {out}: {error.strerror}", "run the command again with --again and another file")


def _fail(message: str, hint: str = "") -> NoReturn:
    complain(message, hint=hint)
    raise typer.Exit(1)
