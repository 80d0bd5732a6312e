"""The two transports of a HostProcess: the agent's API and SSH. Called by `host_provider`.

Inputs hold paths and addresses only. Tokens, keys and known hosts are read from files on the machine that runs Pulumi.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.client.http import HttpHost, token_from
from agent.client.port import HostClient, HostRefused
from agent.client.ssh.host import SshHost
from agent.client.ssh.keys import KnownHosts, KnownHostsInvalid, keys_in_file
from agent.client.ssh.target import DEFAULT_PORT, DEFAULT_SECRETS, DEFAULT_STORE, SshServer, SshTarget
from components.providers.host_schema import AGENT, AGENT_TLS

DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts"


class HostTransports:
    """The clients of hosts, one for each host and transport, made at first use. Thread-safe."""

    def __init__(self) -> None:
        self._clients: dict[str, HostClient] = {}
        self._lock = threading.Lock()

    def client_for(self, given: Mapping[str, Any]) -> HostClient:
        """Return the client for a resource's inputs, which Check has accepted. Raises HostRefused."""
        ssh = given.get("ssh")
        way = {"ssh": ssh} if ssh else {name: given.get(name) for name in (*AGENT, *AGENT_TLS)}
        host = str(given["plan"]["host"]) if ssh else ""
        key = json.dumps([host, way], sort_keys=True)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = SshHost(ssh_target(ssh), host=host) if ssh else agent_host(given)
            return self._clients[key]


def agent_host(given: Mapping[str, Any]) -> HttpHost:
    """Return a client of an agent. Raises HostRefused."""
    ca_file = Path(str(given["caFile"])) if given.get("caFile") else None
    return HttpHost(
        str(given["endpoint"]),
        token_from(Path(str(given["tokenFile"]))),
        ca_file=ca_file,
        fingerprint=str(given.get("fingerprint") or ""),
    )


def ssh_target(ssh: Mapping[str, Any]) -> SshTarget:
    """Parse the input `ssh`. Raises HostRefused if the file of known hosts does not contain the host."""
    known = str(ssh.get("knownHosts") or DEFAULT_KNOWN_HOSTS)
    server = _server(ssh, str(ssh["user"]), known)
    bastion = ssh.get("bastion")
    return SshTarget(
        server=server,
        identity_file=str(ssh["identityFile"]),
        bastion=_server(bastion, str(bastion.get("user") or server.user), str(bastion.get("knownHosts") or known))
        if bastion
        else None,
        sudo=bool(ssh.get("sudo")),
        allow_root=bool(ssh.get("allowRoot")),
        store=str(ssh.get("store") or DEFAULT_STORE),
        secrets=str(ssh.get("secrets") or DEFAULT_SECRETS),
    )


def _server(said: Mapping[str, Any], user: str, known_hosts: str) -> SshServer:
    # Numbers of a Pulumi program arrive as floats.
    address, port = str(said["address"]), int(said.get("port") or DEFAULT_PORT)
    return SshServer(address, user, _keys(known_hosts, address, port), port)


def _keys(path: str, address: str, port: int) -> KnownHosts:
    try:
        return keys_in_file(Path(path).expanduser().read_text(), address, port)
    except (OSError, UnicodeDecodeError) as error:
        raise HostRefused("HostKeyUnknown", f"cannot read the known hosts {path}: {error}") from error
    except KnownHostsInvalid as error:
        look = f"ssh-keyscan -p {port} {address}"
        raise HostRefused(
            "HostKeyUnknown",
            f"{path}: {error}; compare the output of `{look}` with the host's key, then add it to the file",
        ) from error
