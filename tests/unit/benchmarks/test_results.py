"""The table of the releases' figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.results import COLUMNS, FILE, append, command_line, rows

SUMMARY = {
    "herdsman": {"create 100 (s)": 4.683, "change p50 (s)": 0.5712, "RSS at 100 (MB)": 131.2},
    "peer": {"create 100 (s)": 3.31, "change p50 (s)": 0.2398, "RSS at 100 (MB)": 82.0},
}


def _cells(line: str) -> dict[str, str]:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert len(cells) == len(COLUMNS)
    return dict(zip(COLUMNS, cells, strict=True))


def test_a_release_gets_a_row_for_each_controller() -> None:
    own, other = map(_cells, rows("0.1.0", SUMMARY, peer_name="LLMKube 0.9.19", command="python -m benchmarks"))
    assert (own["release"], own["controller"], other["controller"]) == ("0.1.0", "herdsman", "LLMKube 0.9.19")
    assert (own["create 100 (s)"], own["change p50 (s)"], own["create 1000 (s)"]) == ("4.68", "0.571", "")
    assert other["RSS at 100 (MB)"] == "82"
    assert own["command"] == "`python -m benchmarks`"
    assert own["commit"]


def test_rows_are_added_at_the_end_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    shutil.copy(FILE, path)
    before = path.read_text()
    for release in ("0.1.0", "0.2.0"):
        append(path, rows(release, SUMMARY, peer_name="LLMKube 0.9.19", command="python -m benchmarks"))
    added = path.read_text().removeprefix(before).splitlines()
    found = [(_cells(line)["release"], _cells(line)["controller"]) for line in added]
    names = ("herdsman", "LLMKube 0.9.19")
    assert found == [(release, name) for release in ("0.1.0", "0.2.0") for name in names]


def test_a_file_with_other_columns_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text("# Figures\n\n| release | figure |\n|---|---|\n| 0.1.0 | 1 |\n")
    before = path.read_text()
    with pytest.raises(ValueError, match="does not end with a table"):
        append(path, ["| 0.2.0 | 2 |"])
    assert path.read_text() == before


def test_all_rows_of_the_committed_table_have_all_columns() -> None:
    table = FILE.read_text().rstrip("\n").rpartition("\n\n")[2].splitlines()
    assert len(table) >= 2
    assert [_cells(line) for line in table]
    assert set(results.MEASURES) <= set(_cells(table[0]))


def test_the_command_names_no_local_paths() -> None:
    given = ["--rounds", "3", "--peer", "/opt/x/manager --flag", "--peer-crds=/opt/x/crds", "--release=0.1.0"]
    assert command_line(given) == "python -m benchmarks --rounds 3 --peer …"
