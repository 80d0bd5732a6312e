"""The end of a process is reported at once, for exactly that process, and watching costs nothing while it runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from agent.server.processes.exits import ExitWatch
from agent.server.processes.identity import start_mark
from agent.server.processes.process import Handle


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "60"])
    yield started
    started.kill()
    started.wait()


def handle(child: subprocess.Popen[bytes]) -> Handle:
    return Handle(child.pid, start_mark(child.pid) or "")


def pidfds() -> int:
    """Count the descriptors of processes that this process has open; 0 on systems without them."""
    number = 0
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(FileNotFoundError):
            number += "pidfd" in os.readlink(f"/proc/self/fd/{name}")
    return number


def test_the_end_is_told_once_and_before_anybody_reaped_it(child: subprocess.Popen[bytes]) -> None:
    watch, ended = ExitWatch(), threading.Event()
    calls: list[str] = []

    def told() -> None:
        calls.append("ended")
        ended.set()

    for _ in range(3):
        assert watch.follows("ns/a", handle(child), told)
    assert not ended.wait(0.1)
    child.kill()
    assert ended.wait(30)
    time.sleep(0.1)
    assert len(calls) == 1
    # A zombie is not watched: the worker reaps it.
    assert not watch.follows("ns/a", handle(child), told)


def test_another_process_of_the_same_pid_is_not_meant(child: subprocess.Popen[bytes]) -> None:
    watch = ExitWatch()
    assert not watch.follows("ns/a", Handle(child.pid, "another"), lambda: None)
    assert not watch.follows("ns/a", None, lambda: None)


def test_a_key_moves_on_to_its_next_process_and_leaves_no_descriptor_behind(child: subprocess.Popen[bytes]) -> None:
    watch, first, second = ExitWatch(), threading.Event(), threading.Event()
    before = pidfds()
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert watch.follows("ns/a", handle(child), first.set)
        assert watch.follows("ns/a", handle(other), second.set)
        assert pidfds() == before + (1 if os.path.isdir("/proc/self/fd") else 0)
        child.kill()
        assert not first.wait(0.2)
        other.kill()
        assert second.wait(30)
    finally:
        other.kill()
        other.wait()
    assert pidfds() == before
    watch.stop_following("ns/a")


def test_what_is_forgotten_is_not_told(child: subprocess.Popen[bytes]) -> None:
    watch, ended = ExitWatch(), threading.Event()
    assert watch.follows("ns/a", handle(child), ended.set)
    watch.stop_following("ns/a")
    child.kill()
    assert not ended.wait(0.2)
