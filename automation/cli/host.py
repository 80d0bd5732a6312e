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
from automation.cli.output import OutputFormat, complain, print_json, print_table, report_checks, say
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json

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
    ssh_port: Annotated[int, typer.Option(help="SSH port.")] = 22,
    identity_file: Annotated[
        str | None, typer.Option(help="Private key: a path on the machine where the loop runs.", show_default=False)
    ] = None,
    identity_secret: Annotated[
        str | None, typer.Option(help="Secret in Herdsman's namespace; its key `ssh-privatekey` is the private key.")
    ] = None,
    known_hosts: Annotated[
        Path, typer.Option(help="File with the host's public key. Herdsman refuses other keys and adds none by itself.")
    ] = Path("~/.ssh/known_hosts"),
    bastion: Annotated[str | None, typer.Option(help="[USER@]ADDRESS[:PORT] to connect through.")] = None,
    sudo: Annotated[
        bool, typer.Option("--sudo", help="Use sudo, and install units of the system instead of the user's.")
    ] = False,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the object, and write nothing.")] = False,
) -> None:
    """Create a Host, or change one. Omitted fields stay as they are.

    An agent creates the Host of its machine. Use this command for hosts over SSH, and for the fields that people set.
    """
    check_host_name(name)
    spec: Json = {"transport": "ssh" if ssh_user else "agent"}
    if address:
        spec["address"] = address
    if ssh_user:
        if not address:
            raise typer.BadParameter("--ssh-user needs --address")
        if (identity_file is None) == (identity_secret is None):
            raise typer.BadParameter("give one of --identity-file and --identity-secret")
        spec["ssh"] = {
            "user": ssh_user,
            "port": ssh_port,
            "knownHosts": _keys_of(known_hosts, address, ssh_port),
            "sudo": sudo,
            **({"allowRoot": True} if allow_root else {}),
            **({"identityFile": identity_file} if identity_file else {}),
            **({"identitySecret": {"name": identity_secret}} if identity_secret else {}),
            **({"bastion": _bastion(bastion, known_hosts)} if bastion else {}),
        }
    if memory_budget:
        spec["memoryBudget"] = memory_budget
    if memory_fraction is not None:
        spec["memoryFraction"] = memory_fraction
    if runtime:
        spec["runtimes"] = list(runtime)
    if taint:
        spec["taints"] = [_taint(each) for each in taint]
    wanted = rows.host_object(name, labels_of(label or ()), spec)
    if dry_run:
        print_json(wanted)
        return
    client = _client(kubeconfig)
    try:
        say(f"Host `{name}` {_write(client, wanted)}")
    except KubeError as error:
        _fail(error)
    if not ssh_user:
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
            keys = ", ".join(f"{p['metadata']['namespace']}/{rows.service_name(p)}" for p in placed[:5])
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


def _write(client: KubeClient, wanted: Json) -> str:
    """Create the Host, or change the given fields. Return which."""
    name = wanted["metadata"]["name"]
    try:
        before = client.get(kinds.HOSTS, None, name)
    except NotFound:
        client.create(kinds.HOSTS, None, wanted)
        return "was made"
    body = {"metadata": {"labels": wanted["metadata"].get("labels") or {}}, "spec": wanted["spec"]}
    if wanted["spec"]["transport"] == "agent":
        body["spec"] = {**wanted["spec"], "ssh": None}
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
        namespace, name = process["metadata"]["namespace"], rows.service_name(process)
        key = f"{namespace}/{process['metadata']['name']}"
        try:
            service: Json | None = client.get(kinds.INFERENCE_SERVICES, namespace, name)
        except NotFound:
            service = None
        why = rows.stays(process, service)
        if why:
            staying[key] = why
        else:
            moving[key] = str(((service or {}).get("status") or {}).get("schedulingMessage") or "")
    return moving, staying


def _keys_of(file: Path, address: str, port: int) -> list[str]:
    path = file.expanduser()
    try:
        found = rows.known_host_lines(path.read_text(), address, port)
    except OSError as error:
        raise typer.BadParameter(f"--known-hosts: {error}") from None
    if not found:
        where = address if port == 22 else f"[{address}]:{port}"
        raise typer.BadParameter(
            f"{path} has no key of {where}. Print the key on the machine (`cat /etc/ssh/ssh_host_ed25519_key.pub`), "
            f"write `{where} ssh-ed25519 …` into a file and name the file with --known-hosts"
        )
    return found


def _bastion(text: str, known_hosts: Path) -> Json:
    user, at, place = text.rpartition("@")
    address, _, port = place.partition(":")
    if not address or (port and not port.isdigit()):
        raise typer.BadParameter(f"--bastion `{text}` is not [USER@]ADDRESS[:PORT]")
    number = int(port) if port else 22
    keys = _keys_of(known_hosts, address, number)
    return {"address": address, "port": number, "knownHosts": keys, **({"user": user} if at else {})}


def _taint(text: str) -> Json:
    taint = rows.taint_of(text)
    if taint is None:
        raise typer.BadParameter(f"--taint `{text}` is not KEY[=VALUE]:Effect; effects as for nodes (NoSchedule, …)")
    return taint
