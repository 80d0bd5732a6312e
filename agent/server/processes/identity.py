"""Identifies a process by what a change of the wall clock does not move (docs/adr/0038). Called wherever a pid is kept.

A pid alone says nothing: the kernel gives it to another process later. psutil's `create_time` counts from the wall
clock: on Linux it moves with each step of the clock, on macOS it is corrected by what psutil saw at its import.
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
"""Environment variable of every process that an agent started: who started it, for which key, how. It finds a process
whose agent died before it could write down the pid."""

_FORMER = re.compile(r"\d+\.\d{6}")
"""A mark of an earlier version on macOS: psutil's `create_time`."""
_FORMER_TOLERANCE_S = 1.0
_COMMAND_TIMEOUT_S = 10.0


class Presence(enum.Enum):
    """Whether the process that a mark was taken of is there."""

    RUNS = "runs"
    GONE = "gone"
    OTHER = "other"
    """Its pid belongs to another process: it is gone, and so is its session, whose number the pid was."""
    UNKNOWN = "unknown"
    """The system does not say."""


class _Unknown(Exception):
    """The system does not say which process has a pid."""


def start_mark(pid: int) -> str | None:
    """Identify the process that has this pid now; None when there is none, or only a zombie, or the system is silent.

    On Linux: boot and start in clock ticks since boot. Elsewhere: boot and the start time that the kernel recorded,
    which a later change of the clock does not touch.
    """
    try:
        return _mark(pid)
    except _Unknown:
        return None


def presence(pid: int, mark: str) -> Presence:
    """Tell whether the process with this pid is the one that the mark was taken of."""
    try:
        now = _mark(pid)
    except _Unknown:
        return Presence.UNKNOWN
    if now is None:
        return Presence.GONE
    return Presence.RUNS if now == mark or _is_former(pid, mark, now) else Presence.OTHER


def runs(pid: int, mark: str) -> bool:
    """Tell whether the process that the mark was taken of is known to run."""
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
    """Ask ps, which prints the kernel's record as it is; psutil corrects it. Raises _Unknown."""
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
    """Tell whether an earlier version took this mark of the process; empty: the system was silent at its start.

    The number is right unless the clock was set while that agent ran. Then the process is known by its environment: it
    leads a session and carries an agent's marker, as only a process does that an agent started.
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
    """Ask macOS which boot this is; 0 where it does not say."""
    try:
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    return told[:8] or "0"
