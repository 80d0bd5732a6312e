"""Signals are sent only to processes that the project started; tested with real processes, some of them foreign."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tools.localcluster import processes
from tools.localcluster.layout import ProcessRecord

STUBBORN = (
    "import signal, time, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
)
PATIENT = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], ProcessRecord]]:
    records: list[ProcessRecord] = []

    def spawn(code: str) -> ProcessRecord:
        log = tmp_path / f"{len(records)}.log"
        records.append(processes.spawn(Path(sys.executable), ["-c", code, str(tmp_path)], log=log))
        deadline = time.monotonic() + 10
        while not log.read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return records[-1]

    yield spawn
    for record in records:
        processes.end([record], tmp_path, grace_s=0)


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A foreign process, whose process ID may be in an old record."""
    process = subprocess.Popen([sys.executable, "-c", PATIENT])
    # A program that was started a moment ago may have no arguments yet.
    deadline = time.monotonic() + 10
    while not psutil.Process(process.pid).cmdline():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    yield process
    process.kill()
    process.wait()


def test_a_started_process_outlives_its_starter_in_a_session_of_its_own(
    tmp_path: Path, start: Callable[[str], ProcessRecord]
) -> None:
    record = start(PATIENT)
    assert os.getsid(record.pid) == record.pid
    assert processes.find(record, tmp_path) is not None
    assert (tmp_path / "0.log").read_text() == "up\n"
    assert (tmp_path / "0.log").stat().st_mode & 0o077 == 0


def test_a_process_that_obeys_is_ended_at_once(tmp_path: Path, start: Callable[[str], ProcessRecord]) -> None:
    record = start(PATIENT)
    started = time.monotonic()
    processes.end([record], tmp_path, grace_s=10)
    assert time.monotonic() - started < 8
    assert processes.find(record, tmp_path) is None
    assert not psutil.pid_exists(record.pid)


def test_a_process_that_does_not_obey_is_killed_after_the_grace(
    tmp_path: Path, start: Callable[[str], ProcessRecord]
) -> None:
    record = start(STUBBORN)
    started = time.monotonic()
    processes.end([record], tmp_path, grace_s=0.3)
    assert 0.3 <= time.monotonic() - started < 5
    assert processes.find(record, tmp_path) is None


def test_a_frozen_process_is_ended_without_waiting_for_the_grace(
    tmp_path: Path, start: Callable[[str], ProcessRecord]
) -> None:
    record = start(PATIENT)
    assert processes.send(record, tmp_path, signal.SIGSTOP)
    started = time.monotonic()
    processes.end([record], tmp_path, grace_s=10)
    assert time.monotonic() - started < 8


def test_a_process_is_found_after_the_clock_was_set(
    tmp_path: Path, start: Callable[[str], ProcessRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = start(PATIENT)
    former = ProcessRecord(record.pid, record.started_at_s)
    assert processes.find(former, tmp_path) is not None, "a record of an earlier version"
    taken = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: taken(self) + 3600)
    assert processes.find(record, tmp_path) is not None
    another = ProcessRecord(record.pid, record.started_at_s + 3600, record.since_boot_s - 1)
    assert processes.find(another, tmp_path) is None


def test_a_process_that_took_over_the_number_is_left_alone(tmp_path: Path, foreign: subprocess.Popen[bytes]) -> None:
    earlier = ProcessRecord(foreign.pid, psutil.Process(foreign.pid).create_time() - 3600)
    assert processes.find(earlier, tmp_path) is None
    assert not processes.send(earlier, tmp_path, signal.SIGKILL)
    processes.end([earlier], tmp_path, grace_s=0)
    assert foreign.poll() is None


def test_a_process_without_our_directory_in_its_arguments_is_left_alone(
    tmp_path: Path, foreign: subprocess.Popen[bytes]
) -> None:
    same_start = ProcessRecord(foreign.pid, psutil.Process(foreign.pid).create_time())
    assert processes.find(same_start, tmp_path) is None
    processes.end([same_start], tmp_path, grace_s=0)
    assert foreign.poll() is None


def test_a_process_that_has_ended_is_not_found_and_leaves_no_zombie(
    tmp_path: Path, start: Callable[[str], ProcessRecord]
) -> None:
    record = start(PATIENT)
    os.kill(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while processes.find(record, tmp_path) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(record.pid).status() != psutil.STATUS_ZOMBIE


def test_a_long_log_is_put_aside_at_the_next_start(tmp_path: Path, start: Callable[[str], ProcessRecord]) -> None:
    (tmp_path / "0.log").write_text("x" * (11 * 1024 * 1024))
    start(PATIENT)
    assert (tmp_path / "0.log").read_text() == "up\n"
    assert (tmp_path / "0.log.1").stat().st_size == 11 * 1024 * 1024


def test_a_program_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        processes.spawn(tmp_path / "nothing", [], log=tmp_path / "log")
