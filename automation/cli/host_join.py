"""`herdsman host join`: make this machine a host by an invitation, and install its agent.

Registered by `host`, and by `agent` for the package `herdsman-agent`. Needs neither Pulumi nor `kubernetes`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer

from agent.server.cluster.host_lease import holder_of, lease_name
from agent.server.joining.identity import AUTHORITY, KUBECONFIG, MODE, TOKEN, kubeconfig_text, read_file
from agent.server.joining.invitation import BEGIN, END, MOST_BYTES, Invitation, InvitationWrong, decoded
from agent.server.joining.leftovers import ANNOTATION_INVITED, ANNOTATION_JOINED, end_invitation
from agent.server.joining.token import TokenWrong, claims_of, fingerprint, request_token
from agent.steps.machine import Machine, MachineError
from automation.cli.agent_installation import Installation
from automation.cli.agent_service import DEFAULT_NAME, Name, OwnUser, carry_out, prepare, this_machine
from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.output import complain, say
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.config import Access
from kubeapi.endpoint import Endpoint
from kubeapi.errors import ConfigInvalid, Conflict, Forbidden, KubeError, NotFound, Unauthorized, Unreachable
from kubeapi.json_types import Json

SYSTEM_NAMESPACE = "herdsman-system"
FOLDER = "/var/lib/herdsman-agent"
"""The parent of the folders of identities that root makes. A service of systemd may write there, unlike in /etc."""
RIGHTS_S = 20.0
"""How long to wait until the API server applies the rights of a new account."""
INVITATION_RIGHTS_S = 3.0
"""The same for the account of an invitation, which is usually older. A used invitation is refused after this time."""


JOIN_CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of the command: it passes options of `agent run` on."""


_UNREACHED = "check that this machine reaches the API server, then run the command again"
_UNPROVEN = (
    "the server did not prove to be the one of the invitation, so nothing was sent to it. Check its URL, and "
    "`--server` and `--ca-file` of `herdsman host invite`"
)


T = TypeVar("T")


class NotJoined(Exception):
    """The machine could not join. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Target:
    """Where the files of the identity are written, and for whom."""

    folder: Path
    user: str
    machine: Machine


def join(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with the invitation.", show_default="stdin, or a prompt")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", help="User that the agent runs as. The default is the user who calls sudo.", show_default=False
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for the kubeconfig and the token.", show_default=f"{FOLDER}/HOST"),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install the agent as a service of this machine.")
    ] = True,
    name: Name = DEFAULT_NAME,
    own_user: OwnUser = False,
    dry_run: DryRun = False,
) -> None:
    """Make this machine a host of a cluster by an invitation of `herdsman host invite`.

    Reads the invitation, recognizes the API server by the certificate in it, gets a token of the host's own account,
    ends the invitation and installs the agent. Takes all options of `herdsman agent run`, except those that the
    invitation sets. The invitation is never an argument, because other users of a machine can read arguments. If the
    command fails after the invitation was used, run it again with the same invitation.
    """
    machine = this_machine()
    try:
        _refuse(context.args)
        invitation = decoded(_read(file))
        where = _folder(folder, invitation.host, machine)
        installed = None
        if install:
            options = [*context.args, *_options(invitation, where)]
            installed = prepare(machine, options, name=name, user=user, own_user=own_user, dry_run=dry_run)
        elif context.args:
            raise typer.BadParameter(f"`{context.args[0]}` is an option of the agent, which --no-install leaves out")
        if dry_run:
            changes = [f"make this machine host {invitation.host} of {invitation.server}", f"write {where}"]
            end_dry_run([*changes, *(["install the agent as a service of this machine"] if install else [])])
        target = Target(where, installed.user if installed else user or machine.facts.user, machine)
        expires = _joined(invitation, target)
    except InvitationWrong as error:
        _fail(f"this is no valid invitation: {error}", "copy the whole output of `herdsman host invite` again")
    except NotJoined as error:
        _fail(str(error), error.hint)
    except MachineError as error:
        _fail(str(error), error.hint)
    except Unreachable as error:
        _fail(str(error), _UNPROVEN if error.misdirected else _UNREACHED)
    except KubeError as error:
        _fail(str(error), _UNREACHED)
    say(f"This machine is host `{invitation.host}` of {invitation.server}")
    say(f"Its kubeconfig is {target.folder / KUBECONFIG}; its token lasts until {expires}, and the agent renews it")
    _go_on(installed, invitation, target)


def _options(invitation: Invitation, folder: Path) -> list[str]:
    """Return the options of the agent that the invitation sets."""
    served = [f"--namespace={each}" for each in invitation.served]
    return [f"--host={invitation.host}", f"--kubeconfig={folder / KUBECONFIG}", *served]


def _go_on(installed: Installation | None, invitation: Invitation, target: Target) -> None:
    options = shlex.join([f"--user={target.user}", *_options(invitation, target.folder)])
    command = f"herdsman agent install {options}"
    if installed is None:
        say(f"Next: sudo {command}")
        return
    try:
        carry_out(installed, target.machine)
    except typer.Exit:
        complain("the machine has joined, but the agent is not installed", hint=f"then run `sudo {command}`")
        raise
    say("`herdsman host list` shows the host as soon as its agent has reported")


def _refuse(arguments: Sequence[str]) -> None:
    for each in arguments:
        if BEGIN in each or len(each) > 1024:
            raise NotJoined(
                "an invitation is never an argument: other users of this machine can read it there, and the shell "
                "keeps it",
                "make another one with `herdsman host invite HOST --again`, and paste it when this command asks",
            )
        if each.split("=")[0] in ("--host", "--kubeconfig", "--plan-source", "--namespace", "-n"):
            raise typer.BadParameter(f"the invitation sets {each.split('=')[0]}")
        if each.split("=")[0] == "--label":
            raise typer.BadParameter("only an administrator labels a host: `herdsman host invite --label`")


def _read(file: Path | None) -> str:
    """Read the text of an invitation from a file, from stdin, or from a terminal that does not show it."""
    try:
        if file is not None:
            with file.expanduser().open(encoding="ascii") as opened:
                return opened.read(MOST_BYTES + 1)
        if not sys.stdin.isatty():
            return sys.stdin.read(MOST_BYTES + 1)
        with _silent(sys.stdin.fileno()):
            say(f"Paste the invitation, with the line {END}:", err=True)
            lines: list[str] = []
            while sum(map(len, lines)) <= MOST_BYTES and (line := sys.stdin.readline()):
                lines.append(line)
                if END in line:
                    break
            return "".join(lines)
    except UnicodeDecodeError:
        raise InvitationWrong("it is no text") from None
    except OSError as error:
        raise NotJoined(f"the invitation cannot be read: {error.strerror}", "name its file with --file") from None


@contextlib.contextmanager
def _silent(terminal: int) -> Iterator[None]:
    import termios

    before = termios.tcgetattr(terminal)
    quiet = [*before]
    quiet[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _folder(given: Path | None, host: str, machine: Machine) -> Path:
    if given is not None:
        return given.expanduser().absolute()
    if machine.facts.is_root:
        return Path(FOLDER) / host
    return Path(machine.facts.home) / ".local" / "share" / "herdsman-agent" / host


def _joined(invitation: Invitation, target: Target) -> str:
    """Get the identity, write its files, and end the invitation. Returns the end of the token in RFC 3339."""
    token, resumed = _kept(invitation, target), True
    if token is None:
        token, resumed = _redeem(invitation), False
        _write(invitation, token, target)
    client = _client(invitation, token)
    try:
        _claim(client, invitation.host, token, resumed=resumed)
    except NotJoined:
        target.machine.remove(str(target.folder / TOKEN))
        raise
    end_invitation(client, invitation.host, namespace=SYSTEM_NAMESPACE)
    ends = datetime.fromtimestamp(claims_of(token).expires_at, UTC)
    return ends.isoformat(timespec="seconds").replace("+00:00", "Z")


def _kept(invitation: Invitation, target: Target) -> str | None:
    """Return the token that an earlier, interrupted run got by the same invitation; None without one."""
    try:
        files = [read_file(target.folder / name) for name in (KUBECONFIG, AUTHORITY, TOKEN)]
    except (OSError, TokenWrong):
        return None
    if files[:2] != [_kubeconfig(invitation), invitation.ca] or not files[2]:
        return None
    token = files[2].strip()
    try:
        _client(invitation, token).get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(invitation.host))
        claims_of(token)
    except (KubeError, TokenWrong):
        return None
    return token


def _redeem(invitation: Invitation) -> str:
    if invitation.ends.timestamp() <= time.time():
        raise NotJoined(
            f"the invitation ended at {invitation.expires}, by this machine's clock",
            f"make another one: `herdsman host invite {invitation.host} --again`",
        )
    try:
        client = _client(invitation, invitation.token)
        token, _ = _once_allowed(
            lambda: request_token(client, namespace=SYSTEM_NAMESPACE, account=invitation.host),
            wait_s=INVITATION_RIGHTS_S,
        )
    except (Unauthorized, Forbidden, NotFound):
        raise NotJoined(
            f"the API server does not accept the invitation of host `{invitation.host}`: it was used, replaced or "
            "revoked, or it has ended",
            "if you have not used it, somebody else may have: run "
            f"`herdsman host revoke {invitation.host}` and then `herdsman host invite {invitation.host}`",
        ) from None
    except ConfigInvalid as error:
        raise NotJoined(f"the certificate in the invitation cannot be used: {error}") from None
    account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{invitation.host}"
    try:
        claims = claims_of(token)
    except TokenWrong as error:
        raise NotJoined(f"the API server returned a wrong token: {error}") from None
    if claims.subject != account:
        raise NotJoined("the API server returned a token of another account")
    if claims.expires_at <= time.time():
        raise NotJoined(
            "the new token has ended already, by this machine's clock",
            "set the clock: `timedatectl set-ntp true`, or `sntp -sS time.apple.com` on a Mac",
        )
    return token


def _claim(client: KubeClient, host: str, token: str, *, resumed: bool) -> None:
    """Write into the host's Lease that this machine has joined; refuse if another one has.

    `resumed`: an earlier run on this machine wrote the token, which its agent may have renewed since.
    """
    mark, machine = fingerprint(token), platform.node()[:100]
    for _ in range(3):
        lease = _lease(client, host)
        notes = lease["metadata"].setdefault("annotations", {})
        joined = str(notes.get(ANNOTATION_JOINED) or "")
        if joined.endswith(f"({mark})") or (resumed and joined.startswith(f"{machine} at ")):
            return
        if joined or holder_of(lease):
            who = joined.rpartition(" (")[0] or f"agent {holder_of(lease)}"
            raise NotJoined(
                f"another machine has joined as host `{host}`: {who}",
                f"if that is not yours, somebody has seen the invitation: `herdsman host revoke {host}`",
            )
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        notes.pop(ANNOTATION_INVITED, None)
        notes[ANNOTATION_JOINED] = f"{machine} at {now} ({mark})"
        lease["metadata"].pop("managedFields", None)
        try:
            client.replace(kinds.LEASES, SYSTEM_NAMESPACE, lease)
        except Conflict:
            continue
        return
    raise NotJoined(f"the Lease of host `{host}` changes all the time: another machine joins as this host")


def _lease(client: KubeClient, host: str) -> Json:
    try:
        return _once_allowed(lambda: client.get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(host)), wait_s=RIGHTS_S)
    except NotFound:
        raise NotJoined(
            f"host `{host}` was removed from the cluster",
            f"invite it again: `herdsman host invite {host} --again`",
        ) from None


def _once_allowed(send: Callable[[], T], *, wait_s: float) -> T:
    """Send a request, and again while it is Forbidden: the API server reads roles and bindings from a cache."""
    end = time.monotonic() + wait_s
    while True:
        try:
            return send()
        except Forbidden:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _write(invitation: Invitation, token: str, target: Target) -> None:
    """Write the three files, the token last. `Machine` follows no link that another user made, also as root."""
    machine, facts = target.machine, target.machine.facts
    owner = target.user if facts.is_root else None
    if not os.path.lexists(target.folder):
        machine.make_directory(str(target.folder), mode=0o700, owner=owner)
    # The mode and the owner of an existing folder stay as they are: it may be somebody else's.
    _check_private(target)
    for name, content in (
        (AUTHORITY, invitation.ca),
        (KUBECONFIG, _kubeconfig(invitation)),
        (TOKEN, token),
    ):
        machine.write(str(target.folder / name), content.encode(), mode=MODE, owner=owner)


def _check_private(target: Target) -> None:
    found = os.lstat(target.folder)
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = str(found.st_uid)
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077 or owner != target.user:
        raise NotJoined(
            f"{target.folder} is no folder of user `{target.user}` alone", "name another folder with --folder"
        )


def _kubeconfig(invitation: Invitation) -> str:
    return kubeconfig_text(
        invitation.server,
        invitation.host,
        tls_server_name=invitation.tls_server_name,
        has_authority=bool(invitation.ca),
    )


def _client(invitation: Invitation, token: str) -> KubeClient:
    """Return a client that trusts the authority of the invitation only."""
    endpoint = Endpoint(
        invitation.server,
        authorization=lambda: f"Bearer {token}",
        ca_data=invitation.ca or None,
        tls_server_name=invitation.tls_server_name or None,
    )
    return KubeClient(Access(lambda: endpoint))


def _fail(message: str, hint: str = "") -> NoReturn:
    complain(message, hint=hint)
    raise typer.Exit(1)
