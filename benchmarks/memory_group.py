"""A control group that counts and limits the memory of a process and its children, as a pod's does.

Works with versions 1 and 2 of control groups. Needs root on Linux.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.node import cgroups


@dataclass(frozen=True)
class Reading:
    """The memory of a group at one moment, in bytes."""

    anonymous: int
    """Memory of processes, which the kernel cannot reclaim."""
    file: int
    """Page cache, which the kernel reclaims when memory is needed."""
    total: int
    """Both, and the kernel's own memory for the group."""

    @property
    def held(self) -> int:
        """The memory without the page cache, which the group cannot give up."""
        return self.total - self.file


class MemoryGroup:
    """One group. `limit` is in bytes; 0 means no limit."""

    def __init__(self, name: str, limit: int = 0, root: Path = cgroups.ROOT) -> None:
        self._unified = (root / "cgroup.controllers").is_file()
        self._path = (root if self._unified else root / "memory") / name
        if limit:
            (self._path / ("memory.max" if self._unified else "memory.limit_in_bytes")).write_text(str(limit))

    def entering(self, command: str) -> str:
        """Return the command line that runs `command` in the group."""
        script = f"echo $$ > {shlex.quote(str(self._path / 'cgroup.procs'))} && exec {command}"
        return shlex.join(["sh", "-c", script])

    def read(self) -> Reading:
        """Return the current memory of the group."""
        numbers = _table(self._path / "memory.stat")
        if self._unified:
            current = int((self._path / "memory.current").read_text())
            return Reading(numbers["anon"], numbers["file"], current)
        usage = int((self._path / "memory.usage_in_bytes").read_text())
        return Reading(numbers["total_rss"], numbers["total_cache"], usage)

    @property
    def kills(self) -> int:
        """The number of processes that the kernel killed because the group was full."""
        return _table(self._path / ("memory.events" if self._unified else "memory.oom_control")).get("oom_kill", 0)


@contextlib.contextmanager
def memory_group(limit: int = 0) -> Iterator[MemoryGroup]:
    """Make a group for the block. Its processes must have ended at the end of the block."""
    name = f"herdsman-bench-{os.getpid()}-{time.monotonic_ns()}"
    cgroups.make(name)
    try:
        yield MemoryGroup(name, limit)
    finally:
        cgroups.remove(name)


def _table(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}
