"""Runs tests as `make test` and CI do: `python -m tests.support.suite_run [options] [arguments of pytest]`.

`--short` runs the tests of `make test`, `--soak` those of `make test-soak`, `--nightly` those of `make test-nightly`.
The markers `soak` and `nightly` divide the tests. Without an option the short and the long tests run.

Tests use real servers with deadlines, and several test processes share the machine. Up to three failed tests are
therefore repeated once, one at a time; tests that pass then are listed as FLAKY at the end. Everything else fails the
run: more failed tests, a test process that died, an error inside pytest, no tests, tests without an outcome. With
`--ci` a skip that tests/allowed_skips.toml does not list fails the run as well. With `--stress` other processes load
the machine during the run, and no failed test is repeated. At its end a run prints the files that took longest.
"""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support import allowed_skips, needs, stress
from tests.support.allowed_skips import AllowedSkip
from tests.support.run_record import RunRecord

ROOT = Path(__file__).resolve().parents[2]
MOST_RETRIED = 3
# Tests wait for servers more than half of the time, so five test processes keep two cores busy.
# A test process that died is not replaced: the run has failed anyway, and xdist can hang when it replaces one.
IN_PARALLEL = ("-n", "5", "--dist", "loadfile", "--max-worker-restart", "0")
PARTS = {
    "--short": "not soak and not nightly",
    "--soak": "soak and not nightly",
    "--nightly": "nightly",
}
"""The tests of each option, as an expression of markers."""
_OTHER_OPTIONS = ("--ci", "--stress")
_SHOWN = 20
_LONGEST_SHOWN = 10


def main(arguments: Sequence[str]) -> int:
    """Run the tests. Returns the exit code: 0 when all passed, perhaps some at the second try."""
    chosen = [each for each in arguments if each in PARTS]
    if len(chosen) > 1:
        print(f"{' and '.join(chosen)} exclude each other", file=sys.stderr)
        return 2
    given = [each for each in arguments if each not in (*PARTS, *_OTHER_OPTIONS)]
    if chosen:
        given = ["-m", PARTS[chosen[0]], *given]
    for line in needs.lines():
        print(line)
    sys.stdout.flush()
    allowed = allowed_skips.read() if "--ci" in arguments else None
    if "--stress" not in arguments:
        return run_suite(("-q", *IN_PARALLEL, *given), directory=ROOT, allowed=allowed)
    with stress.load():
        return run_suite(("-q", *IN_PARALLEL, *given), directory=ROOT, allowed=allowed, most_retried=0)


def run_suite(
    arguments: Sequence[str],
    *,
    directory: Path,
    allowed: Iterable[AllowedSkip] | None,
    most_retried: int = MOST_RETRIED,
) -> int:
    """Run the tests of a directory, and repeat the failed ones, at most `most_retried`.

    `allowed` lists the skips of CI; None allows all.
    """
    rows = None if allowed is None else tuple(allowed)
    first = run_pytest(arguments, directory=directory)
    if first is not None:
        for line in longest(first.seconds):
            print(line)
        sys.stdout.flush()
    if faults := faults_of(first, rows, most_retried):
        return _fail(faults)
    assert first is not None
    if not first.failed:
        return 0
    print(f"\nRunning {len(first.failed)} failed tests once more, alone", flush=True)
    second = run_pytest(("-q", "-m", "", *first.failed), directory=directory)
    if faults := faults_of_retry(second, first.failed):
        return _fail(faults)
    print(f"\n{len(first.failed)} FLAKY: failed beside other tests, passed alone")
    for test, cause in first.failed.items():
        print(f"FLAKY {test}\n    {cause}")
    sys.stdout.flush()
    return 0


def run_pytest(arguments: Sequence[str], *, directory: Path) -> RunRecord | None:
    """Run pytest in a separate process. Returns its record, or None when it ended before it wrote one."""
    with tempfile.TemporaryDirectory(prefix="herdsman-test-run-") as folder:
        file = Path(folder) / "record.json"
        command = [sys.executable, "-m", "pytest", "-p", "tests.support.run_record", f"--record-run={file}"]
        environment = dict(os.environ)
        if directory != ROOT:
            environment["PYTHONPATH"] = str(ROOT)
        ended = subprocess.run([*command, *arguments], cwd=directory, env=environment, check=False)
        record = RunRecord.read(file)
    if record is not None and record.exit_code != ended.returncode:
        record.errors.append(f"pytest ended with {ended.returncode} after it had said {record.exit_code}")
        record.exit_code = ended.returncode
    return record


def longest(seconds: Mapping[str, float]) -> list[str]:
    """Return lines with the files whose tests took longest in all, and the longest test of each. Fixtures count."""
    files: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)
    for test, taken_s in seconds.items():
        files[test.partition("::")[0]].append((taken_s, test.partition("::")[2]))
    order = sorted(files, key=lambda file: sum(taken_s for taken_s, _ in files[file]), reverse=True)
    lines = [f"the files that took longest, of {sum(seconds.values()):.0f} s for all tests one after another:"]
    for file in order[:_LONGEST_SHOWN]:
        most_s, test = max(files[file])
        lines.append(f"  {sum(taken_s for taken_s, _ in files[file]):6.1f} s {file} ({most_s:.1f} s {test})")
    return lines if order else []


def faults_of(
    record: RunRecord | None, allowed: Sequence[AllowedSkip] | None, most_retried: int = MOST_RETRIED
) -> list[str]:
    """Return why a run fails without a second try; empty when all tests passed or few enough failed."""
    if record is None:
        return ["pytest ended without a record of its run"]
    faults = list(record.errors)
    faults += [f"a test process died during {test}" for test in record.crashed]
    if record.exit_code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        faults.append(f"pytest ended with {_named(record.exit_code)}")
    elif bool(record.exit_code) != bool(record.failed):
        faults.append(f"pytest ended with {_named(record.exit_code)}, and {len(record.failed)} tests failed")
    lost = [test for test in record.collected if test not in set(record.finished)]
    faults += _listed("tests were collected and have no outcome", lost)
    if len(record.failed) > most_retried:
        rule = f"at most {most_retried} get a second try" if most_retried else "none gets a second try"
        faults.append(f"{len(record.failed)} tests failed; {rule}")
    if allowed is not None:
        skipped = allowed_skips.unlisted(record.skipped, allowed)
        rows = [f"{test}: {reason}" for test, reason in skipped.items()]
        faults += _listed(f"tests were skipped that {allowed_skips.FILE.name} does not list", rows)
    return faults


def faults_of_retry(record: RunRecord | None, failed: Mapping[str, str]) -> list[str]:
    """Return why the second try fails; empty when each of the tests passed."""
    if record is None:
        return ["the second try ended without a record of its run"]
    faults = faults_of(record, None)
    faults += [f"{test} failed twice: {cause}" for test, cause in record.failed.items()]
    faults += _listed("tests did not run at the second try", [test for test in failed if test not in record.finished])
    faults += _listed("tests were skipped at the second try", list(record.skipped))
    return faults


def _fail(faults: Iterable[str]) -> int:
    print("\nThe run FAILED:")
    for fault in faults:
        print(f"  {fault}")
    sys.stdout.flush()
    return 1


def _listed(what: str, rows: Sequence[str]) -> list[str]:
    if not rows:
        return []
    more = [f"    and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return [f"{len(rows)} {what}:", *(f"    {row}" for row in rows[:_SHOWN]), *more]


def _named(code: int | None) -> str:
    names = {int(each): each.name for each in pytest.ExitCode}
    return f"{code} ({names[code]})" if code in names else str(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
