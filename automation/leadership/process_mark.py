"""A mark by which a process on the same machine can be proven dead, never wrongly.

`automation.leadership.election` writes it into the leader's Lease and reads it there: after a kill -9 the next loop on
the machine need not wait until the lease runs out. A change of the wall clock leaves marks as they are (docs/adr/0038).
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
    """The mark of this process: where its pid means something, the pid, and when the process began."""
    return mark_of(os.getpid()) or f"{_place()}/{os.getpid()}/"


def mark_of(pid: int) -> str | None:
    """The mark of a process of this machine; None when there is none."""
    started = identity.start_mark(pid)
    return f"{_place()}/{pid}/{started}" if started is not None else None


def is_dead(other: str) -> bool:
    """Whether the process of this mark is proven to be gone.

    False whenever there is doubt: another machine, another boot, another container, an unreadable mark, a mark of an
    earlier version whose pid is in use, since its start was told by the wall clock.
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
    """Whether the process of this mark is known to run; one of an earlier version by its start on the wall clock."""
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
    """Whether the mark is of a process of this boot of this machine, and of this pid namespace."""
    return other.rpartition("/")[0].rpartition("/")[0] == _place()


def _parsed(other: str) -> tuple[int, str] | None:
    """Take a mark apart into pid and start; None where the pid means nothing here."""
    place, _, number = other.rpartition("/")[0].rpartition("/")
    started = other.rpartition("/")[2]
    if not number.isdecimal() or int(number) <= 0 or place != _place():
        return None
    return (int(number), started) if _is_former(started) or ":" in started else None


def _is_former(started: str) -> bool:
    whole, point, rest = started.partition(".")
    return bool(point) and whole.isdecimal() and rest.isdecimal()


def _place() -> str:
    """This boot of this machine, and the pid namespace in it: containers share the boot, but not the pids."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_PID_NAMESPACE.stat().st_ino}"
    except OSError:
        return f"boot-{psutil.boot_time():.0f}/0"
