"""The SSH connection of a Host object: its address, keys and credentials. Called by `ssh_worker`."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from agent.client.port import HostRefused
from agent.client.ssh.keys import KnownHosts, KnownHostsInvalid, own_keys
from agent.client.ssh.target import DEFAULT_PORT, DEFAULT_SECRETS, DEFAULT_STORE, SshServer, SshTarget, SshTimeouts
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound
from kubeapi.json_types import Json

SECRET_KEY = "ssh-privatekey"  # noqa: S105 - the name of a key in a Secret of type kubernetes.io/ssh-auth
_NOT_READABLE = "IdentityNotReadable"


def connection_spec(host: Json) -> Json:
    """Return the fields of a Host that determine its connection. A change of them requires a new connection."""
    spec = host.get("spec") or {}
    return {"address": spec.get("address"), "ssh": spec.get("ssh"), "paths": (spec.get("allow") or {}).get("paths")}


def store_spec(host: Json) -> Json:
    """Return the fields of a Host that determine where its processes are."""
    spec = host.get("spec") or {}
    ssh = spec.get("ssh") or {}
    return {"address": spec.get("address"), **{each: ssh.get(each) for each in ("port", "user", "sudo", "store")}}


def target_of(host: Json, identity: str, *, timeouts: SshTimeouts = SshTimeouts()) -> SshTarget:
    """Return the target of a Host.

    `identity` is the text of the key, empty for a file. Raises HostRefused with the field.
    """
    spec = host.get("spec") or {}
    ssh = spec.get("ssh") or {}
    address, user = str(spec.get("address") or ""), str(ssh.get("user") or "")
    for field, value in (("spec.address", address), ("spec.ssh.user", user)):
        if not value:
            raise HostRefused("SpecInvalid", f"{field} is missing")
    if not identity and not ssh.get("identityFile"):
        raise HostRefused("SpecInvalid", "spec.ssh names neither identityFile nor identitySecret")
    bastion = ssh.get("bastion")
    return SshTarget(
        server=SshServer(
            address, user, _keys(ssh.get("knownHosts"), "spec.ssh.knownHosts"), int(ssh.get("port") or DEFAULT_PORT)
        ),
        identity_file="" if identity else str(ssh["identityFile"]),
        identity=identity,
        bastion=SshServer(
            str(bastion.get("address") or ""),
            str(bastion.get("user") or user),
            _keys(bastion.get("knownHosts"), "spec.ssh.bastion.knownHosts"),
            int(bastion.get("port") or DEFAULT_PORT),
        )
        if bastion
        else None,
        sudo=bool(ssh.get("sudo")),
        allow_root=bool(ssh.get("allowRoot")),
        store=str(ssh.get("store") or DEFAULT_STORE),
        secrets=str(ssh.get("secrets") or DEFAULT_SECRETS),
        timeouts=timeouts,
    )


def _keys(lines: Any, field: str) -> KnownHosts:
    try:
        return own_keys([str(line) for line in lines or ()])
    except KnownHostsInvalid as error:
        raise HostRefused("SpecInvalid", f"{field}: {error}") from error


def read_identity(client: KubeClient, host: Json, namespace: str) -> str:
    """Read the key of a Host from its Secret. Empty if it uses a file. Raises HostRefused with the remedy."""
    ssh = (host.get("spec") or {}).get("ssh") or {}
    name = (ssh.get("identitySecret") or {}).get("name")
    if not name:
        return ""
    where = f"Secret `{name}` in namespace `{namespace}`"
    try:
        secret = client.get(kinds.SECRETS, namespace, name)
    except Forbidden:
        raise HostRefused(
            _NOT_READABLE,
            f"the loop may not read {where}; apply docs/install/secrets-reader.yaml to that namespace, or name an "
            "identityFile",
        ) from None
    except NotFound:
        raise HostRefused("IdentityMissing", f"{where} does not exist") from None
    except ApiError as error:
        raise HostRefused(_NOT_READABLE, f"cannot read {where}: {error.reason}") from None
    text = (secret.get("data") or {}).get(SECRET_KEY)
    try:
        if text:
            return base64.b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise HostRefused("IdentityMissing", f"{where} has no private key under `{SECRET_KEY}`")
