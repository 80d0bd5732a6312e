"""Starts and ends the processes of a node, and removes everything they leave.

Called by `node` and `tools.localcluster`.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

from tools.localcluster import processes
from tools.node import cgroups
from tools.node.layout import NodeLayout

_GRACE_S = 5.0


def start(layout: NodeLayout) -> None:
    """Start the processes of a node whose plan and configuration are written.

    Raises:
        OSError: they could not be started.
    """
    layout.note_provided(False)
    for folder in (layout.lib, layout.logs):
        folder.mkdir(parents=True, exist_ok=True)
    cgroups.make(layout.read_plan().network.cgroup)
    arguments = ["-m", "tools.node.keeper", str(layout.directory)]
    layout.write_record(processes.spawn(Path(sys.executable), arguments, log=layout.log("node")))


def runs(layout: NodeLayout) -> bool:
    return processes.find(layout.read_record(), layout.directory) is not None


def first_pid(layout: NodeLayout) -> int | None:
    """Return the first process inside the node's namespaces, by its number outside; None if there is none."""
    keeper = processes.find(layout.read_record(), layout.directory)
    for child in keeper.children() if keeper else ():
        for grandchild in child.children():
            return int(grandchild.pid)
    return None


def stop(layout: NodeLayout, *, purge: bool = False) -> bool:
    """End a node with all its pods; return whether it ran. Images and volumes stay unless `purge` is true."""
    layout.note_provided(False)
    record = layout.read_record()
    ran = processes.find(record, layout.directory) is not None
    if record is not None:
        processes.end([record], layout.directory, grace_s=_GRACE_S)
        with contextlib.suppress(OSError, ValueError, TypeError):  # without a plan there is nothing to remove
            network = layout.read_plan().network
            if ran:
                # The kernel keeps the network of a dead node while one of its connections still sends to a dead pod.
                subprocess.run(["ip", "link", "delete", network.device], capture_output=True, timeout=30, check=False)
            cgroups.remove(network.cgroup)
        layout.write_record(None)
    if purge and layout.directory.is_dir():
        _remove(layout.directory)
    return ran


def _remove(directory: Path) -> None:
    # Never delete across a file system that is mounted below the directory.
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    if not any(Path(line.split()[4]).is_relative_to(directory) for line in mounts):
        shutil.rmtree(directory, ignore_errors=True)
