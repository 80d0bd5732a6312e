"""Keeps a Mac awake while a process runs on it, and limits the size of the agent's log. One thread checks periodically.

Started by `agent.server.main`. launchd does not limit the size of its output file, and newsyslog needs root.
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
    """Keeps an idle Mac from sleeping while it is held.

    It is a `caffeinate` process, which ends with the agent in any case.
    """

    def __init__(self, program: str | None) -> None:
        """`program` None: this machine has no caffeinate."""
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def of_this_machine(cls) -> PowerAssertion:
        """Find caffeinate on a Mac. Other systems need no assertion."""
        return cls(shutil.which("caffeinate", path="/usr/bin:/bin") if sys.platform == "darwin" else None)

    @property
    def is_held(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def hold(self, wanted: bool) -> None:
        """Take or release the assertion. If caffeinate was ended, start it again."""
        if self._program is None or wanted == self.is_held:
            return
        if not wanted:
            self._release()
            return
        try:
            # -i prevents idle sleep. The display may sleep, and a Mac with a closed lid sleeps.
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
    """One thread that does both periodically."""

    def __init__(self, serves: Callable[[], bool], *, interval_s: float = INTERVAL_S) -> None:
        """`serves` returns whether a process runs on this host."""
        self._serves = serves
        self._interval_s = interval_s
        self._assertion = PowerAssertion.of_this_machine()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and release the power assertion."""
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
                # An error must not end the thread, because the next round may succeed.
                _log.warning("Failed to maintain the host", error=f"{type(error).__name__}: {error}")
            self._done.wait(self._interval_s)


def rotate_own_log(environment: Mapping[str, str]) -> bool:
    """Rotate the file to which a service manager writes the agent's output. Returns whether it did. Raises OSError.

    Only the output of an installed agent is rotated, not a file to which a person redirected a command.
    """
    path = _log_path() if MARK in environment else None
    if path is None:
        return False
    for stream in _STREAMS:
        # After a truncation the next line must be written at the new end.
        flags = fcntl.fcntl(stream, fcntl.F_GETFL)
        if not flags & os.O_APPEND:
            fcntl.fcntl(stream, fcntl.F_SETFL, flags | os.O_APPEND)
    return process_log.rotate(path)


def _log_path() -> Path | None:
    """Return the file of the standard error. None: it is a terminal, pipe or socket, as under systemd."""
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
