"""The logs of loops in the report of a failed test: which loops are included, and how many lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.support import loop_logs
from tests.support.loop_logs import StartedLoop

ROOT = Path(__file__).parents[2]

# `sleep` and `true` replace loops in this suite: one runs until the end of its module, the other ends before the test.
SUITE = """
import os
import subprocess
from pathlib import Path
import pytest
from tests.support import loop_logs

@pytest.fixture(scope="module")
def running(tmp_path_factory):
    log = tmp_path_factory.mktemp("running") / "loop-1.log"
    log.write_text("".join(f"line {n} of the loop\\n" for n in range(150)))
    process = subprocess.Popen(["sleep", "60"])
    loop_logs.record(process, log)
    yield
    process.kill()
    process.wait()

@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    log = tmp_path_factory.mktemp("ended") / "loop-1.log"
    log.write_text("of another module\\n")
    os.utime(log, (0, 0))
    process = subprocess.Popen(["true"])
    process.wait()
    loop_logs.record(process, log)

def test_that_passes(running, ended):
    pass

def test_that_fails(running, ended):
    assert False, "on purpose"

@pytest.fixture
def broken(running, ended):
    raise RuntimeError("on purpose")

def test_whose_fixture_fails(broken):
    pass
"""


def test_a_failed_test_shows_the_end_of_the_log_of_a_loop_that_runs(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\njunit_logging = all\njunit_log_passing_tests = false\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    plugins = ("-p", "tests.support.loop_logs", "-p", "no:cacheprovider", "-p", "no:xdist")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "--junit-xml=results.xml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed, 1 error" in ended.stdout, ended.stdout + ended.stderr
    assert ended.stdout.count("- Captured log of a loop, last 100 lines without urllib3's (") == 2
    assert "\nline 50 of the loop\n" in ended.stdout and "\nline 149 of the loop\n" in ended.stdout
    assert "line 49 of the loop" not in ended.stdout
    assert "of another module" not in ended.stdout

    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "results.xml").iter("testcase")}
    assert "line 149 of the loop" in cases["test_that_fails"].findtext("system-out", "")
    assert cases["test_that_passes"].find("system-out") is None


def test_a_loop_that_has_ended_counts_while_its_log_is_newer_than_the_test(tmp_path: Path) -> None:
    log = tmp_path / "loop-1.log"
    log.write_text("the last words\n")
    os.utime(log, (1000.0, 1000.0))
    process = subprocess.Popen(["true"])
    process.wait()
    loop = StartedLoop(process, log)
    assert loop.was_active_since(999.0)
    assert not loop.was_active_since(1001.0)
    log.unlink()
    assert not loop.was_active_since(999.0)


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "loop-1.log"
    log.write_text("x" * 1000 + "\n" + ("y" * 10_000 + "\n") * 500)
    shown = loop_logs.tail(log, lines=1000)
    assert 4_000_000 < len(shown) < 5_000_000 and "x" not in shown
    assert loop_logs.tail(log, lines=1) == "y" * 10_000


def test_lines_of_urllib3_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "loop-1.log"
    request = '{"event": "GET /api HTTP/1.1", "level": "debug", "logger": "urllib3.connectionpool"}\n'
    log.write_text('{"event": "Released the lease"}\n' + request * 200)
    assert loop_logs.tail(log) == '{"event": "Released the lease"}'


def test_a_log_that_is_gone_does_not_hide_the_failure(tmp_path: Path) -> None:
    assert loop_logs.tail(tmp_path / "loop-1.log").startswith("the log cannot be read: ")
