"""The mark by which a loop proves that a process of this machine has ended."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from automation.leadership.process_mark import is_dead, mark, runs

SAY_MARK = (
    "import sys; from automation.leadership.process_mark import mark; print(mark(), flush=True); sys.stdin.read()"
)


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
    place, pid, started = mark().rsplit("/", 2)
    boot, ticks = started.split(":")
    assert is_dead(f"{place}/{pid}/{boot}:{int(ticks) - 100}")


def test_a_step_of_the_clock_proves_nobody_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a second loop would act at the same time as the first."""
    before, place = mark(), mark().rsplit("/", 2)[0]
    former = f"{place}/{os.getpid()}/{psutil.Process().create_time():.2f}"
    assert runs(former), "a mark of an earlier version"
    taken = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: taken(self) + 3600)
    assert mark() == before
    assert not is_dead(before)
    assert runs(before)
    assert not is_dead(former), "a mark of an earlier version, in whose time the clock was another"


def test_a_mark_of_an_earlier_version_proves_death_by_a_free_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    former = f"{mark().rsplit('/', 2)[0]}/{child.pid}/1700000000.25"
    assert is_dead(former)
    assert not runs(former)


@pytest.mark.parametrize("other", ["", "x", "///", "a/b/c", "another-boot/4026531836/999999/1.00"])
def test_doubt_is_no_proof(other: str) -> None:
    assert not is_dead(other)


def test_another_pid_namespace_is_doubt() -> None:
    boot, namespace, _, started = mark().rsplit("/", 3)
    assert not is_dead(f"{boot}/{namespace}9/999999/{started}")


def test_we_are_alive() -> None:
    assert not is_dead(mark())
