"""How a host is reached over SSH: addresses, host keys, the user's key. Values; used by all `agent.client.ssh_…`."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.client.ssh.keys import KnownHosts

DEFAULT_PORT = 22
DEFAULT_SECRETS = "/etc/herdsman/secrets"
DEFAULT_STORE = "~/.local/share/herdsman"


@dataclass(frozen=True)
class SshServer:
    """One SSH server and the keys that prove it to be the one that is meant."""

    address: str
    user: str
    known_hosts: KnownHosts
    port: int = DEFAULT_PORT

    @property
    def name(self) -> str:
        """For messages: `user@address:port`."""
        at = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{at}:{self.port}"


@dataclass(frozen=True)
class SshTimeouts:
    """How long each part of the way may take, in seconds."""

    connect_s: float = 10.0
    """Until TCP is connected."""
    greet_s: float = 15.0
    """Until the server has sent its version, and again until it has judged the key."""
    channel_s: float = 15.0
    """Until a channel is open."""
    keepalive_s: float = 15.0
    """Between two signs of life on an idle connection, so that one that is dead is noticed."""


@dataclass(frozen=True)
class SshTarget:
    """A host without an agent, and what it takes to work there. Exactly one of the identities is given."""

    server: SshServer
    identity_file: str = ""
    """Path of the private key, on this machine."""
    identity: str = field(default="", repr=False)
    """Text of the private key."""
    bastion: SshServer | None = None
    """Where the connection goes through; the same key is used there."""
    sudo: bool = False
    """Take root's rights by `sudo -n` where they are needed; else everything is the user's own."""
    allow_root: bool = False
    """Processes may run as root, where that is the user on the host."""
    store: str = DEFAULT_STORE
    """Directory on the host for models, logs and state."""
    secrets: str = DEFAULT_SECRETS
    """Directory on the host with `<namespace>/<secret>/<key>`, the values of services' secret variables."""
    timeouts: SshTimeouts = SshTimeouts()
