"""The files of a local cluster, and the state that it keeps between commands. Called by `cluster`."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PORT_NAMES: tuple[str, ...] = (
    "etcd",
    "etcd-peer",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
)
# Below the ports that systems use for outgoing connections, so that a port is still free when its component restarts,
# and outside the NodePort range. Ports from 28000 are left to servers with a fixed port (`tests/support/llmkube.py`).
_FIRST_PORT, _LAST_PORT = 20000, 27999


@dataclass(frozen=True)
class Layout:
    """The paths of one cluster."""

    directory: Path

    @property
    def state(self) -> Path:
        """The ports and processes, as JSON."""
        return self.directory / "state.json"

    @property
    def lock(self) -> Path:
        """The lock file; a command holds it while it changes the cluster."""
        return self.directory / "lock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, readable by its owner only."""
        return self.directory / "kubeconfig"

    @property
    def pki(self) -> Path:
        """Certificates, keys and the components' kubeconfigs."""
        return self.directory / "pki"

    @property
    def audit_policy(self) -> Path:
        """An audit policy for the API server. A user who wants a log of requests writes one here before `up`."""
        return self.directory / "audit-policy.json"

    @property
    def data(self) -> Path:
        """The data directory of etcd."""
        return self.directory / "data"

    @property
    def logs(self) -> Path:
        """The folder with one log file for each component."""
        return self.directory / "logs"

    def log(self, component: str) -> Path:
        """Return the log file of one component."""
        return self.logs / f"{component}.log"

    def purge(self) -> None:
        """Remove the files of the cluster, and the directory if it is then empty."""
        for folder in (self.pki, self.data, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.state, self.kubeconfig, self.lock):
            file.unlink(missing_ok=True)
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()


@dataclass(frozen=True)
class ProcessRecord:
    """A process that Herdsman started. The start time distinguishes it from a later process with the same number."""

    pid: int
    started_at_s: float
    """Start time in seconds since the epoch, as the system reported it at the start."""
    since_boot_s: float = 0.0
    """Linux: seconds from the boot to the start, independent of changes of the clock. 0: unknown."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ProcessRecord:
        """Parse the output of `asdict`. Raises KeyError, TypeError, ValueError."""
        return cls(int(raw["pid"]), float(raw["started_at_s"]), float(raw.get("since_boot_s", 0.0)))


@dataclass
class State:
    """The ports of a cluster and the processes that it started."""

    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, ProcessRecord] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> State:
        """Return the written state; an empty state if the file does not exist or cannot be parsed."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                ports={str(name): int(port) for name, port in raw["ports"].items()},
                processes={str(name): ProcessRecord.from_json(record) for name, record in raw["processes"].items()},
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, path: Path) -> None:
        """Replace the file as a whole."""
        write_private(path, json.dumps(asdict(self), indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole. At no time can another user than its owner read it."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def pick_ports(names: Iterable[str], *, taken: Iterable[int] = ()) -> dict[str, int]:
    """Return a free loopback port for each name, all different and none in `taken`.

    Raises:
        OSError: no free port was found.
    """
    used = set(taken)
    chosen: dict[str, int] = {}
    candidates = iter(random.sample(range(_FIRST_PORT, _LAST_PORT + 1), 2000))
    for name in names:
        port = next((port for port in candidates if port not in used and is_free(port)), None)
        if port is None:
            raise OSError(f"there is no free port between {_FIRST_PORT} and {_LAST_PORT} for {name}")
        chosen[name] = port
    return chosen
