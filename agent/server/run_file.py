"""Where the running agent of a store can be found, for commands on the same machine: `agent status`, `agent uninstall`.

Written by `agent.server.main` once it listens. That an agent died is seen by its pid.
"""

from __future__ import annotations

from pathlib import Path

from agent.contract import Wire
from agent.server.store import write_private

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
