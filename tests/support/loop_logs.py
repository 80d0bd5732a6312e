"""A pytest plugin that attaches the end of each loop's log to a failed test.

`tests/support/loop.py` records each process that it starts; `tests/conftest.py` registers the plugin for all layers.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

LINES = 100
_MOST_READ_BYTES = 4 * 1024 * 1024
_LEFT_OUT = b'"logger": "urllib3.'
"""At level debug, urllib3 writes two lines for each request, which is most of a log."""
_BEGAN_AT = pytest.StashKey[float]()


@dataclass(frozen=True)
class StartedLoop:
    """A loop that a test or a fixture started, and the file that has its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def was_active_since(self, time_s: float) -> bool:
        """Return whether the loop still runs, or wrote to its log at that time or later."""
        if self.process.poll() is None:
            return True
        try:
            return self.log.stat().st_mtime >= time_s
        except FileNotFoundError:
            return False


_started: list[StartedLoop] = []


def record(process: subprocess.Popen[bytes], log: Path) -> None:
    """Remember a started loop; its log appears in the reports of tests that fail while it is active."""
    _started.append(StartedLoop(process, log))


def sections(*, since_s: float) -> list[tuple[str, str]]:
    """Return a heading and the last lines of the log for each loop that was active since then."""
    # pytest takes a section whose heading begins with "Captured log" into its JUnit file as well.
    return [
        (f"Captured log of a loop, last {LINES} lines without urllib3's ({loop.log})", tail(loop.log))
        for loop in _started
        if loop.was_active_since(since_s)
    ]


def tail(file: Path, lines: int = LINES) -> str:
    """Return the last lines of a log without urllib3's, from at most 4 MiB; a message if the log cannot be read."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - _MOST_READ_BYTES))
            read = opened.read()
    except OSError as error:
        return f"the log cannot be read: {error}"
    kept = [line for line in read.splitlines() if _LEFT_OUT not in line]
    return b"\n".join(kept[-lines:]).decode(errors="replace")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when the test began, before its fixtures start a loop."""
    item.stash[_BEGAN_AT] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs to the report of a setup, call or teardown that failed."""
    report = yield
    if report.failed and _BEGAN_AT in item.stash:
        report.sections.extend(sections(since_s=item.stash[_BEGAN_AT]))
    return report
