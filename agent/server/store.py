"""The agent's directory on disk: models, logs, and what a restarted agent must know.

Called by `agent.server.main`, the supervisor and its workers. One agent per directory, ensured by a file lock. Layout:
`<cache key>/<file>` are models (`models.download`), `logs/` process output, `agent-state.json` the processes,
`agent-id` the agent's identity across restarts, `agent-token` the secret of the HTTP API.
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
    """Another agent works in this directory."""


class RunningRecord(Wire):
    """A process as written down; see `agent.processes.lifecycle.Running`."""

    pid: int
    mark: str
    port: int
    launch_hash: str
    started_at: str
    proved: bool = False
    plan: ProcessPlan | None = None
    """The plan that it was started by, where that is not the one that is wanted."""


class ProcessRecord(Wire):
    """What a restarted agent knows of one process before it has read its plan again."""

    plan: ProcessPlan
    generation: int = 0
    restarts: int = 0
    port: int | None = None
    """The last port, tried first at the next start."""
    running: RunningRecord | None = None
    unwanted: bool | None = None
    """It was to be removed, and the agent ended before it had stopped."""


class StateFile(Wire):
    """The content of `agent-state.json`."""

    version: int = 1
    processes: dict[str, ProcessRecord] = Field(default_factory=dict)


class Store:
    """One agent's directory. Safe for use by many threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self._records: dict[str, ProcessRecord] = {}
        self._lock = threading.Lock()
        self._held: IO[str] | None = None

    def open(self) -> str:
        """Create and lock the directory and give the agent's identity. Raises StoreInUse, OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        # A log may quote what people asked the model.
        self.logs.mkdir(mode=0o700, exist_ok=True)
        held = (self.root / LOCK_FILE).open("a")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            raise StoreInUse(f"another agent works in {self.root}; give each agent its own --store") from None
        self._held = held
        return _once(self.root / ID_FILE, lambda: secrets.token_hex(8))

    def close(self) -> None:
        """Let the next agent in."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def log_file(self, key: str) -> Path:
        """Name the log of a process; `key` is `namespace/name`."""
        # No Kubernetes name has an underscore, so two processes never share a file.
        return self.logs / f"{key.replace('/', '_')}.log"

    @property
    def token_file(self) -> Path:
        """Where the HTTP API's bearer token lies."""
        return self.root / TOKEN_FILE

    def token(self) -> str:
        """Give the HTTP API's bearer token, made at first use in a file that only its owner can read."""
        return _once(self.token_file, lambda: secrets.token_urlsafe(32))

    def metrics_token(self) -> str:
        """Give the token that opens /metrics alone, made at first use as the other is."""
        return _once(self.root / METRICS_TOKEN_FILE, lambda: secrets.token_urlsafe(32))

    def load(self) -> Mapping[str, ProcessRecord]:
        """Read what the agent before us wrote down; a file that cannot be read counts as empty."""
        try:
            state = StateFile.model_validate_json((self.root / STATE_FILE).read_bytes())
        except (FileNotFoundError, ValidationError):
            return {}
        with self._lock:
            self._records = dict(state.processes)
        return state.processes

    def records(self) -> dict[str, ProcessRecord]:
        """Give what is written down."""
        with self._lock:
            return dict(self._records)

    def write_record(self, key: str, record: ProcessRecord) -> None:
        """Write a process down; no write when nothing changed."""
        with self._lock:
            if self._records.get(key) != record:
                self._records[key] = record
                self._write()

    def remove_record(self, key: str) -> None:
        """Strike a process off."""
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
    """Read a small file, or create it with mode 0600 and what `make` gives."""
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
    """Replace a file as a whole by one with mode 0600. Raises OSError."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


RUN_FILE = "agent-run.json"


class RunFile(Wire):
    """One running agent."""

    pid: int
    version: str
    host: str
    plan_source: str
    http_port: int | None = None
    """Loopback port of its API; None where it runs none."""
    endpoint: str = ""
    """Its API beyond loopback."""
    token_file: str = ""


def write_run_file(store: Path, run: RunFile) -> None:
    """Say how this agent can be found. Raises OSError."""
    write_private(store / RUN_FILE, run.model_dump_json(by_alias=True))
