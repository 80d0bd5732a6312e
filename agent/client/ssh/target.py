"""The parameters of a connection over SSH: addresses, host keys, the user's key.

Used by the modules of this package.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.client.ssh.keys import KnownHosts

DEFAULT_PORT = 22
DEFAULT_SECRETS = "/etc/herdsman/secrets"
DEFAULT_STORE = "~/.local/share/herdsman"


@dataclass(frozen=True)
class SshServer:
    """One SSH server, and the host keys that identify it."""

    address: str
    user: str
    known_hosts: KnownHosts
    port: int = DEFAULT_PORT

    @property
    def name(self) -> str:
        """`user@address:port`, for messages."""
        at = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{at}:{self.port}"


@dataclass(frozen=True)
class SshTimeouts:
    """Time limits of the parts of a connection, in seconds."""

    connect_s: float = 10.0
    """Until TCP is connected."""
    greet_s: float = 15.0
    """Until the server has sent its version, and again until it has checked the key."""
    channel_s: float = 15.0
    """Until a channel is open."""
    keepalive_s: float = 15.0
    """Interval of keepalive messages, which detect a dead connection."""


@dataclass(frozen=True)
class SshTarget:
    """A host without an agent, and how to connect to it. Exactly one of the identities is set."""

    server: SshServer
    identity_file: str = ""
    """Path of the private key on this machine."""
    identity: str = field(default="", repr=False)
    """Text of the private key."""
    bastion: SshServer | None = None
    """Jump host of the connection. It accepts the same key."""
    sudo: bool = False
    """Run commands as root by `sudo -n` if necessary. Otherwise everything belongs to the user."""
    allow_root: bool = False
    """Allow processes to run as root if the user on the host is root."""
    store: str = DEFAULT_STORE
    """Directory on the host for models, logs and state."""
    secrets: str = DEFAULT_SECRETS
    """Directory on the host with `<namespace>/<secret>/<key>`, the values of services' secret variables."""
    timeouts: SshTimeouts = SshTimeouts()
