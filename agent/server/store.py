"""The agent's directory on disk: models, logs, and the state that the next agent needs.

Called by `agent.server.main`, the supervisor and its workers. A file lock ensures that only one agent uses a directory.
Layout: `<cache key>/<file>` are models (`models.download`), `logs/` is the output of processes, `agent-state.json`
contains the processes, `agent-id` the agent's identity across restarts, `agent-token` the token of the HTTP API.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from pydantic import Field, ValidationError

from agent.contract import ProcessPlan, Wire

STATE_FILE = "agent-state.json"
ID_FILE = "agent-id"
TOKEN_FILE = "agent-token"  # noqa: S105 - the file's name, not a token
METRICS_TOKEN_FILE = "agent-metrics-token"  # noqa: S105 - the file's name, not a token
LOCK_FILE = "agent.lock"


class StoreInUse(Exception):
    """Another agent uses this directory."""


class RunningRecord(Wire):
    """The stored form of `agent.processes.lifecycle.Running`."""

    pid: int
    mark: str
    port: int
    launch_hash: str
    started_at: str
    proved: bool = False
    plan: ProcessPlan | None = None
    """The plan of the running process, if it differs from the desired one."""
    reserved_bytes: int | None = None
    """For a model in a shared daemon: the memory with which it was admitted, which cannot be measured later."""


class ProcessRecord(Wire):
    """The record of one process, which a restarted agent uses before it has read its plan again."""

    plan: ProcessPlan
    generation: int = 0
    restarts: int = 0
    port: int | None = None
    """The last port, tried first at the next start."""
    running: RunningRecord | None = None
    unwanted: bool | None = None
    """The process was being removed when the agent ended."""


class StateFile(Wire):
    """The content of `agent-state.json`."""

    version: int = 1
    processes: dict[str, ProcessRecord] = Field(default_factory=dict)


class Store:
    """One agent's directory. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self._records: dict[str, ProcessRecord] = {}
        self._lock = threading.Lock()
        self._held: IO[str] | None = None

    def open(self) -> str:
        """Create and lock the directory. Returns the agent's identity. Raises StoreInUse, OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        # A log may contain the prompts of clients.
        self.logs.mkdir(mode=0o700, exist_ok=True)
        held = (self.root / LOCK_FILE).open("a")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            raise StoreInUse(f"another agent uses {self.root}; give each agent a separate --store") from None
        self._held = held
        return _once(self.root / ID_FILE, lambda: secrets.token_hex(8))

    def close(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def log_file(self, key: str) -> Path:
        """Return the path of a process's log; `key` is `namespace/name`."""
        # Kubernetes names contain no underscore, so two processes never share a file.
        return self.logs / f"{key.replace('/', '_')}.log"

    @property
    def token_file(self) -> Path:
        """The file with the bearer token of the HTTP API."""
        return self.root / TOKEN_FILE

    def token(self) -> str:
        """Return the bearer token of the HTTP API. It is made at first use, in a file that only its owner can read."""
        return _once(self.token_file, lambda: secrets.token_urlsafe(32))

    def metrics_token(self) -> str:
        """Return the token that is valid for /metrics only. It is made at first use, in the same way."""
        return _once(self.root / METRICS_TOKEN_FILE, lambda: secrets.token_urlsafe(32))

    def load(self) -> Mapping[str, ProcessRecord]:
        """Read the records of the previous agent. A file that cannot be read counts as empty."""
        try:
            state = StateFile.model_validate_json((self.root / STATE_FILE).read_bytes())
        except (FileNotFoundError, ValidationError):
            return {}
        with self._lock:
            self._records = dict(state.processes)
        return state.processes

    def records(self) -> dict[str, ProcessRecord]:
        """Return the stored records by process."""
        with self._lock:
            return dict(self._records)

    def write_record(self, key: str, record: ProcessRecord) -> None:
        """Store the record of a process if it has changed."""
        with self._lock:
            if self._records.get(key) != record:
                self._records[key] = record
                self._write()

    def remove_record(self, key: str) -> None:
        """Remove the record of a process."""
        with self._lock:
            if self._records.pop(key, None) is not None:
                self._write()

    def _write(self) -> None:
        state = StateFile(processes=self._records)
        write_private(
            self.root / STATE_FILE,
            json.dumps(state.model_dump(mode="json", by_alias=True, exclude_none=True), indent=1),
        )


def _once(path: Path, make: Callable[[], str]) -> str:
    """Read a small file, or create it with mode 0600 and the result of `make`."""
    try:
        text = path.read_text().strip()
        if text:
            return text
    except FileNotFoundError:
        pass
    text = make()
    write_private(path, text + "\n")
    return text


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically by one with mode 0600. Raises OSError."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


RUN_FILE = "agent-run.json"


class RunFile(Wire):
    """The properties of a running agent, for commands on the same host."""

    pid: int
    version: str
    host: str
    plan_source: str
    http_port: int | None = None
    """Port of its API on loopback. None: it has no API."""
    endpoint: str = ""
    """URL of its API beyond loopback."""
    token_file: str = ""


def write_run_file(store: Path, run: RunFile) -> None:
    """Write the file by which commands find this agent. Raises OSError."""
    write_private(store / RUN_FILE, run.model_dump_json(by_alias=True))
