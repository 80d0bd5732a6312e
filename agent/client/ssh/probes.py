"""Checks of a process on a host through the SSH connection: health, one completion, running requests, and its log.

The host needs no open port for this. Called by `processes`.
"""

from __future__ import annotations

from agent.client.port import HostRefused
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.layout import Record
from agent.client.ssh.steps import RemoteHost
from agent.processes.draining import is_busy_by
from agent.processes.engine_probe import EngineProbe
from agent.processes.engines import idle_questions

TIMEOUT_S = 3.0
COMPLETION_TIMEOUT_S = 60.0
MOST_WORDS = 1500
_LAST_WORDS = 'tail -n 12 -- "$1" 2>/dev/null || exit 0'


class ProcessProbes:
    """Checks of the processes of one host, one at a time. Health and completion return None or the failure."""

    def __init__(self, connection: SshConnection) -> None:
        self._connection = connection
        self._probe = EngineProbe(connection.http)

    def health(self, record: Record, remote: RemoteHost) -> str | None:
        """Check the health of a process."""
        return self._probe.health(remote.facts.address, record.port, record.plan.health_path, timeout_s=TIMEOUT_S)

    def completion(self, record: Record, remote: RemoteHost) -> str | None:
        """Send the smallest real request. Returns None if the plan has no path for it."""
        path = record.plan.completion_path
        if path is None:
            return None
        return self._probe.completion(
            remote.facts.address, record.port, path, model=record.plan.service, timeout_s=COMPLETION_TIMEOUT_S
        )

    def busy(self, record: Record, remote: RemoteHost) -> bool | None:
        """Return whether a request is running, or None if that is unknown."""
        for question in idle_questions(record.plan):
            status, body = self._probe.get(remote.facts.address, record.port, question.path, timeout_s=TIMEOUT_S)
            told = True if status == 0 else is_busy_by(question, status, body)
            if told is not None:
                return told
        return None

    def last_words(self, key: str, remote: RemoteHost) -> str:
        """Return the end of a process's log, or an empty string if it cannot be read."""
        path = remote.layout.log(key)
        try:
            # For a system unit, root opens the log.
            said = self._connection.shell(_LAST_WORDS, what="reading the log", arguments=[path], sudo=True)
        except HostRefused:
            return ""
        return said[-MOST_WORDS:].strip()
