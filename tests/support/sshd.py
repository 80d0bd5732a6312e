"""Real SSH servers for tests: Debian's sshd with generated keys, on a host of a network or on loopback.

Each server has a home, a state directory and a service manager (`tests/fakes/systemctl`, which runs the commands of its
units), so that it changes nothing on this machine. Passwords are off, and the user's own ~/.ssh is not read.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agent.client.ssh.keys import own_keys
from agent.client.ssh.target import SshServer, SshTarget, SshTimeouts
from tests.support import needs
from tests.support.controlplane import eventually
from tests.support.supervising import free_port

FAKES = Path(__file__).resolve().parents[1] / "fakes"
QUICK = SshTimeouts(connect_s=3.0, greet_s=4.0, channel_s=4.0, keepalive_s=2.0)
"""For tests that wait until a silent host is noticed. On a busy machine a host that answers may exceed them."""


def make_key(path: Path, *, kind: str = "ed25519") -> str:
    """Make a key pair and return the public half as `type base64`."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@dataclass
class Sshd:
    """One server. `start` and `stop` may be called repeatedly; the host's key and state stay."""

    directory: Path
    address: str
    prefix: tuple[str, ...] = ()
    """The command that runs a command on the host: `ip netns exec …`."""
    binaries: Sequence[Path] = ()
    """Programs that are on the host's PATH."""
    manager: Path | None = FAKES / "systemctl"
    """The service manager; None: `prefix` runs commands on a machine with a real systemd."""
    port: int = 0
    host_key: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        for part in ("bin", "home", "systemd"):
            (self.directory / part).mkdir()
        (self.directory / "systemd" / "system").mkdir()
        self.port = self.port or free_port(self.address if not self.prefix else "127.0.0.1")
        self.host_key = make_key(self.directory / "host_key")
        self.user_key = self.directory / "user_key"
        (self.directory / "authorized_keys").write_text(make_key(self.user_key) + "\n")
        for program in (*([self.manager] if self.manager else ()), *self.binaries):
            (self.directory / "bin" / program.name).symlink_to(program)
        # The interpreter of the fakes: a shim on PATH would take longer to start than the fakes run.
        (self.directory / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
        if self.manager is not None:
            self._tool("loginctl", "exit 0")
            self._tool("journalctl", "exit 1")

    @property
    def user(self) -> str:
        return getpass.getuser()

    @property
    def store(self) -> Path:
        return self.directory / "home" / "store"

    @property
    def log(self) -> str:
        return (self.directory / "sshd.log").read_text()

    @property
    def calls(self) -> list[str]:
        """The commands that systemctl received, in order."""
        calls = self.directory / "bin" / "systemctl-state" / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def changing_calls(self) -> list[str]:
        """The commands that change something."""
        asking = ("show", "is-enabled", "is-system-running", "is-active")
        return [call for call in self.calls if not set(call.split()) & set(asking)]

    def target(self, **changes: object) -> SshTarget:
        """Return the SshTarget of this server; `changes` are fields of SshTarget."""
        values: dict[str, object] = {
            "server": SshServer(self.address, self.user, own_keys([self.host_key]), self.port),
            "identity_file": str(self.user_key),
            "store": str(self.store),
            # Where the tests run as root, the server does, too.
            "allow_root": self.user == "root",
        }
        return SshTarget(**{**values, **changes})  # type: ignore[arg-type]

    def start(self) -> None:
        config = self.directory / "sshd_config"
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        config.write_text(
            f"Port {self.port}\nListenAddress {self.address}\nHostKey {self.directory / 'host_key'}\n"
            f"AuthorizedKeysFile {self.directory / 'authorized_keys'}\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            "UseDNS no\nMaxStartups 100\nMaxSessions 100\nLogLevel VERBOSE\n"
            f"SetEnv PATH={path} HOME={self.directory / 'home'}\n"
        )
        sshd = [_sshd(), "-D", "-e", "-f", str(config)]
        command = [*self.prefix, *sshd]
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
            there = 'mount --bind "$0" /etc/systemd && exec "$@"'
            command = [*self.prefix, "sh", "-c", 'mkdir -p /run/sshd && exec "$@"', "sh", *sshd]
        if os.geteuid() == 0 and self.manager is not None:
            # Units of root are system units; a mount namespace keeps them out of this machine's own directory.
            command = [*self.prefix, "unshare", "--mount", "sh", "-c", there, str(self.directory / "systemd"), *sshd]
        with (self.directory / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually(lambda: "Server listening" in self.log or None, what="sshd to listen")

    def stop(self) -> None:
        """Stop the server and close its connections; processes on the host continue."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in _sessions(psutil.Process(self._process.pid)):
                with contextlib.suppress(psutil.Error):
                    each.kill()
        self._process.kill()
        self._process.wait()
        self._process = None

    def cut_connections(self) -> None:
        """Close the connections without stopping the server."""
        assert self._process is not None
        for each in _sessions(psutil.Process(self._process.pid)):
            with contextlib.suppress(psutil.Error):
                each.kill()

    def freeze(self) -> None:
        """Suspend the server: it accepts connections and sends nothing."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        server.suspend()
        for each in _sessions(server):
            with contextlib.suppress(psutil.Error):
                each.suspend()

    def thaw(self) -> None:
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        server.resume()
        for each in _sessions(server):
            with contextlib.suppress(psutil.Error):
                each.resume()

    def new_host_key(self) -> None:
        """Generate another host key, which the next start uses."""
        for path in (self.directory / "host_key", self.directory / "host_key.pub"):
            path.unlink()
        make_key(self.directory / "host_key")

    def sudo(self, script: str) -> None:
        """Put a `sudo` on the host."""
        self._tool("sudo", script)

    def end_all(self) -> None:
        """Kill the server and every process that its units started."""
        self.stop()
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.directory) in " ".join(each.cmdline()):
                    each.send_signal(signal.SIGKILL)

    def _tool(self, name: str, script: str) -> None:
        tool = self.directory / "bin" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)


@contextlib.contextmanager
def sshd(
    directory: Path,
    *,
    address: str = "127.0.0.1",
    prefix: tuple[str, ...] = (),
    binaries: Sequence[Path] = (),
    manager: Path | None = FAKES / "systemctl",
) -> Iterator[Sshd]:
    """Provide a running server; at the end stop it and everything that it started."""
    _sshd()
    made = Sshd(directory, address, prefix, binaries, manager)
    try:
        made.start()
        yield made
    finally:
        made.end_all()


def _sessions(server: psutil.Process) -> list[psutil.Process]:
    """Find the processes of connections; commands that were detached from a connection are not included."""
    found = []
    for each in server.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end meanwhile
            if each.name().startswith("sshd"):
                found.append(each)
    return found


def _sshd() -> str:
    needs.require("sshd")
    found = needs.program("sshd", needs.SBIN)
    assert found is not None
    return found
