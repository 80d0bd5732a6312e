"""Speaks to a llama-server in the words of its release: flags that llama.cpp renamed, told by the binary's own help.

`worker` calls it before a start. Plans are the same for all hosts, and hosts have llama-servers of different ages.
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
"""Old words to new ones, where a release knows only the new."""

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_HELP_TIMEOUT_S = 20.0


class Vocabulary:
    """The flags of each binary, asked once for each installed file. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int, int], frozenset[str]] = {}

    def of(self, binary: str) -> frozenset[str]:
        """Name the long flags that the binary's help lists; empty when it could not be asked."""
        try:
            stat = Path(binary).stat()
        except OSError:
            return frozenset()
        key = (binary, stat.st_mtime_ns, stat.st_size)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = _ask(binary)
            with self._lock:
                self._known[key] = known
        return known


def spoken(arguments: Sequence[str], known: frozenset[str]) -> list[str]:
    """Replace each flag that the binary does not know by what it is called now, where that is known.

    Everything else stays: a flag that nobody knows is the user's, and the engine's own error about it is the best.
    """
    said: list[str] = []
    for argument in arguments:
        new = RENAMED.get(argument)
        if new is not None and known and argument not in known and new[0] in known:
            said.extend(new)
        else:
            said.append(argument)
    return said


def _ask(binary: str) -> frozenset[str]:
    try:
        asked = subprocess.run([binary, "--help"], capture_output=True, timeout=_HELP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(_FLAG.findall((asked.stdout + asked.stderr).decode("utf-8", "replace")))
