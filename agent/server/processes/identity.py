"""Identifies a process by a mark that stays valid when the wall clock changes (docs/adr/0038).

Used wherever a pid is stored. A pid alone does not identify a process, because the kernel reuses it later. psutil's
`create_time` depends on the wall clock: on Linux it changes with each step of the clock, and on macOS psutil corrects
it by an offset that it measured at its import.
"""

from __future__ import annotations

import calendar
import contextlib
import enum
import functools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil

MARKER = "HERDSMAN_PROCESS"
"""Environment variable of every process that an agent starts. It contains the agent's identity, the key, the launch
hash and the port. With it an agent finds a process even if the earlier agent ended before it could store the pid."""

_FORMER = re.compile(r"\d+\.\d{6}")
"""A mark of a development version on macOS: psutil's `create_time`."""
_FORMER_TOLERANCE_S = 1.0
_COMMAND_TIMEOUT_S = 10.0


class Presence(enum.Enum):
    """Whether the process of a mark still runs."""

    RUNS = "runs"
    GONE = "gone"
    OTHER = "other"
    """The pid belongs to another process. The process and its session have ended, because the pid was the number of the
    session."""
    UNKNOWN = "unknown"
    """The system does not show which process has the pid."""


class _Unknown(Exception):
    """The system does not show which process has a pid."""


def start_mark(pid: int) -> str | None:
    """Return the mark of the process that has this pid.

    None: there is no such process, only a zombie, or it is unknown. On Linux the mark consists of the boot and the
    start in clock ticks since boot. Elsewhere it consists of the boot and the start time that the kernel recorded,
    which a later change of the clock does not affect.
    """
    try:
        return _mark(pid)
    except _Unknown:
        return None


def presence(pid: int, mark: str) -> Presence:
    """Return whether the process with this pid is the process of the mark."""
    try:
        now = _mark(pid)
    except _Unknown:
        return Presence.UNKNOWN
    if now is None:
        return Presence.GONE
    return Presence.RUNS if now == mark or _is_former(pid, mark, now) else Presence.OTHER


def runs(pid: int, mark: str) -> bool:
    """Return whether the process of the mark certainly runs."""
    return presence(pid, mark) is Presence.RUNS


def _mark(pid: int) -> str | None:
    if sys.platform == "linux":
        return _linux_mark(pid)
    started = _recorded_start_s(pid)
    return None if started is None else f"{_boot_session()}:{started}"


def _linux_mark(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise _Unknown from error
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_boot_id()}:{fields[19].decode()}"


def _recorded_start_s(pid: int) -> int | None:
    """Read the start time from ps, which prints the kernel's record unchanged; psutil corrects it. Raises _Unknown.

    Returns None if there is no such process or only a zombie.
    """
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC0"}
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_TIMEOUT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unknown from error
    state, _, started = asked.stdout.strip().partition(" ")
    if not state and not asked.stderr.strip():
        return None
    if state.startswith("Z"):
        return None
    try:
        return calendar.timegm(time.strptime(" ".join(started.split()), "%a %b %d %H:%M:%S %Y"))
    except ValueError as error:
        raise _Unknown from error


def _is_former(pid: int, mark: str, now: str) -> bool:
    """Return whether a development version made this mark of the process. It is empty if it was unknown at the start.

    A mark of macOS matches unless the clock was set while that agent ran. In that case the environment identifies the
    process: only a process that an agent started leads a session and has an agent's marker.
    """
    if mark:
        if sys.platform == "linux" or _FORMER.fullmatch(mark) is None:
            return False
        if abs(float(mark) - int(now.rpartition(":")[2])) <= _FORMER_TOLERANCE_S:
            return True
    with contextlib.suppress(OSError, psutil.Error):
        return os.getsid(pid) == pid and MARKER in psutil.Process(pid).environ()
    return False


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]


@functools.cache
def _boot_session() -> str:
    """Return an identifier of the current boot of macOS, or `0` if it is unknown."""
    try:
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    return told[:8] or "0"
