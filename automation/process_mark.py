"""A mark by which a process on the same machine can be proven dead, never wrongly.

Written into the leader's Lease by `automation.leader`, and read there: after a kill -9 the next loop on the machine
need not wait until the lease runs out.
"""

from __future__ import annotations

import os
import pathlib

import psutil

_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = pathlib.Path("/proc/self/ns/pid")
_TOLERANCE_S = 2.0


def mark() -> str:
    """The mark of this process: where its pid means something, the pid, and when the process began."""
    return f"{_place()}/{os.getpid()}/{psutil.Process().create_time():.2f}"


def is_dead(other: str) -> bool:
    """Whether the process of this mark is proven to be gone.

    False whenever there is doubt: another machine, another boot, another container, an unreadable mark.
    """
    place, _, rest = other.rpartition("/")[0].rpartition("/")
    try:
        pid, started = int(rest), float(other.rpartition("/")[2])
    except ValueError:
        return False
    if pid <= 0 or place != _place():
        return False
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or abs(process.create_time() - started) > _TOLERANCE_S
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def is_here(other: str) -> bool:
    """Whether the mark is of a process of this boot of this machine, and of this pid namespace."""
    return other.rpartition("/")[0].rpartition("/")[0] == _place()


def _place() -> str:
    """This boot of this machine, and the pid namespace in it: containers share the boot, but not the pids."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_PID_NAMESPACE.stat().st_ino}"
    except OSError:
        return f"boot-{psutil.boot_time():.0f}/0"
