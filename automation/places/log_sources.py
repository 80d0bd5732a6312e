"""Sources of the log of a process on a host: the agent's directory on this machine, or the agent's API.

Called by `herdsman logs` and the web console.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.client.http import HttpHost, token_from
from agent.client.port import HostError, HostRefused, HostUnreachable, ProcessNotFound
from agent.client.ssh.layout import Layout
from agent.contract import LogPiece
from agent.server.daemons.plans import PREFIX, daemon_of
from agent.server.processes import process_log
from agent.server.store import ProcessRecord, Store
from kubeapi.json_types import Json

TOKEN_FILE_VARIABLE = "HERDSMAN_AGENT_TOKEN_FILE"  # noqa: S105 - the name of a variable


class NoLog(Exception):
    """There is no log to show. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class LogSource(Protocol):
    """Reads parts of one log. Raises NoLog."""

    def read(self, *, tail: int | None = None, offset: int | None = None, previous: bool = False) -> LogPiece: ...


@dataclass(frozen=True)
class FileLog:
    """A log in the directory of an agent on this machine."""

    path: Path

    def read(self, *, tail: int | None = None, offset: int | None = None, previous: bool = False) -> LogPiece:
        path = process_log.copy_of(self.path, 1) if previous else self.path
        try:
            piece = process_log.read(path, tail=tail, offset=offset)
        except OSError as error:
            raise NoLog(f"{path}: {error.strerror or error}", "the agent's user owns the logs: use sudo") from error
        if piece is None:
            raise NoLog(f"there is no {path}", "the log has not been rotated yet" if previous else "")
        return piece


@dataclass(frozen=True)
class AgentLog:
    """A log that the API of an agent serves."""

    host: HttpHost
    key: str

    def read(self, *, tail: int | None = None, offset: int | None = None, previous: bool = False) -> LogPiece:
        try:
            return self.host.log(self.key, tail=tail, offset=offset, previous=previous)
        except ProcessNotFound as error:
            raise NoLog(error.message, "the log has not been rotated yet" if previous else "") from error
        except HostUnreachable as error:
            raise NoLog(error.message, "check the agent with `herdsman doctor host NAME`") from error
        except HostError as error:
            hint = (
                f"name the file with this agent's token with --token-file or {TOKEN_FILE_VARIABLE}; an older agent "
                f"needs --endpoint"
            )
            raise NoLog(error.message, hint if error.reason in ("Unauthorized", "TokenMissing") else "") from error


def local_log(store: Path, *, service: str, namespace: str | None, replica: int) -> FileLog | None:
    """Return the log of a service in the directory of this machine's agent; None if it does not run the service.

    Raises NoLog when the directory exists and may not be read, or when the name is in several namespaces.
    """
    try:
        records = Store(store).load() if store.is_dir() else {}
    except OSError as error:
        raise NoLog(f"{store}: {error.strerror or error}", "the agent's user owns it: use sudo") from error
    found = [
        key
        for key, record in records.items()
        if record.plan.service == service
        and (record.plan.replica or 0) == replica
        and not key.startswith(PREFIX)
        and (namespace is None or key.partition("/")[0] == namespace)
    ]
    if len(found) > 1:
        namespaces = ", ".join(sorted(key.partition("/")[0] for key in found))
        raise NoLog(f"`{service}` is in several namespaces: {namespaces}", "name the namespace with -n")
    return FileLog(Store(store).log_file(_written_by(found[0], records, store))) if found else None


def _written_by(key: str, records: Mapping[str, ProcessRecord], store: Path) -> str:
    """Return the process that writes the output: for a model in a shared daemon, the daemon."""
    plan, running = records[key].plan, records[key].running
    if plan.daemon_model is None:
        return key
    for each, record in records.items():
        # The agent's OLLAMA_HOST, which the key may depend on, can differ from that of this command.
        if running is not None and record.port == running.port and each.startswith(PREFIX):
            return each
    return daemon_of(plan, store=store, address="", environment=os.environ).key


def agent_log(
    endpoint: str,
    key: str,
    *,
    token_file: Path | None,
    fingerprint: str = "",
    ca_file: Path | None = None,
    keep_token: bool = False,
) -> AgentLog:
    """Return a log by an agent's API. `keep_token` proves the token and does not send it. Raises NoLog."""
    named = token_file or (Path(given) if (given := os.environ.get(TOKEN_FILE_VARIABLE)) else None)
    if named is None:
        hint = f"name the file with the agent's token with --token-file or {TOKEN_FILE_VARIABLE}"
        raise NoLog(f"the agent at {endpoint} requires its token", hint)
    try:
        host = HttpHost(endpoint, token_from(named), fingerprint=fingerprint, ca_file=ca_file, keep_token=keep_token)
        return AgentLog(host, key)
    except HostRefused as error:
        raise NoLog(error.message) from error


def log_on_host(process: Json, host: Json | None, *, token_file: Path | None) -> AgentLog:
    """Return the log of a HostProcess, read from the agent at the address in the Host's status.

    The host writes that address, and the token may be another host's, so the token is not sent. Raises NoLog, whose
    message contains the remedy.
    """
    name = process["spec"]["host"]
    metadata = process["metadata"]
    here = f"run `herdsman logs {process['spec']['service']} -n {metadata['namespace']}` on `{name}` itself"
    if host is None:
        raise NoLog(f"the service runs on host `{name}`, but the cluster has no Host `{name}`", here)
    if (host.get("spec") or {}).get("transport") == "ssh":
        path = Layout("…").log(f"{metadata['namespace']}/{metadata['name']}")
        raise NoLog(
            f"host `{name}` is managed over SSH and has no agent that serves logs",
            f"its log is in the directory of Herdsman on `{name}`: `ssh {name} tail -f {path}`",
        )
    status = host.get("status") or {}
    if not status.get("endpoint"):
        raise NoLog(
            f"the agent of host `{name}` has no API for other machines",
            f"start it with --http-address, or {here}",
        )
    return agent_log(
        str(status["endpoint"]),
        f"{metadata['namespace']}/{metadata['name']}",
        token_file=token_file,
        fingerprint=str(status.get("tlsFingerprint") or ""),
        keep_token=True,
    )
