"""Decides whether this loop may act, and ends its engine when it may not (docs/adr/0018).

`election` reports each renewal. The loop's `KubeClient` checks the fence before each write, and the engine checks it
before and while a CLI process runs. When the loop is stopped or killed, the process `guard` acts in its place.

The times count from before the last renewal was sent. At `trust_s` writes are refused and the engine is ended. At
`kill_s` the guard kills all that is left, the loop included. Only later may another loop take the lease.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pathlib
import subprocess
import sys
import termios
import threading
from collections.abc import Callable

import psutil

from agent.server.boottime import boottime_s
from automation.leadership import guard
from automation.leadership.process_mark import mark

FOREVER = float("inf")

_SCRIPT = pathlib.Path(guard.__file__)
_CLEAR_TIMEOUT_S = 2.0
DEAF_AFTER_S = 3.0
"""A guard that does not read a message within this time is stopped or hangs, and is replaced."""

_log = logging.getLogger(__name__)


class Fence:
    """Whether this loop may act, by its lease. Thread-safe."""

    def __init__(
        self, *, trust_s: float = FOREVER, kill_s: float = FOREVER, clock: Callable[[], float] = boottime_s
    ) -> None:
        """Without times the fence never expires, as in a loop without leader election."""
        self._trust_s = trust_s
        self._kill_s = kill_s
        self._clock = clock
        self._mark = mark()
        self._lock = threading.Lock()
        self._until = FOREVER if trust_s == FOREVER else 0.0
        self._killed_at = FOREVER
        self._lost = threading.Event()
        self._children: set[int] = set()
        self._guard: subprocess.Popen[bytes] | None = None
        self._heard_at = 0.0
        """The time at which the guard had read every message."""
        self._closed = False

    @property
    def environment(self) -> dict[str, str]:
        """The environment variable by which the guard finds the engine processes of this loop."""
        return {guard.VARIABLE: self._mark}

    def holds_lease(self) -> bool:
        """Return whether this loop certainly holds the lease now."""
        return not self._lost.is_set() and self._clock() < self._until

    def renewed(self, asked_at: float) -> None:
        """Record that a request that began at `asked_at`, on the `boottime_s` clock, took or renewed the lease."""
        with self._lock:
            self._until = asked_at + self._trust_s
            self._killed_at = asked_at + self._kill_s
            self._send(f"until {self._killed_at!r}")

    def lose(self) -> None:
        """Close the fence for good: writes are refused from now on, and the engine is ended at once."""
        self._lost.set()
        with self._lock:
            self._send("fence")

    def start(self) -> None:
        """Start the guard. Before this no engine process may be started."""
        with self._lock:
            if self._guard is None:
                self._start()

    def close(self) -> None:
        """End the guard, which kills the engine processes that are left. No engine may be started afterwards.

        If the guard is stopped or hangs, they are killed here.
        """
        self._lost.set()
        with self._lock:
            self._closed = True
            if self._guard is not None:
                if not self._end(self._guard):
                    end_engines_of(self._mark)
                self._guard = None

    def engine_started(self, pid: int) -> None:
        """Report a started engine process to the guard."""
        with self._lock:
            self._children.add(pid)
            self._send(f"+{pid}")

    def engine_ended(self, pid: int) -> None:
        """Report the end of an engine process, which was reaped, to the guard."""
        with self._lock:
            self._children.discard(pid)
            self._send(f"-{pid}")

    # --- the guard ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid()), self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={},
            bufsize=0,
            start_new_session=True,
        )
        self._heard_at = boottime_s()
        assert self._guard.stdin is not None
        # A guard that does not read must not hold up the renewals; it is replaced.
        os.set_blocking(self._guard.stdin.fileno(), False)
        words = [f"+{pid}" for pid in self._children]
        if self._killed_at != FOREVER:
            words.append(f"until {self._killed_at!r}")
        if self._lost.is_set():
            words.append("fence")
        for word in words:
            self._guard.stdin.write(f"{word}\n".encode())

    def _send(self, word: str) -> None:
        if self._guard is None or self._closed:
            return
        assert self._guard.stdin is not None
        try:
            if self._listens() and self._guard.stdin.write(f"{word}\n".encode()) is not None:
                return
        except OSError:
            pass  # it was killed
        _log.warning("The guard of the engine does not respond; starting another one", extra={"pid": self._guard.pid})
        # Not ended in order: one that reads late would take the end of its input for the end of the loop.
        self._guard.kill()
        self._end(self._guard)
        self._start()

    def _listens(self) -> bool:
        """Return whether the guard reads its messages. A stopped guard could not end the engine."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        now = boottime_s()
        unread = fcntl.ioctl(self._guard.stdin.fileno(), termios.FIONREAD, bytes(4))
        if not int.from_bytes(unread, sys.byteorder):
            self._heard_at = now
        return now - self._heard_at <= DEAF_AFTER_S

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> bool:
        """End a guard. Return whether it ended by itself, after it had killed the engine processes that were left."""
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            return process.wait(_CLEAR_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False


def end_engines_of(dead: str) -> bool:
    """Kill the engine processes that a loop left running on this machine. Return whether none runs any more.

    `dead` is the mark of a loop that is dead, or whose lease has expired. Its guard has killed them already, unless the
    guard was killed or frozen too.
    """
    left = _engines_of(dead)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=_CLEAR_TIMEOUT_S)
    return not _engines_of(dead)


def _engines_of(dead: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(guard.VARIABLE) == dead and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
