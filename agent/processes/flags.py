"""Translates the flags of a plan for the installed llama-server, whose help shows which names it accepts.

Called by `agent.server.processes.launching` and `agent.client.ssh.steps` before a start. All hosts get the same plans,
but their releases of llama.cpp differ, and llama.cpp has renamed flags.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

RENAMED: dict[str, tuple[str, ...]] = {
    "--mlock": ("--load-mode", "mmap+mlock"),
    "--no-mmap": ("--load-mode", "none"),
}
"""Old flags to new ones, for releases that accept only the new ones."""

_A_FLAG = re.compile(r"--[a-z][a-z0-9-]*(=.*)?", re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_HELP_TIMEOUT_S = 20.0


class KnownFlags:
    """The flags of each binary, read once per installed file. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, tuple[str, ...], int, int, int], frozenset[str]] = {}

    def of(self, binary: str, *commands: str) -> frozenset[str]:
        """Return the long flags in the help of the binary, or of one of its commands. Empty if the help cannot be read.

        A binary that was replaced on disk is read again.
        """
        try:
            stat = Path(binary).stat()
        except OSError:
            return frozenset()
        key = (binary, commands, stat.st_mtime_ns, stat.st_size, stat.st_ino)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = _help_flags(binary, commands)
            with self._lock:
                self._known[key] = known
        return known


def translated_flags(arguments: Sequence[str], known: frozenset[str]) -> list[str]:
    """Replace each flag that the binary does not accept by its new name, if one is known.

    Other arguments stay; `unknown_flags` returns the flags that the binary would refuse.
    """
    said: list[str] = []
    for argument in arguments:
        new = RENAMED.get(argument)
        if new is not None and known and argument not in known and new[0] in known:
            said.extend(new)
        else:
            said.append(argument)
    return said


def unknown_flags(arguments: Sequence[str], known: frozenset[str]) -> tuple[str, ...]:
    """Return the long flags that the binary does not accept. Empty if its help could not be read."""
    if not known:
        return ()
    named = (argument.partition("=")[0] for argument in arguments if _A_FLAG.fullmatch(argument))
    return tuple(dict.fromkeys(flag for flag in named if flag not in known))


def version_of(binary: str) -> str:
    """Return the version that a binary prints, or an empty string if it prints none."""
    try:
        asked = subprocess.run([binary, "--version"], capture_output=True, timeout=_HELP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    said = (asked.stdout + asked.stderr).decode("utf-8", "replace")
    match = re.search(r"version(?: is|:)?\s*(\S+)", said)
    return match.group(1) if match else ""


def _help_flags(binary: str, commands: Sequence[str]) -> frozenset[str]:
    try:
        asked = subprocess.run([binary, *commands, "--help"], capture_output=True, timeout=_HELP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(_FLAG.findall((asked.stdout + asked.stderr).decode("utf-8", "replace")))
