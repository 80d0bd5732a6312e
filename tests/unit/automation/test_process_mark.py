"""The mark that proves a process of this machine dead."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from automation.process_mark import is_dead, mark

SAY_MARK = "import sys; from automation.process_mark import mark; print(mark(), flush=True); sys.stdin.read()"


def test_a_living_process_is_not_dead_and_a_killed_one_is() -> None:
    child = subprocess.Popen([sys.executable, "-c", SAY_MARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    theirs = child.stdout.readline().strip()
    assert not is_dead(theirs)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(theirs), "dead, though its parent has not reaped it yet"
    child.communicate()
    assert is_dead(theirs)


def test_a_pid_that_was_given_to_another_process_proves_the_first_dead() -> None:
    place, pid, _ = mark().rsplit("/", 2)
    earlier = psutil.Process().create_time() - 100
    assert is_dead(f"{place}/{pid}/{earlier:.2f}")


@pytest.mark.parametrize("other", ["", "x", "///", "a/b/c", "another-boot/4026531836/999999/1.00"])
def test_doubt_is_no_proof(other: str) -> None:
    assert not is_dead(other)


def test_another_pid_namespace_is_doubt() -> None:
    boot, namespace, _, started = mark().rsplit("/", 3)
    assert not is_dead(f"{boot}/{namespace}9/999999/{started}")


def test_we_are_alive() -> None:
    assert not is_dead(mark())
