"""A mark by which a process on the same machine can be proven dead, never wrongly.

`automation.leadership.election` writes it into the leader's Lease and reads it there. After a kill -9 the next loop on
the machine does not wait until the lease expires. A change of the wall clock does not change marks (docs/adr/0038).
"""

from __future__ import annotations

import os
import pathlib

import psutil

from agent.server.processes import identity
from agent.server.processes.identity import Presence

_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = pathlib.Path("/proc/self/ns/pid")
_FORMER_TOLERANCE_S = 2.0


def mark() -> str:
    """Return the mark of this process: the boot and pid namespace, the pid, and the start of the process."""
    return mark_of(os.getpid()) or f"{_place()}/{os.getpid()}/"


def mark_of(pid: int) -> str | None:
    """Return the mark of a process of this machine; None when it does not exist."""
    started = identity.start_mark(pid)
    return f"{_place()}/{pid}/{started}" if started is not None else None


def is_dead(other: str) -> bool:
    """Return whether the process of this mark is proven dead.

    False when in doubt: another machine, another boot, another container, an invalid mark, or a mark of a
    development version whose pid is in use, because it has the start by the wall clock.
    """
    parsed = _parsed(other)
    if parsed is None:
        return False
    pid, started = parsed
    presence = identity.presence(pid, started)
    if _is_former(started):
        return presence is Presence.GONE
    return presence in (Presence.GONE, Presence.OTHER)


def runs(other: str) -> bool:
    """Return whether the process of this mark runs. Marks of development versions have the start by the wall clock."""
    parsed = _parsed(other)
    if parsed is None:
        return False
    pid, started = parsed
    if not _is_former(started):
        return identity.runs(pid, started)
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - float(started)) <= _FORMER_TOLERANCE_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_here(other: str) -> bool:
    """Return whether the mark is of this machine, this boot and this pid namespace."""
    return other.rpartition("/")[0].rpartition("/")[0] == _place()


def _parsed(other: str) -> tuple[int, str] | None:
    """Split a mark into pid and start; None when the pid is of another machine or pid namespace."""
    place, _, number = other.rpartition("/")[0].rpartition("/")
    started = other.rpartition("/")[2]
    if not number.isdecimal() or int(number) <= 0 or place != _place():
        return None
    return (int(number), started) if _is_former(started) or ":" in started else None


def _is_former(started: str) -> bool:
    whole, point, rest = started.partition(".")
    return bool(point) and whole.isdecimal() and rest.isdecimal()


def _place() -> str:
    """Return an identifier of this boot and of the pid namespace: containers share the boot, and not the pids."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_PID_NAMESPACE.stat().st_ino}"
    except OSError:
        return f"boot-{psutil.boot_time():.0f}/0"
