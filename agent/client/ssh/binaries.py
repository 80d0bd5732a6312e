"""Finds the programs that plans name on a host over SSH, and asks llama-server for the flags that it knows.

Called by `processes`; asked once for each connection.
"""

from __future__ import annotations

import re

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.facts import SshFacts
from agent.contract import ProcessPlan

HELP_TIMEOUT_S = 30.0
_FIND = 'PATH="$PATH:/opt/homebrew/bin:/usr/local/bin:$HOME/.local/bin:$HOME/bin"; command -v -- "$1" || exit 0'
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


class Binaries:
    """The programs of one host, while a connection lasts."""

    def __init__(self, connection: SshConnection, facts: SshFacts) -> None:
        self._connection = connection
        self._found = dict(facts.binaries)
        self._flags: dict[str, frozenset[str]] = {}

    def find(self, name: str) -> str:
        """Give the path of a program, empty where it is not on the host; an absolute path is taken as it is."""
        if name.startswith("/") or not name:
            return name
        if not self._found.get(name):
            told = self._connection.shell(_FIND, what=f"looking for {name}", arguments=[name]).strip()
            # A shell's own words and functions have no path.
            self._found[name] = told if told.startswith("/") else ""
        return self._found[name]

    def flags(self, plan: ProcessPlan, binary: str) -> frozenset[str]:
        """Name the long flags that a llama-server's help lists; empty for other engines."""
        if plan.runtime != "llamacpp":
            return frozenset()
        if binary not in self._flags:
            said = self._connection.run([binary, "--help"], what=f"`{binary} --help`", timeout_s=HELP_TIMEOUT_S)
            self._flags[binary] = frozenset(_FLAG.findall((said.stdout + said.stderr).decode("utf-8", "replace")))
        return self._flags[binary]
