"""Reads the memory limit of this process's control group, and how many processes the kernel killed for it.

Called by `cli_process`: when the kernel kills an engine process and not the loop, only this shows why it ended. Works
with control groups of version 1 and 2, in a container and outside; on other systems the results are None.
"""

from __future__ import annotations

from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""Version 1 writes a number of about this size where there is no limit."""


def oom_kills(*, groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """Return how many processes of the group were killed for lack of memory; None where that is not counted."""
    for name in ("memory.oom_control", "memory.events"):
        for line in _read(groups, root, name).splitlines():
            word, _, number = line.partition(" ")
            if word == "oom_kill" and number.isdecimal():
                return int(number)
    return None


def limit_bytes(*, groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """Return the limit of the group itself; None when it has none."""
    for name in ("memory.limit_in_bytes", "memory.max"):
        text = _read(groups, root, name).strip()
        if text.isdecimal() and int(text) < _NO_LIMIT:
            return int(text)
    return None


def _read(groups: Path, root: Path, name: str) -> str:
    """Read a file of the group; empty where there is none of that name."""
    for folder in _folders(groups, root):
        try:
            return (folder / name).read_text()
        except OSError:
            continue
    return ""


def _folders(groups: Path, root: Path) -> list[Path]:
    """The directories that the group may have: by its path, or in a container the root."""
    found = []
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            found += [root / "memory" / path.lstrip("/"), root / "memory"]
        elif not controllers:
            found += [root / path.lstrip("/"), root]
    return found
