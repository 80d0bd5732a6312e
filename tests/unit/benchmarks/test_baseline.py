"""The commit that the files of figures name."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks import baseline


def test_only_changes_of_code_are_told(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name in ("RESULTS.md", "baseline.json", "bulk.py"):
        (folder / name).write_text("a")
    assert baseline.commit(folder) == "unknown"
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    head = baseline.commit(folder)
    (folder / "RESULTS.md").write_text("b")
    (folder / "baseline.json").write_text("b")
    assert baseline.commit(folder) == head
    (folder / "bulk.py").write_text("b")
    assert baseline.commit(folder) == f"{head}+changes"
