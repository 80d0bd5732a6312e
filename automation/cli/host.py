"""`herdsman host …`: the hosts on which services are placed: list, add, invite, join, revoke, cordon, …"""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from agent.server.cluster.host_lease import lease_name
from automation.cli import host_rows as rows
from automation.cli.dry_run import DryRun, client_of, end_dry_run
from automation.cli.host_arguments import check_host_name, labels_of
from automation.cli.host_doctor import examine
from automation.cli.host_invite import invite
from automation.cli.host_join import JOIN_CONTEXT, join
from automation.cli.host_revoke import revoke
from automation.cli.host_secrets import grant_secret
from automation.cli.host_ssh import SshOptions, ssh_fields
from automation.cli.output import OutputFormat, complain, print_json, print_table, report_checks, say
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from program.dialects.registry import KINDS

FIELD_MANAGER = "herdsman-cli"
POLL_S = 1.0

app = typer.Typer(no_args_is_help=True)

Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig.")]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")]
Name = Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")]


app.command("grant-secret")(grant_secret)
app.command("invite")(invite)
# Options of `agent run` are passed on, and checked against that command.
app.command("join", context_settings=JOIN_CONTEXT)(join)
app.command("revoke")(revoke)


@app.callback()
def host() -> None:
    """Manage Macs and Linux machines as hosts of services."""


@app.command("list")
def list_hosts(kubeconfig: Kubeconfig = None, output: Output = OutputFormat.TABLE) -> None:
    """List all hosts with their state, memory and processes."""
    client = _client(kubeconfig)
    try:
        found = client.list(kinds.HOSTS)["items"]
        processes = client.list(kinds.HOST_PROCESSES)["items"]
        leases = {lease["metadata"]["name"]: lease for lease in client.list(kinds.LEASES, SYSTEM_NAMESPACE)["items"]}
    except KubeError as error:
        _fail(error)
    now = datetime.now(UTC)
    table = []
    for each in sorted(found, key=lambda obj: str(obj["metadata"]["name"])):
        name = each["metadata"]["name"]
        lease = leases.get(lease_name(name))
        table.append(rows.host_row(each, lease, rows.placed_on(processes, name), now=now))
    if output is OutputFormat.JSON:
        print_json(table)
    elif not table:
        complain(
            "no hosts in this cluster",
            hint="invite one with `herdsman host invite`, or add one over SSH with `herdsman host add`",
        )
    else:
        lines = [[row[key] for key in rows.COLUMNS.values()] for row in table]
        print_table(tuple(rows.COLUMNS), lines, phase_column=1)


@app.command()
def add(
    name: Name,
    address: Annotated[
        str | None, typer.Option(help="IP address of the host. Connections over SSH use it too.")
    ] = None,
    ssh_user: Annotated[
        str | None, typer.Option(help="Manage the host over SSH as this user, without an agent.")
    ] = None,
    agent: Annotated[bool, typer.Option("--agent", help="Manage the host by an agent, not over SSH.")] = False,
    ssh_port: Annotated[int | None, typer.Option(help="SSH port. A new host over SSH gets 22.")] = None,
    identity_file: Annotated[
        str | None, typer.Option(help="Private key: a path on the machine where the loop runs.", show_default=False)
    ] = None,
    identity_secret: Annotated[
        str | None, typer.Option(help="Secret in Herdsman's namespace; its key `ssh-privatekey` is the private key.")
    ] = None,
    known_hosts: Annotated[
        Path | None,
        typer.Option(
            help="File with the host's public key, by default `~/.ssh/known_hosts`. Herdsman refuses other keys and "
            "adds none by itself."
        ),
    ] = None,
    bastion: Annotated[str | None, typer.Option(help="[USER@]ADDRESS[:PORT] to connect through.")] = None,
    sudo: Annotated[
        bool | None,
        typer.Option("--sudo/--no-sudo", help="Use sudo, and install units of the system instead of the user's."),
    ] = None,
    allow_root: Annotated[
        bool, typer.Option("--allow-root", help="Let processes run as root if --ssh-user is root.")
    ] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="Label of the host, as KEY=VALUE. Services can select hosts by labels.")
    ] = None,
    taint: Annotated[
        list[str] | None, typer.Option(help="Taint of the host, as KEY[=VALUE]:Effect. It keeps services away.")
    ] = None,
    memory_budget: Annotated[str | None, typer.Option(help="Memory for all processes together (`96Gi`).")] = None,
    memory_fraction: Annotated[
        float | None, typer.Option(help="Memory for all processes together, as a fraction of the host's memory.")
    ] = None,
    runtime: Annotated[
        list[str] | None, typer.Option(help="Runtime that may be placed on the host. The default is all runtimes.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the object as it would be made, and write nothing.")
    ] = False,
) -> None:
    """Create a Host, or change one. Omitted fields stay as they are.

    An agent creates the Host of its machine. Use this command for hosts over SSH, and for the fields that people set.
    """
    check_host_name(name)
    ssh = SshOptions(ssh_user, ssh_port, identity_file, identity_secret, known_hosts, bastion, sudo, allow_root)
    if agent and ssh.given():
        raise typer.BadParameter(f"give --agent or {ssh.given()[0]}: an agent manages its host without SSH")
    client = None if dry_run else _client(kubeconfig)
    before = _live(client, name) if client is not None else None
    old = (before or {}).get("spec") or {}
    fields = ssh_fields(ssh, address or old.get("address"), old.get("ssh"))
    spec: Json = {}
    if fields:
        spec |= {"transport": "ssh", "ssh": fields}
    elif before is None:
        spec["transport"] = "agent"
    elif agent:
        spec |= {"transport": "agent", "ssh": None}
    if address:
        spec["address"] = address
    if memory_budget:
        spec["memoryBudget"] = memory_budget
    if memory_fraction is not None:
        spec["memoryFraction"] = memory_fraction
    if runtime:
        spec["runtimes"] = list(runtime)
    if taint:
        spec["taints"] = [_taint(each) for each in taint]
    wanted = rows.host_object(name, labels_of(label or ()), spec)
    if client is None:
        print_json(wanted)
        return
    try:
        say(f"Host `{name}` {_write(client, wanted, before)}")
    except KubeError as error:
        _fail(error)
    if spec.get("transport") == "agent" and (before is None or old.get("transport") == "ssh"):
        say(f"On the machine itself: herdsman agent install --host {name} --kubeconfig FILE")


@app.command()
def cordon(name: Name, kubeconfig: Kubeconfig = None, dry_run: DryRun = False) -> None:
    """Place no new service on a host. Its processes keep running."""
    _say(kubeconfig, name, {"unschedulable": True}, dry_run=dry_run)
    say(f"Host `{name}` is cordoned: it gets no new services")


@app.command()
def uncordon(name: Name, kubeconfig: Kubeconfig = None, dry_run: DryRun = False) -> None:
    """Allow services on a host again. Ends a drain."""
    _say(kubeconfig, name, {"unschedulable": False, "drain": False}, dry_run=dry_run)
    say(f"Host `{name}` gets new services again")


@app.command()
def drain(
    name: Name,
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for the end of the drain; 0 does not wait.")
    ] = 600,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Move all movable services away, and place none. Exit code 1 when some are still there at the end.

    A pinned service stays, and so does one that fits on no other host. Both are named with the reason.
    """
    client = _say(kubeconfig, name, {"unschedulable": True, "drain": True}, dry_run=dry_run)
    deadline = time.monotonic() + timeout_s
    shown = ""
    while True:
        try:
            placed = rows.placed_on(client.list(kinds.HOST_PROCESSES)["items"], name)
            moving, staying = _sorted_out(client, placed)
        except KubeError as error:
            _fail(error)
        if not moving or time.monotonic() >= deadline:
            break
        line = f"{len(moving)} to move: {', '.join(sorted(moving)[:5])}"
        if line != shown:
            say(line)
            shown = line
        time.sleep(POLL_S)
    for key, why in sorted(staying.items()):
        say(f"{key} stays: {why}")
    if moving:
        for key, why in sorted(moving.items()):
            complain(f"{key} is still on the host: {why or 'no other host has room for it yet'}")
        raise typer.Exit(1)
    say(f"Host `{name}` is drained")


@app.command()
def remove(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete the host even if services are placed there.")] = False,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Delete a host: its Host and its Lease. Refused while services are placed there."""
    client = _client(kubeconfig, dry_run=dry_run)
    try:
        found = client.get(kinds.HOSTS, None, name)
        placed = rows.placed_on(client.list(kinds.HOST_PROCESSES)["items"], name)
        if placed and not force:
            keys = ", ".join(rows.process_text(process) for process in placed[:5])
            complain(f"{len(placed)} processes are placed on `{name}`: {keys}", hint=f"`herdsman host drain {name}`")
            raise typer.Exit(1)
        client.delete(kinds.HOSTS, None, name, uid=found["metadata"]["uid"])
        with contextlib.suppress(NotFound):
            client.delete(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name))
    except NotFound:
        complain(f"no Host `{name}`")
        raise typer.Exit(1) from None
    except KubeError as error:
        _fail(error)
    if dry_run:
        end_dry_run(client)
    say(f"Host `{name}` was deleted")
    if (found.get("spec") or {}).get("transport", "agent") == "agent":
        say(
            "If its agent still runs, it creates the Host again: run `herdsman agent uninstall` on the machine. "
            f"If the host joined by an invitation, `herdsman host revoke {name}` ends its rights"
        )


@app.command(hidden=True)
def doctor(name: Name, kubeconfig: Kubeconfig = None, output: Output = OutputFormat.TABLE) -> None:
    """Check everything that a host needs to serve: the older name of `herdsman doctor host NAME`."""
    client = _client(kubeconfig)
    try:
        checks = examine(client, name, now=datetime.now(UTC))
    except NotFound:
        complain(f"no Host `{name}`", hint="`herdsman host list`")
        raise typer.Exit(1) from None
    except KubeError as error:
        _fail(error)
    report_checks(checks, output)


def _client(kubeconfig: str | None, *, dry_run: bool = False) -> KubeClient:
    try:
        return client_of(kubeconfig, dry_run=dry_run)
    except KubeError as error:
        _fail(error)


def _fail(error: KubeError) -> NoReturn:
    hint = "`herdsman crds | kubectl apply --server-side -f -`" if isinstance(error, NotFound) else ""
    complain(str(error), hint=hint)
    raise typer.Exit(1) from None


def _live(client: KubeClient, name: str) -> Json | None:
    try:
        return client.find(kinds.HOSTS, None, name)
    except KubeError as error:
        _fail(error)


def _write(client: KubeClient, wanted: Json, before: Json | None) -> str:
    """Create the Host, or change the given fields. Return which."""
    name = wanted["metadata"]["name"]
    if before is None:
        client.create(kinds.HOSTS, None, wanted)
        return "was made"
    body = {"metadata": {"labels": wanted["metadata"].get("labels") or {}}, "spec": wanted["spec"]}
    after = client.patch(kinds.HOSTS, None, name, body, field_manager=FIELD_MANAGER)
    same = before["spec"] == after["spec"] and before["metadata"].get("labels") == after["metadata"].get("labels")
    return "has these values already" if same else "was changed"


def _say(kubeconfig: str | None, name: str, spec: Json, *, dry_run: bool) -> KubeClient:
    client = _client(kubeconfig, dry_run=dry_run)
    try:
        client.patch(kinds.HOSTS, None, name, {"spec": spec}, field_manager=FIELD_MANAGER)
    except NotFound:
        complain(f"no Host `{name}`", hint="`herdsman host list`")
        raise typer.Exit(1) from None
    except KubeError as error:
        _fail(error)
    if dry_run:
        end_dry_run(client)
    return client


def _sorted_out(client: KubeClient, placed: list[Json]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the processes that move, with the reason why they have not moved yet, and the processes that stay."""
    moving: dict[str, str] = {}
    staying: dict[str, str] = {}
    for process in placed:
        of, text = rows.key_of_process(process), rows.process_text(process)
        service = client.find(KINDS[of.dialect], of.namespace, of.name)
        why = rows.stays(process, service)
        if why:
            staying[text] = why
        else:
            moving[text] = str(((service or {}).get("status") or {}).get("schedulingMessage") or "")
    return moving, staying


def _taint(text: str) -> Json:
    taint = rows.taint_of(text)
    if taint is None:
        raise typer.BadParameter(f"--taint `{text}` is not KEY[=VALUE]:Effect; effects as for nodes (NoSchedule, …)")
    return taint
