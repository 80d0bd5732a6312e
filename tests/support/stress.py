"""Load beside a run of tests, to find races: `make test-stress`.

Processes at a lower priority than the tests compute for random times and pause for random times, so that threads and
processes of the tests are delayed at other places in each run. The load is bounded: a fixed number of processes, and a
time after which each of them ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PER_CORE = 2
NICE = 5
"""At this priority a process gets about a third of the time of a process of the tests that also computes."""
MOST_S = 3600.0
"""The longest time that a process of the load runs, in seconds."""
_BURST_S = 0.25
_PIECE = 20_000


@contextlib.contextmanager
def load(count: int | None = None, *, most_s: float = MOST_S) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run `count` processes of load while the block lasts, by default two for each core, but no longer than `most_s`.

    Gives the processes. They also end when this process has ended.
    """
    number = PER_CORE * (os.cpu_count() or 1) if count is None else count
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.support.stress", str(most_s), str(os.getpid())]
    processes = [subprocess.Popen(command, cwd=root) for _ in range(number)]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _burn(most_s: float, parent: int) -> None:
    os.nice(NICE)
    chance = random.Random()
    ends_at = time.monotonic() + most_s
    while time.monotonic() < ends_at and os.getppid() == parent:
        pauses_at = time.monotonic() + chance.uniform(0.0, _BURST_S)
        while time.monotonic() < pauses_at:
            sum(range(_PIECE))
        time.sleep(chance.uniform(0.0, _BURST_S))


if __name__ == "__main__":
    _burn(float(sys.argv[1]), int(sys.argv[2]))
