"""Starts processes that outlive their starter, and signals only these. Called by `cluster`.

A process is identified by its number, its start time and the cluster's directory in its arguments. The number alone may
by now belong to another process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tools.localcluster.layout import ProcessRecord

_SAME_START_S = 2.0
"""Tolerance in seconds: psutil computes start times from the wall clock, which may be adjusted."""
_SAME_TICK_S = 0.02
"""Tolerance in seconds of times since the boot, which have the precision of the kernel's ticks."""
_POLL_S = 0.02
_LOG_BYTES = 10 * 1024 * 1024


def spawn(program: Path, arguments: Sequence[str], *, log: Path) -> ProcessRecord:
    """Start a program in a new session, with its output appended to the log.

    Raises:
        OSError: it could not be started.
    """
    if log.is_file() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    # subprocess is not used: its Popen object warns, and waits for the child, if the starter ends before the child.
    pid = os.posix_spawn(
        str(program),
        [str(program), *arguments],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
    )
    process = psutil.Process(pid)
    return ProcessRecord(pid, process.create_time(), since_boot_s(process))


def find(record: ProcessRecord | None, directory: Path) -> psutil.Process | None:
    """Return the recorded process if it runs and is the one that was started; None otherwise."""
    if record is None:
        return None
    try:
        process = psutil.Process(record.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            if _threads_left(process):
                return process
            _reap(record.pid)
            return None
        same = _is_same_start(process, record)
        arguments = process.cmdline()
    except psutil.ZombieProcess:
        _reap(record.pid)
        return None
    except psutil.Error:
        return None
    # An ending process has lost its arguments already, and may still hold its port.
    ours = not arguments or any(str(directory) in argument for argument in arguments)
    return process if same and ours else None


def send(record: ProcessRecord | None, directory: Path, number: signal.Signals) -> bool:
    """Send a signal to the recorded process; return whether it runs."""
    process = find(record, directory)
    if process is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
    return True


def end(records: Sequence[ProcessRecord], directory: Path, *, grace_s: float) -> None:
    """Ask all processes to end, wait, and kill the remaining ones.

    Returns when none is left, at the latest 10 s after that.
    """
    for record in records:
        send(record, directory, signal.SIGTERM)
        send(record, directory, signal.SIGCONT)  # a stopped process handles the first signal only when it continues
    for record in _wait(records, directory, timeout_s=grace_s):
        send(record, directory, signal.SIGKILL)
    _wait(records, directory, timeout_s=10)


def _wait(records: Sequence[ProcessRecord], directory: Path, *, timeout_s: float) -> list[ProcessRecord]:
    """Wait until the processes have ended; return the remaining ones."""
    # psutil's wait is not used: for a child of another command it waits until the system's first process has reaped it.
    deadline = time.monotonic() + timeout_s
    alive = list(records)
    while True:
        alive = [record for record in alive if find(record, directory) is not None]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(_POLL_S)


def _is_same_start(process: psutil.Process, record: ProcessRecord) -> bool:
    found_s = since_boot_s(process)
    if found_s and record.since_boot_s:
        return abs(found_s - record.since_boot_s) < _SAME_TICK_S
    return abs(process.create_time() - record.started_at_s) < _SAME_START_S


def since_boot_s(process: psutil.Process) -> float:
    """Return the start time of the process in seconds since the boot; 0 if the system does not report it."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _threads_left(process: psutil.Process) -> bool:
    # The first thread of a killed program ends before the others, which hold its sockets until they end too.
    try:
        return process.num_threads() > 1
    except psutil.Error:
        return False


def _reap(pid: int) -> None:
    # Only the parent can reap; if another command was the starter, the system's first process does it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
