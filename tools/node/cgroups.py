"""The control group of a node's pods: one folder in each hierarchy, made before the start and removed after the end.

Works with the separate hierarchies of version 1, even if version 2 is mounted too, and with version 2 alone.
"""

from __future__ import annotations

import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids")
"""Controllers without which kubelet does not run. Version 2 counts CPU time without a controller (cpuacct)."""
_REMOVAL_S = 10.0


def missing(root: Path = ROOT) -> list[str]:
    """Return the controllers that kubelet needs and this machine lacks."""
    if _unified(root):
        present = (root / "cgroup.controllers").read_text().split()
        return [name for name in CONTROLLERS if name != "cpuacct" and name not in present]
    return [name for name in CONTROLLERS if not (root / name).is_dir()]


def make(name: str, root: Path = ROOT) -> None:
    """Make the group in every hierarchy.

    Raises:
        OSError: this user has no right to.
    """
    if _unified(root):
        wanted = " ".join(f"+{controller}" for controller in CONTROLLERS if controller != "cpuacct")
        (root / "cgroup.subtree_control").write_text(wanted)
    for hierarchy in _hierarchies(root):
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            # In version 1 a new group may use no processor until these files are set.
            own, parent = group / file, hierarchy / file
            if own.is_file() and parent.is_file() and not own.read_text().strip():
                own.write_text(parent.read_text())


def remove(name: str, root: Path = ROOT) -> bool:
    """Remove the group and all groups below it; return whether none is left. Their processes must have ended."""
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        left = [group for hierarchy in _hierarchies(root) if (group := hierarchy / name).is_dir() and not _gone(group)]
        if not left or time.monotonic() > deadline:
            return not left
        time.sleep(0.05)  # a killed process leaves its group shortly after its end


def _gone(group: Path) -> bool:
    below = sorted((path for path in group.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    for folder in (*below, group):
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _hierarchies(root: Path) -> list[Path]:
    if _unified(root):
        return [root]
    # A controller's second name (cpuacct for cpu,cpuacct) is a link to the first.
    return sorted({path.resolve() for path in root.iterdir() if path.is_dir()})


def _unified(root: Path) -> bool:
    return (root / "cgroup.controllers").is_file()
