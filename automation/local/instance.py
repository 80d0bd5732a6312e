"""The one running instance of local mode: its lock, its record, its end.

`running` holds the lock and writes the record. The commands find the instance by it. A process counts as the instance
only if pid and start time match, because the kernel reuses pids.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import IO, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from agent.server.processes.identity import runs, start_mark
from automation.local.folders import PRIVATE_FILE, LocalFolders, read_json, write_private

POLL_S = 0.05


class InUse(Exception):
    """Another instance runs for this user."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the record; None if the file does not exist or is not a record."""
        try:
            found = read_json(path)
            return cls.model_validate(found) if found is not None else None
        except ValidationError:
            return None

    def write(self, path: Path) -> None:
        """Write the record by one rename. Raises OSError."""
        write_private(path, self.model_dump_json(by_alias=True, indent=1) + "\n")


class Instance(_Record):
    """What the running instance says of itself."""

    pid: int
    mark: str
    """Identifies the process together with the pid (`agent.server.processes.identity`)."""
    url: str = ""
    """The base URL of the gateway, which ends in `/v1`; empty while it starts."""
    agent_url: str = ""
    token_file: str = ""
    """The file with the token of the agent's API."""
    version: str = ""

    @classmethod
    def of_this_process(cls) -> Instance:
        """Return the record of this process, before it serves."""
        return cls(pid=os.getpid(), mark=start_mark(os.getpid()) or "")

    @property
    def is_serving(self) -> bool:
        """Whether its gateway and its agent have started."""
        return bool(self.url)


class Settings(_Record):
    """The options of `local up`, kept for the next one."""

    listen: str = "127.0.0.1:8080"
    allowed_remote_hosts: tuple[str, ...] = ()


def running_instance(folders: LocalFolders) -> Instance | None:
    """Return the instance that runs; None without one."""
    found = Instance.read(folders.instance)
    return found if found is not None and found.mark and runs(found.pid, found.mark) else None


class InstanceLock:
    """The lock that one instance holds. The kernel releases it when the process ends, also by a kill."""

    def __init__(self, folders: LocalFolders) -> None:
        self._path = folders.lock
        self._held: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock. Raises InUse, OSError."""
        held = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE), "r+")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            raise InUse(f"another instance of local mode holds {self._path}") from None
        self._held = held

    def release(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.close()
            self._held = None


def end(instance: Instance, *, timeout_s: float) -> bool:
    """Ask an instance to stop, and wait. Returns whether it has ended. It stops its engines before it ends."""
    with contextlib.suppress(ProcessLookupError):
        if runs(instance.pid, instance.mark):
            os.kill(instance.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while runs(instance.pid, instance.mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
