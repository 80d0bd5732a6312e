"""A book of engine runs: a program before the Pulumi CLI that writes down each run, and whether it met another.

The program takes a lock of the kernel for the stack before it becomes the CLI: the lock is held by the CLI and by all
that it starts, however they end, so two runs of one stack at the same time cannot escape notice.
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
    """Put the program that keeps book into a directory of its own; HERDSMAN_PULUMI names it to a loop."""
    directory.mkdir(parents=True)
    path = directory / "pulumi"
    path.write_text(WRAPPER.format(python=sys.executable, directory=directory, pulumi=pulumi))
    path.chmod(0o755)
    return path


def runs(directory: Path) -> list[list[str]]:
    """Read the book of that directory: run, overlap or query, stack, process, its parent, time, the CLI's arguments."""
    path = directory / "runs"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
