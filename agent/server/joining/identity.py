"""The files of a host's identity in one folder: `kubeconfig`, `ca.crt` and `token`, all of mode 0600.

`automation.cli.host_join` writes them, and the agent renews the token. A kubeconfig counts as written by `host join`
only if its text is exactly the text that `kubeconfig_text` returns for its server: other kubeconfigs are never changed.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from agent.server.joining.invitation import is_host_name, server_fault
from agent.server.joining.token import Claims, TokenWrong, claims_of

KUBECONFIG, AUTHORITY, TOKEN = "kubeconfig", "ca.crt", "token"
MODE = 0o600
_MOST_BYTES = 256 * 1024


@dataclass(frozen=True)
class Identity:
    """The identity of a host in a folder."""

    folder: Path
    server: str
    host: str

    @property
    def token_file(self) -> Path:
        return self.folder / TOKEN

    def token(self) -> str:
        """Read the token. Raises OSError, TokenWrong."""
        content = read_file(self.token_file)
        if content is None:
            raise FileNotFoundError(2, os.strerror(2), str(self.token_file))
        return content.strip()

    def claims(self) -> Claims:
        """Read the times of the token. Raises OSError, TokenWrong."""
        return claims_of(self.token())


def kubeconfig_text(server: str, host: str, *, tls_server_name: str = "", has_authority: bool = True) -> str:
    """Return the kubeconfig of a host: JSON, which is YAML too. It names the other two files and contains no secret."""
    cluster = {"server": server}
    if has_authority:
        cluster["certificate-authority"] = AUTHORITY
    if tls_server_name:
        cluster["tls-server-name"] = tls_server_name
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": host,
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": host, "user": {"tokenFile": TOKEN}}],
        "contexts": [{"name": host, "context": {"cluster": "cluster", "user": host}}],
    }
    return json.dumps(config, indent=1) + "\n"


def identity_of(kubeconfig: Path) -> Identity | None:
    """Return the identity of a kubeconfig that `herdsman host join` wrote; None for any other file."""
    try:
        text = read_file(kubeconfig)
        if text is None:
            return None
        content = json.loads(text)
        cluster, host = content["clusters"][0]["cluster"], content["current-context"]
        server = cluster["server"]
        again = kubeconfig_text(
            server,
            host,
            tls_server_name=cluster.get("tls-server-name", ""),
            has_authority="certificate-authority" in cluster,
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, TokenWrong, RecursionError):
        return None
    if again != text or not isinstance(host, str) or not is_host_name(host) or server_fault(server):
        return None
    return Identity(kubeconfig.parent, server, host)


def read_file(path: Path) -> str | None:
    """Read a short regular file; None if there is none. No link is followed. Raises OSError, TokenWrong."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise TokenWrong(f"{path} is no regular file")
        content = file.read(_MOST_BYTES + 1)
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError
        return content.decode()
    except ValueError:
        raise TokenWrong(f"{path} is no short text") from None
