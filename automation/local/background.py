"""Starts an instance in the background and ends one, with everything that it left behind. Used by the commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from agent.server.store import ID_FILE
from automation.local.folders import PRIVATE_FILE, LocalFolders
from automation.local.instance import Instance, end, running_instance

START_S = 60.0
STOP_S = 120.0
"""An instance stops its gateway (5 s), the engine's run (20 s) and its engines (60 s) before it ends."""
KILL_S = 5.0
POLL_S = 0.05
LOG_BYTES = 10 << 20
"""A larger log is kept as `local.log.1` at the next start."""
_SHOWN_LINES = 6


class NotStarted(Exception):
    """The instance did not start. The text is the end of its log."""


def command(listen: str, allowed_remote_hosts: tuple[str, ...]) -> list[str]:
    """Return the command of an instance in the foreground."""
    hosts = [word for host in allowed_remote_hosts for word in ("--allowed-remote-host", host)]
    return [sys.executable, "-m", "automation.cli", "local", "up", "--foreground", "--listen", listen, *hosts]


def start(folders: LocalFolders, argv: list[str], *, timeout_s: float = START_S) -> Instance:
    """Start an instance as a process of its own, which outlives the terminal, and wait until it serves.

    Raises NotStarted, OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        if folders.log.stat().st_size > LOG_BYTES:
            folders.log.replace(folders.log.with_suffix(".log.1"))
    log = os.open(folders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
    try:
        before = os.fstat(log).st_size
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    finally:
        os.close(log)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = running_instance(folders)
        if found is not None and found.pid == process.pid and found.is_serving:
            return found
        if process.poll() is not None:
            raise NotStarted(_last_lines(folders.log, before) or f"it ended with exit code {process.returncode}")
        time.sleep(POLL_S)
    process.terminate()
    raise NotStarted(f"it did not start within {timeout_s:g} s; {_last_lines(folders.log, before)}".rstrip("; "))


def wait_until_serving(folders: LocalFolders, *, timeout_s: float = START_S) -> Instance | None:
    """Wait for an instance that something else starts. None if it does not serve in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = running_instance(folders)
        if found is not None and found.is_serving:
            return found
        time.sleep(POLL_S)
    return None


def stop(folders: LocalFolders, *, timeout_s: float = STOP_S) -> bool:
    """End the instance and the engines that it started, and wait. Returns whether all have ended.

    Engines of an instance that was killed are found by the mark that their agent gave them. No other process is ended.
    """
    found = running_instance(folders)
    if found is not None and not end(found, timeout_s=timeout_s):
        return False
    folders.instance.unlink(missing_ok=True)
    return end_engines(folders.store)


def end_engines(store: Path) -> bool:
    """End the processes that the agent of a store started. Returns whether all have ended."""
    from agent.server.processes.process import marked_processes

    try:
        identity = (store / ID_FILE).read_text().strip()
    except FileNotFoundError:
        return True
    if not identity:
        return True
    left: list[psutil.Process] = []
    for _, handle in (each for found in marked_processes(identity).values() for each in found):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(handle.pid))
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)  # psutil checks that the pid was not reused
        _, left = psutil.wait_procs(left, KILL_S)
    return not left


def _last_lines(log: Path, start_at: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(start_at)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line.removeprefix("Error: ") for line in lines[-_SHOWN_LINES:] if line.strip())
