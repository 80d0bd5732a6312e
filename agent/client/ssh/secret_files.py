"""Reads values of secret variables that the owner of a host over SSH put there. Called by `processes`.

A file counts under the conditions that an agent sets on its own machine (`agent.processes.secret_values`).
"""

from __future__ import annotations

from agent.client.ssh.machine import SshMachine
from agent.client.ssh.scripts import script
from agent.processes.secret_values import MAX_BYTES, SecretUnavailable

_NOTHING_THERE = 44
_REFUSED = 45


class SecretFiles:
    """The directory with the values, on one host."""

    def __init__(self, machine: SshMachine, folder: str) -> None:
        self._machine = machine
        self._folder = folder

    def read(self, parts: tuple[str, str, str]) -> bytes | None:
        """Read one value; None where the host has no file for it. Raises SecretUnavailable, HostError, MachineError."""
        facts = self._machine.facts
        folder = self._folder
        if folder == "~" or folder.startswith("~/"):
            folder = facts.home + folder[1:]
        if not folder.startswith("/"):
            raise SecretUnavailable(f"spec.ssh.secrets: `{folder}` is no absolute path")
        argv = ["sh", "-c", script("secret_file"), "sh", folder, *parts, str(facts.uid), str(MAX_BYTES + 3)]
        ended = self._machine.run(argv, sudo=self._machine.may_be_root)
        if ended.code == _NOTHING_THERE:
            return None
        if ended.code != 0:
            raise SecretUnavailable(ended.complaint or f"{folder}/{'/'.join(parts)} cannot be read")
        return ended.stdout
