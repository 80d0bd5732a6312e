"""Asks a process on a host over SSH, through the connection: its health, one completion, whether it is busy, its log.

No port of the host has to be open for that. Called by `processes`.
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
    """Questions to the processes of one host, one at a time. Answers None, or what is wrong."""

    def __init__(self, connection: SshConnection) -> None:
        self._connection = connection
        self._probe = EngineProbe(connection.http)

    def health(self, record: Record, remote: RemoteHost) -> str | None:
        """Ask for its health."""
        return self._probe.health(remote.facts.address, record.port, record.plan.health_path, timeout_s=TIMEOUT_S)

    def completion(self, record: Record, remote: RemoteHost) -> str | None:
        """Ask for the smallest real answer; a plan without a path for that is content with health."""
        path = record.plan.completion_path
        if path is None:
            return None
        return self._probe.completion(
            remote.facts.address, record.port, path, model=record.plan.service, timeout_s=COMPLETION_TIMEOUT_S
        )

    def busy(self, record: Record, remote: RemoteHost) -> bool | None:
        """Ask whether a request is under way; None when it does not say."""
        for question in idle_questions(record.plan):
            status, body = self._probe.get(remote.facts.address, record.port, question.path, timeout_s=TIMEOUT_S)
            told = True if status == 0 else is_busy_by(question, status, body)
            if told is not None:
                return told
        return None

    def last_words(self, key: str, remote: RemoteHost) -> str:
        """Give the end of its log, as far as it can be read."""
        path = remote.layout.log(key)
        try:
            # A unit of the system has its log opened by root.
            said = self._connection.shell(_LAST_WORDS, what="reading the log", arguments=[path], sudo=True)
        except HostRefused:
            return ""
        return said[-MOST_WORDS:].strip()
