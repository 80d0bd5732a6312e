"""Turns the options of `herdsman host add` about SSH into the fields of a Host. Called by `host`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from automation.cli import host_rows as rows
from kubeapi.json_types import Json

KNOWN_HOSTS = Path("~/.ssh/known_hosts")
PORT = 22


@dataclass(frozen=True)
class SshOptions:
    """The options about SSH. An option that was not given is None."""

    user: str | None
    port: int | None
    identity_file: str | None
    identity_secret: str | None
    known_hosts: Path | None
    bastion: str | None
    sudo: bool | None
    allow_root: bool

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        values = {
            "--ssh-user": self.user,
            "--ssh-port": self.port,
            "--identity-file": self.identity_file,
            "--identity-secret": self.identity_secret,
            "--known-hosts": self.known_hosts,
            "--bastion": self.bastion,
            "--sudo" if self.sudo else "--no-sudo": self.sudo,
            "--allow-root": self.allow_root or None,
        }
        return [name for name, value in values.items() if value is not None]


def ssh_fields(options: SshOptions, address: str | None, before: Json | None) -> Json:
    """Return the fields of `spec.ssh` that the options change; the value None removes a field.

    `before` are the fields of a Host over SSH, None for any other Host and for a new one. Raises BadParameter.
    """
    given = options.given()
    if not given:
        return {}
    if before is None and not options.user:
        raise typer.BadParameter(f"{given[0]} needs --ssh-user, except to change a Host that is over SSH already")
    if not address:
        raise typer.BadParameter("--ssh-user needs --address")
    identities = sum(each is not None for each in (options.identity_file, options.identity_secret))
    if identities > 1 or (before is None and not identities):
        raise typer.BadParameter("give one of --identity-file and --identity-secret")
    port = options.port if options.port is not None else (before or {}).get("port", PORT)
    known_hosts = options.known_hosts or KNOWN_HOSTS
    fields: Json = {}
    if options.user:
        fields["user"] = options.user
    if before is None or options.port is not None:
        fields["port"] = port
    if options.user or options.known_hosts:
        fields["knownHosts"] = _keys_of(known_hosts, address, port)
    if before is None or options.sudo is not None:
        fields["sudo"] = bool(options.sudo)
    if options.allow_root:
        fields["allowRoot"] = True
    # A patch merges objects, so what a new value replaces is removed by name.
    if options.identity_file:
        fields |= {"identityFile": options.identity_file, **({"identitySecret": None} if before else {})}
    if options.identity_secret:
        fields |= {"identitySecret": {"name": options.identity_secret}, **({"identityFile": None} if before else {})}
    if options.bastion:
        fields["bastion"] = {**({"user": None} if before else {}), **_bastion(options.bastion, known_hosts)}
    return fields


def _keys_of(file: Path, address: str, port: int) -> list[str]:
    path = file.expanduser()
    try:
        found = rows.known_host_lines(path.read_text(), address, port)
    except OSError as error:
        raise typer.BadParameter(f"--known-hosts: {error}") from None
    if not found:
        where = address if port == PORT else f"[{address}]:{port}"
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
    number = int(port) if port else PORT
    keys = _keys_of(known_hosts, address, number)
    return {"address": address, "port": number, "knownHosts": keys, **({"user": user} if at else {})}
