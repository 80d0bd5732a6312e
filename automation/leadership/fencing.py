"""Whether this loop may act now, and who sees to it that it does not when it may not (docs/adr/0018).

Fed by `election` with each renewal; asked by the loop's `KubeClient` right before each write, and by the engine before
and while a CLI process runs. What the loop cannot do for itself, because it was stopped or killed, `guard` does.

Counted from before the last renewal was sent: at `trust_s` writes are refused and the engine is ended, at `kill_s` the
guard ends whatever is left, the loop included, and only later may another take the lease.
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

from agent.server.sleepless_clock import sleepless
from automation.leadership import guard
from automation.leadership.process_mark import mark

FOREVER = float("inf")

_SCRIPT = pathlib.Path(guard.__file__)
_CLEAR_TIMEOUT_S = 2.0
DEAF_AFTER_S = 3.0
"""A guard that leaves a message unread for so long is replaced: it is stopped, or it hangs."""

_log = logging.getLogger(__name__)


class Fence:
    """The lease's word for everything that acts. Thread-safe."""

    def __init__(
        self, *, trust_s: float = FOREVER, kill_s: float = FOREVER, clock: Callable[[], float] = sleepless
    ) -> None:
        """Without times nothing ever runs out, as in a loop that was told to work without a lease."""
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
        """When the guard had last read every message."""
        self._closed = False

    @property
    def environment(self) -> dict[str, str]:
        """By this word in its environment an engine process is known as ours."""
        return {guard.VARIABLE: self._mark}

    def holds_lease(self) -> bool:
        """Whether the lease is surely ours at this moment."""
        return not self._lost.is_set() and self._clock() < self._until

    def renewed(self, asked_at: float) -> None:
        """The lease was taken or renewed by a request that was begun then, on the `sleepless` clock."""
        with self._lock:
            self._until = asked_at + self._trust_s
            self._killed_at = asked_at + self._kill_s
            self._send(f"until {self._killed_at!r}")

    def lose(self) -> None:
        """The lease is lost, for good: from now on nothing is sent, and the engine is ended at once."""
        self._lost.set()
        with self._lock:
            self._send("fence")

    def start(self) -> None:
        """Start the guard. Before this no engine process may be started."""
        with self._lock:
            if self._guard is None:
                self._start()

    def close(self) -> None:
        """Let the guard go, which ends what is left of the engine. Nothing may be started afterwards."""
        self._lost.set()
        with self._lock:
            self._closed = True
            if self._guard is not None:
                self._end(self._guard)
                self._guard = None

    def engine_started(self, pid: int) -> None:
        """An engine process was started."""
        with self._lock:
            self._children.add(pid)
            self._send(f"+{pid}")

    def engine_ended(self, pid: int) -> None:
        """An engine process has ended and was reaped."""
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
        self._heard_at = sleepless()
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
        _log.warning("The guard of the engine does not listen; another is started", extra={"pid": self._guard.pid})
        # Not ended in order: one that reads late would take the end of its input for the end of the loop.
        self._guard.kill()
        self._end(self._guard)
        self._start()

    def _listens(self) -> bool:
        """Whether the guard reads. One that is stopped would end nothing when it has to."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        now = sleepless()
        unread = fcntl.ioctl(self._guard.stdin.fileno(), termios.FIONREAD, bytes(4))
        if not int.from_bytes(unread, sys.byteorder):
            self._heard_at = now
        return now - self._heard_at <= DEAF_AFTER_S

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_CLEAR_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_engines_of(dead: str) -> bool:
    """End what a loop of this machine left running of its engine. Whether nothing of it runs any more.

    `dead` is the mark of a loop that is dead, or whose lease is over. Its guard has done so already, unless somebody
    ended or froze the guard as well.
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
