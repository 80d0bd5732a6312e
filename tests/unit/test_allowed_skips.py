"""The skips that CI allows, and the table of tools and rights that a machine lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import allowed_skips, needs, suite_run
from tests.support.allowed_skips import AllowedSkip, AllowListBroken
from tests.support.needs import Need
from tests.support.run_record import RunRecord


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (RunRecord(collected=["a"], finished=["a"], exit_code=0), []),
        (RunRecord(collected=["a"], finished=["a"], failed={"a": "x"}, exit_code=1), []),
        (RunRecord(collected=["a"], failed={"a": "x"}, exit_code=1), ["1 tests were collected and have no outcome:"]),
        (RunRecord(collected=["a"], finished=["a"], exit_code=1), ["pytest ended with 1 (TESTS_FAILED), and 0 tests"]),
        (RunRecord(exit_code=2), ["pytest ended with 2 (INTERRUPTED)"]),
        (RunRecord(exit_code=-9), ["pytest ended with -9"]),
        (None, ["pytest ended without a record"]),
    ],
)
def test_only_failed_tests_get_a_second_try(record: RunRecord | None, told: list[str]) -> None:
    faults = suite_run.faults_of(record, None)
    assert [fault[: len(start)] for fault, start in zip(faults, told, strict=False)] == told
    assert bool(faults) == bool(told)


def test_the_list_of_allowed_skips_names_files_that_exist() -> None:
    rows = allowed_skips.read()
    tests = Path(__file__).resolve().parents[1]
    for row in rows:
        assert list(tests.parent.glob(row.tests.partition("::")[0])), f"{row.tests} names no file"
    assert len({(row.tests, row.reason) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("skip = 1", "object is not iterable"),
        ("[[skip]]\ntests = 'a'\nreason = 'b'\nwhere = 'anywhere'\n", "why"),
        ("[[skip]]\ntests = 'a'\nreason = 'b'\nwhere = 'the moon'\nwhy = 'c'\n", "where = 'the moon'"),
        ("[[skip]]\ntests = '*'\nreason = '*'\nwhere = 'anywhere'\nwhy = 'c'\n", "needs a test"),
    ],
)
def test_a_list_with_a_row_that_says_too_little_is_refused(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "skips.toml").write_text(text)
    with pytest.raises(AllowListBroken, match=wrong):
        allowed_skips.read(tmp_path / "skips.toml")


def test_brackets_of_a_test_id_mean_themselves() -> None:
    row = AllowedSkip("a.py::test[busybox-*]", "no busybox", "anywhere", "why")
    assert row.covers("a.py::test[busybox-1]", "no busybox") and not row.covers("a.py::testb", "no busybox")


def test_the_table_says_what_is_missing_what_is_skipped_and_what_brings_it() -> None:
    needs_of_two = (
        Need("sshd", lambda: "sshd not on PATH", "hosts over SSH", ("openssh-server", "openssh-client")),
        Need("helm", lambda: "helm not on PATH", "the chart", other_command="go install helm"),
        Need("go", lambda: "", "builds", ("golang-go",)),
    )
    told = needs.lines(needs_of_two)
    assert [line.split("  ")[1] for line in told if line.startswith("  ")] == ["missing", "sshd", "helm"]
    assert "hosts over SSH" in told[2] and told[2].endswith("apt-get install openssh-server openssh-client")
    assert told[3].endswith("go install helm")
    assert told[-1] == "All packages at once: apt-get install openssh-client openssh-server"
    assert needs.lines(needs_of_two[2:]) == ["All that the tests need is on this machine."]


def test_a_need_that_is_missing_skips_with_the_words_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="needs busybox: busybox not on PATH; apt-get install busybox-stat"):
        needs.require("busybox")
