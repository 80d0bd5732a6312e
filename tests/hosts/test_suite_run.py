"""Runs of the whole suite: which tests run, what gets a second try, what fails, which skips CI takes.

Real pytest runs small suites.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import stress, suite_run
from tests.support.allowed_skips import AllowedSkip

pytestmark = pytest.mark.soak

ALONE = ("-q", "-p", "no:cacheprovider")
SPREAD = (*ALONE, *suite_run.IN_PARALLEL, "-n", "2")

FLICKERS = """
import pathlib
def test_{name}():
    mark = pathlib.Path(__file__).with_name("{name}.seen")
    seen = mark.exists()
    mark.touch()
    assert seen, "the first time fails"
"""
PASSES = "def test_passes(): pass\n"


class Suite:
    """A folder with a few test files, run as the whole suite is."""

    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capfd = capfd
        (directory / "pytest.ini").write_text("[pytest]\n")
        self.told = ""

    def run(self, *arguments: str, allowed: tuple[AllowedSkip, ...] | None = None, **files: str) -> int:
        for name, text in files.items():
            (self._directory / f"{name}.py").write_text(text)
        code = suite_run.run_suite(arguments or ALONE, directory=self._directory, allowed=allowed)
        self.told = self._capfd.readouterr().out
        return code


@pytest.fixture
def suite(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Suite:
    return Suite(tmp_path, capfd)


def test_a_run_without_a_failure_passes_and_names_nothing(suite: Suite) -> None:
    assert suite.run(test_a=PASSES) == 0
    assert "FLAKY" not in suite.told and "once more" not in suite.told


@pytest.mark.parametrize("arguments", [ALONE, SPREAD])
def test_three_tests_that_fail_once_pass_and_are_named_as_flaky(suite: Suite, arguments: tuple[str, ...]) -> None:
    text = "".join(FLICKERS.format(name=f"flickers_{n}") for n in range(3))
    assert suite.run(*arguments, test_a=text, test_b=PASSES) == 0
    assert suite.told.rstrip().splitlines()[-6:] == [
        line
        for n in range(3)
        for line in (f"FLAKY test_a.py::test_flickers_{n}", "    AssertionError: the first time fails")
    ]
    assert "3 FLAKY: failed beside other tests, passed alone" in suite.told


def test_four_failed_tests_get_no_second_try(suite: Suite) -> None:
    text = "".join(FLICKERS.format(name=f"flickers_{n}") for n in range(4))
    assert suite.run(test_a=text) == 1
    assert "4 tests failed; at most 3 get a second try" in suite.told
    assert "once more" not in suite.told and "FLAKY" not in suite.told


def test_what_fails_twice_fails_the_run(suite: Suite) -> None:
    text = FLICKERS.format(name="flickers") + "def test_wrong(): assert 1 == 2\n"
    assert suite.run(test_a=text) == 1
    assert "test_a.py::test_wrong failed twice: assert 1 == 2" in suite.told
    assert "FLAKY" not in suite.told


def test_a_test_that_is_skipped_at_the_second_try_did_not_pass(suite: Suite) -> None:
    text = FLICKERS.format(name="flickers").replace(
        'assert seen, "the first time fails"', "import pytest\n    assert seen\n    "
    )
    text = text.replace("    assert seen\n", "    if seen: pytest.skip('no more')\n    assert seen\n")
    assert suite.run(test_a=text) == 1
    assert "1 tests were skipped at the second try" in suite.told


def test_an_error_of_a_fixture_gets_a_second_try_as_well(suite: Suite) -> None:
    flickers = FLICKERS.format(name="flickers").replace("def test_flickers():", "@pytest.fixture\ndef broken():")
    assert suite.run(test_a=f"import pytest\n{flickers}\ndef test_uses(broken): pass\n") == 0
    assert "FLAKY test_a.py::test_uses" in suite.told


@pytest.mark.parametrize("after", ["", "def test_after(): pass\n"])
def test_a_test_process_that_dies_fails_the_run_though_the_test_would_pass_alone(suite: Suite, after: str) -> None:
    dies = FLICKERS.format(name="dies").replace("assert seen", "import os\n    seen or os._exit(1)\n    assert seen")
    assert suite.run(*SPREAD, test_a=dies + after, test_b=PASSES, test_c=PASSES) == 1
    assert "a test process died during test_a.py::test_dies" in suite.told
    assert "once more" not in suite.told


def test_a_test_process_that_dies_between_tests_fails_the_run(suite: Suite) -> None:
    # The process dies after all of its tests have been reported.
    dies = "import pytest\n@pytest.fixture(scope='module')\ndef ends():\n    yield\n    import os; os._exit(1)\n"
    assert suite.run(*SPREAD, test_a=f"{dies}def test_uses(ends): pass\n", test_b=PASSES) == 1
    assert "died" in suite.told and "FLAKY" not in suite.told


def test_pytest_that_dies_itself_fails_the_run(suite: Suite) -> None:
    assert suite.run(test_a=f"{PASSES}def test_dies(): import os; os._exit(0)\n") == 1
    assert "pytest ended without a record of its run" in suite.told


@pytest.mark.parametrize("arguments", [ALONE, SPREAD])
def test_an_error_inside_pytest_fails_the_run(suite: Suite, arguments: tuple[str, ...]) -> None:
    hook = "def pytest_runtest_setup(item): pass\ndef pytest_runtest_logstart(nodeid): raise OSError('broken hook')\n"
    assert suite.run(*arguments, conftest=hook, test_a=PASSES) == 1
    assert "The run FAILED" in suite.told and "once more" not in suite.told


@pytest.mark.parametrize("arguments", [ALONE, SPREAD])
def test_no_tests_are_a_failure(suite: Suite, arguments: tuple[str, ...]) -> None:
    assert suite.run(*arguments, test_a="") == 1
    assert "NO_TESTS_COLLECTED" in suite.told


@pytest.mark.parametrize("arguments", [ALONE, SPREAD])
def test_a_file_that_cannot_be_read_fails_the_run(suite: Suite, arguments: tuple[str, ...]) -> None:
    assert suite.run(*arguments, test_a="import nothing_of_that_name\n", test_b=PASSES) == 1
    assert "test_a.py could not be collected" in suite.told and "once more" not in suite.told


@pytest.mark.parametrize("arguments", [ALONE, SPREAD])
def test_tests_without_an_outcome_fail_the_run(suite: Suite, arguments: tuple[str, ...]) -> None:
    hook = "def pytest_runtest_protocol(item): return True if item.name == 'test_lost' else None\n"
    assert suite.run(*arguments, conftest=hook, test_a=f"{PASSES}def test_lost(): pass\n") == 1
    assert "1 tests were collected and have no outcome:\n      test_a.py::test_lost" in suite.told


SKIPS = """
import pytest
def test_skips(): pytest.skip("needs sshd: it is missing")
@pytest.mark.xfail
def test_is_known(): assert False
"""


def test_a_skip_passes_for_people_and_fails_ci_unless_it_is_listed(suite: Suite) -> None:
    assert suite.run(test_a=SKIPS) == 0
    assert suite.run(allowed=()) == 1
    assert "1 tests were skipped that allowed_skips.toml does not list" in suite.told
    faults = suite.told.partition("The run FAILED")[2]
    assert "test_a.py::test_skips: needs sshd: it is missing" in faults
    assert "test_is_known" not in faults
    row = AllowedSkip("test_a.py::*", "needs sshd*", "anywhere", "a reason")
    assert suite.run(allowed=(row,)) == 0
    for other in (
        AllowedSkip("test_b.py::*", "needs sshd*", "anywhere", "of other tests"),
        AllowedSkip("test_a.py::*", "needs go*", "anywhere", "of another reason"),
    ):
        assert suite.run(allowed=(other,)) == 1


@pytest.mark.parametrize("arguments", [ALONE, SPREAD])
def test_a_file_that_is_skipped_as_a_whole_counts_as_a_skip(suite: Suite, arguments: tuple[str, ...]) -> None:
    text = "import pytest\npytest.skip('not here', allow_module_level=True)\n"
    assert suite.run(*arguments, allowed=(), test_a=text, test_b=PASSES) == 1
    assert "test_a.py: not here" in suite.told


DIVIDED = """
import pytest
def test_short(): pass
@pytest.mark.soak
def test_soak(): pass
@pytest.mark.soak
@pytest.mark.nightly
def test_both(): pass
@pytest.mark.nightly
def test_nightly(): pass
"""


def test_each_test_runs_in_just_one_of_the_three_parts(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n soak: long\n nightly: very long\n")
    (tmp_path / "test_a.py").write_text(DIVIDED)
    ran = []
    for expression in suite_run.PARTS.values():
        record = suite_run.run_pytest((*ALONE, "-m", expression), directory=tmp_path)
        assert record is not None
        ran += record.finished
    names = ["test_short", "test_soak", "test_both", "test_nightly"]
    assert ran == [f"test_a.py::{name}" for name in names]


def test_two_parts_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite_run.main(["--short", "--soak"]) == 2
    assert "--short and --soak exclude each other" in capsys.readouterr().err


def test_a_failed_nightly_test_is_repeated_though_the_settings_leave_it_out(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n nightly: very long\naddopts = -m 'not nightly'\n")
    text = FLICKERS.format(name="flickers").replace("def test", "import pytest\n@pytest.mark.nightly\ndef test")
    assert suite.run(*ALONE, "-m", "nightly", test_a=text, test_b=PASSES) == 0
    assert "FLAKY test_a.py::test_flickers" in suite.told


def test_a_run_under_load_repeats_no_test(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(FLICKERS.format(name="flickers"))
    assert suite_run.run_suite(ALONE, directory=tmp_path, allowed=None, most_retried=0) == 1


def test_a_run_names_the_files_that_took_longest(suite: Suite) -> None:
    slow = "import time\ndef test_waits(): time.sleep(0.3)\n"
    assert suite.run(test_a=PASSES, test_b=slow) == 0
    lines = suite.told.partition("the files that took longest")[2].splitlines()[1:]
    assert [line.split()[2] for line in lines] == ["test_b.py", "test_a.py"]
    assert "test_waits" in lines[0]


def test_the_load_is_of_a_lower_priority_and_ends_with_the_run() -> None:
    with stress.load(2) as processes:
        for process in processes:
            until(lambda process=process: psutil.Process(process.pid).nice() == stress.NICE)  # type: ignore[misc]
            assert process.poll() is None
    assert [process.poll() is None for process in processes] == [False, False]


def test_the_load_ends_by_itself() -> None:
    with stress.load(1, most_s=0.1) as (process,):
        assert process.wait(30) == 0


def test_the_load_does_not_outlive_a_run_that_is_killed() -> None:
    script = """
        import sys
        from tests.support import stress
        with stress.load(1) as (process,):
            print(process.pid, flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    run = subprocess.Popen(command, cwd=suite_run.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with run:
        assert run.stdout is not None
        load = psutil.Process(int(run.stdout.readline()))
        until(lambda: load.nice() == stress.NICE)
        run.kill()
    until(lambda: not load.is_running() or load.status() == psutil.STATUS_ZOMBIE)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "not within 30 s"
        time.sleep(0.02)
