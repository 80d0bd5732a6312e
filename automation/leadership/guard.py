"""A small process beside each leading loop: it ends the engine, and the loop itself, before another loop may lead.

`automation.leadership.fencing` starts it as a script. It needs only the standard library, so it stays small and works
when the loop is stopped, hangs or is dead. The loop writes to its standard input:

    until SECONDS   the loop holds the lease until then, on the clock that runs while the machine sleeps
    +PID, -PID      an engine process was started, has ended
    fence           the lease is lost: end the engine now

The end of the input means that the loop has ended. Engine processes are found by a variable in their environment, which
includes one that the loop started in its last moment. Without /proc they are found by the reported pids.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

VARIABLE = "HERDSMAN_LOOP"
"""The environment variable of each engine process with the mark of the loop that started it."""
BUSY_POLL_S = 0.1
"""While an engine runs, the clock is read this often, because the guard gets no signal when a machine wakes up."""
SWEEP_S = 0.02
CLEAN_SWEEPS = 5
"""The guard of a dead loop ends after this many sweeps in a row without an engine process."""


def now() -> float:
    """Seconds on the clock of `agent.server.boottime`, which cannot be imported here."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()


def engines_of(mark: str) -> list[int]:
    """Find the processes of this machine that the loop with this mark started, and their descendants."""
    word = f"{VARIABLE}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if word in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue  # the process ended, or belongs to another user
    return found


def kill(pids: list[int]) -> None:
    """Send SIGKILL, which also ends a stopped process."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


class Guard:
    """The state of the guard: its loop, the deadline and the engine processes."""

    def __init__(self, loop: int, mark: str) -> None:
        self.mark = mark
        self.until = float("inf")
        self.children: set[int] = set()
        self.fenced = False
        self._loop = loop
        # By a handle, so that no other process of the same number is ever meant.
        self._handle = os.pidfd_open(loop) if hasattr(os, "pidfd_open") else None
        self._has_proc = os.path.isdir("/proc/self")

    def handle_line(self, line: str) -> None:
        """Handle one line of the loop: a new deadline, the loss of the lease, a started or ended engine."""
        if line.startswith("until "):
            self.until = float(line[6:])
        elif line == "fence":
            self.fenced = True
        elif line.startswith("+"):
            self.children.add(int(line[1:]))
        elif line.startswith("-"):
            self.children.discard(int(line[1:]))

    def sweep(self) -> bool:
        """Kill every engine process; return whether there was one."""
        found = engines_of(self.mark) if self._has_proc else [pid for pid in self.children if _lives(pid)]
        kill(found)
        return bool(found)

    def end_loop(self) -> None:
        """Kill the loop, also a stopped one: it must not continue when another loop may lead."""
        try:
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            elif os.getppid() == self._loop:
                os.kill(self._loop, signal.SIGKILL)
        except OSError:
            return

    def wait_s(self) -> float | None:
        """Return how long the guard may wait for its next line."""
        if self.fenced:
            return SWEEP_S
        left_s = self.until - now()
        if left_s == float("inf"):
            return None
        return max(0.0, min(left_s, BUSY_POLL_S) if self.children else left_s)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def main(loop: int, mark: str) -> None:
    """Watch until the loop has ended and none of its engine processes runs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard = Guard(loop, mark)
    rest = b""
    while True:
        ready, _, _ = select.select([0], [], [], guard.wait_s())
        if ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                guard.handle_line(line.decode())
        if guard.fenced or now() >= guard.until:
            guard.fenced = True
            guard.sweep()
            if now() >= guard.until:
                guard.end_loop()
    clean = 0
    while clean < CLEAN_SWEEPS:
        clean = 0 if guard.sweep() else clean + 1
        time.sleep(SWEEP_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
