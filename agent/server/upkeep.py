"""Keeps a Mac awake while a process runs on it, and the agent's log within its size. One thread, every few seconds.

Started by `agent.server.main`. launchd does not limit the file that it writes output to, and newsyslog needs root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from agent.server.processes import process_log
from agent.steps.service import MARK

INTERVAL_S = 5.0
_STREAMS = (1, 2)
_PATH_BYTES = 1024

_log = structlog.get_logger(__name__)


class PowerAssertion:
    """Keeps an idle Mac from sleeping while it is held: `caffeinate`, which ends with the agent, however that ends."""

    def __init__(self, program: str | None) -> None:
        """`program` None: this machine has no such thing."""
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def of_this_machine(cls) -> PowerAssertion:
        """Find caffeinate on a Mac; elsewhere nothing is ever held."""
        return cls(shutil.which("caffeinate", path="/usr/bin:/bin") if sys.platform == "darwin" else None)

    @property
    def is_held(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def hold(self, wanted: bool) -> None:
        """Take the assertion or give it back; take it again where somebody ended it."""
        if self._program is None or wanted == self.is_held:
            return
        if not wanted:
            self._release()
            return
        try:
            # -i: no idle sleep; the display may sleep, and so does a Mac whose lid is closed.
            self._child = subprocess.Popen(
                [self._program, "-i", "-w", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            self._program = None
            _log.warning("Failed to keep the machine awake", error=str(error))
            return
        _log.info("Keeps the machine awake while a process runs")

    def _release(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            child.wait()
            _log.info("Lets the machine sleep: no process runs")


class Upkeep:
    """One thread that does what is due."""

    def __init__(self, serves: Callable[[], bool], *, interval_s: float = INTERVAL_S) -> None:
        """`serves` tells whether a process runs on this host."""
        self._serves = serves
        self._interval_s = interval_s
        self._assertion = PowerAssertion.of_this_machine()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give the power assertion back."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._assertion.hold(False)

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                self._assertion.hold(self._serves())
                rotate_own_log(os.environ)
            except Exception as error:
                # A fault here must not end the thread: the next round may succeed.
                _log.warning("Failed to keep the host in order", error=f"{type(error).__name__}: {error}")
            self._done.wait(self._interval_s)


def rotate_own_log(environment: Mapping[str, str]) -> bool:
    """Rotate the file that a service manager sends the agent's output to; tell whether it did. Raises OSError.

    Only the output of an installed agent is rotated, not a file into which a person redirected a command.
    """
    path = _log_path() if MARK in environment else None
    if path is None:
        return False
    for stream in _STREAMS:
        # After a truncation the next line must come to the new end.
        flags = fcntl.fcntl(stream, fcntl.F_GETFL)
        if not flags & os.O_APPEND:
            fcntl.fcntl(stream, fcntl.F_SETFL, flags | os.O_APPEND)
    return process_log.rotate(path)


def _log_path() -> Path | None:
    """Find the file of the standard error; None where it is a terminal, a pipe or a socket, as under systemd."""
    stream = _STREAMS[-1]
    there = os.fstat(stream)
    if not stat.S_ISREG(there.st_mode):
        return None
    if sys.platform == "darwin":
        path = Path(os.fsdecode(fcntl.fcntl(stream, fcntl.F_GETPATH, bytes(_PATH_BYTES)).rstrip(b"\0")))
    else:
        path = Path(f"/proc/self/fd/{stream}").readlink()
    try:
        return path if os.path.samestat(path.stat(), there) else None
    except OSError:
        return None  # it was deleted, or this user may not search its directory
