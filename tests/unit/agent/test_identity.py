"""A process is still recognised after the wall clock was set: real processes, on Linux and on a simulated macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.server.processes import identity
from agent.server.processes.identity import Presence, presence, runs, start_mark
from agent.server.processes.process import Handle, Marker, launch, marked_processes
from tests.support.controlplane import eventually

MARKER = Marker("identity-test", "ns/a", "h", 1)
SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


@pytest.fixture(params=["linux", "darwin"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`sys.platform` as the agent reads it; `ps` works for both values."""
    monkeypatch.setattr(sys, "platform", request.param)
    return str(request.param)


@pytest.fixture
def handle(tmp_path: Path, system: str) -> Iterator[Handle]:
    started = launch(SLEEPS, env={}, log=tmp_path / "a.log", marker=MARKER)
    yield started
    started.terminate(grace_s=5.0)


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil as it is after the clock was changed by an hour since psutil was loaded."""
    taken = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: taken(self) + 3600)


def adopted(handle: Handle) -> Handle:
    return Handle(handle.pid, handle.mark)


@pytest.mark.usefixtures("stepped")
def test_a_process_is_known_and_stopped_after_a_step_of_the_clock(handle: Handle) -> None:
    later = adopted(handle)
    assert later.alive()
    assert later.terminate(grace_s=5.0), "SIGTERM sufficed"
    assert not handle.alive()
    assert not later.alive()


def test_a_record_of_an_earlier_version_is_recognised(handle: Handle) -> None:
    """On macOS the mark was psutil's start time; on Linux it has not changed."""
    if sys.platform == "linux":
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        fields = Path(f"/proc/{handle.pid}/stat").read_text().rpartition(")")[2].split()
        former = f"{boot}:{fields[19]}"
    else:
        former = f"{psutil.Process(handle.pid).create_time():.6f}"
    assert runs(handle.pid, former)
    assert Handle(handle.pid, former).terminate(grace_s=5.0)
    assert not handle.alive()


def test_a_record_that_an_earlier_version_wrote_after_a_step_is_recognised_by_the_marker(handle: Handle) -> None:
    shifted = f"{psutil.Process(handle.pid).create_time() + 3600:.6f}"
    if sys.platform == "linux":
        assert not runs(handle.pid, shifted), "no agent on Linux wrote such a mark"
    else:
        # The kernel shows the environment a moment after the program was started.
        eventually(lambda: runs(handle.pid, shifted) or None, what="the process to be recognised", timeout_s=60)


@pytest.mark.usefixtures("system")
def test_a_stranger_with_the_pid_is_never_taken_for_the_process() -> None:
    stranger = subprocess.Popen(SLEEPS, start_new_session=True)
    try:
        for mark in ("1699999999.123456", "5f3a90aa:12", "another"):
            assert presence(stranger.pid, mark) is Presence.OTHER
            assert Handle(stranger.pid, mark).terminate(grace_s=0.1), "the process is gone, and so is its session"
            assert not Handle(stranger.pid, mark).alive()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_stop_that_cannot_tell_whose_the_pid_is_signals_nobody_and_says_so(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_pid: int) -> str:
        raise identity._Unknown

    monkeypatch.setattr(identity, "_mark", silent)
    later = adopted(handle)
    assert presence(handle.pid, handle.mark) is Presence.UNKNOWN
    assert not later.terminate(grace_s=0.1)
    assert later.alive(), "a process is not forgotten because the system is silent"
    assert handle.alive()


def test_a_process_that_ignores_sigterm_is_killed_and_that_is_said(tmp_path: Path, system: str) -> None:
    handle = launch(STUBBORN, env={}, log=tmp_path / "a.log", marker=MARKER)
    eventually(lambda: "up" in (tmp_path / "a.log").read_text() or None, what="the handler to be set")
    assert not adopted(handle).terminate(grace_s=0.3)
    assert not handle.alive()


@pytest.mark.usefixtures("stepped")
def test_processes_of_an_agent_are_found_by_their_marker(handle: Handle) -> None:
    [(marker, found)] = eventually(
        lambda: marked_processes(MARKER.agent).get(MARKER.key), what="the process to be found", timeout_s=5
    )
    assert marker == MARKER and (found.pid, found.mark) == (handle.pid, handle.mark)


@pytest.mark.usefixtures("system")
def test_a_zombie_and_a_free_pid_have_no_mark() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_mark(child.pid) is None
    child.wait()
    assert start_mark(child.pid) is None
    assert presence(child.pid, "x") is Presence.GONE


def test_what_ps_cannot_say_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert presence(os.getpid(), "x") is Presence.UNKNOWN
    assert start_mark(os.getpid()) is None
