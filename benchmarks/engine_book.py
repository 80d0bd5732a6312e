"""A record of engine runs: a program in place of the Pulumi CLI that records each run and whether it overlaps another.

The program takes a kernel lock for the stack before it becomes the CLI. The CLI and all its child processes hold the
lock until they have ended, so that two simultaneous runs of one stack are always recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path

WRAPPER = """#!{python} -IS
import fcntl, os, sys, time
stack = "-"
for at, word in enumerate(sys.argv):
    if word == "--stack" and at + 1 < len(sys.argv):
        stack = sys.argv[at + 1].rpartition("/")[2]
lock = os.open("{directory}/" + stack + ".lock", os.O_RDWR | os.O_CREAT)
os.set_inheritable(lock, True)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    word = "run"
except OSError:
    word = "overlap"
if stack == "-":
    word = "query"
with open("{directory}/runs", "a") as book:
    about = (word, stack, os.getpid(), os.getppid(), time.monotonic(), *sys.argv[1:4])
    book.write(" ".join(map(str, about)) + "\\n")
os.execv("{pulumi}", ["pulumi", *sys.argv[1:]])
"""


def write_wrapper(directory: Path, pulumi: Path) -> Path:
    """Write the recording program to a new directory. HERDSMAN_PULUMI makes a loop use it."""
    directory.mkdir(parents=True)
    path = directory / "pulumi"
    path.write_text(WRAPPER.format(python=sys.executable, directory=directory, pulumi=pulumi))
    path.chmod(0o755)
    return path


def runs(directory: Path) -> list[list[str]]:
    """Return the records: run, overlap or query, stack, process, its parent, time, the CLI's arguments."""
    path = directory / "runs"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
