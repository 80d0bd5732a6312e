"""The home of the loop's CLI: it cannot contain logs, and existing logs are removed."""

from __future__ import annotations

from pathlib import Path

from automation.engine.workspace import Workspace


def test_the_home_has_a_file_in_the_place_of_the_logs(tmp_path: Path) -> None:
    old = tmp_path / "home" / "logs" / "pulumi-20261101T120000-1-up.log"
    old.parent.mkdir(parents=True)
    old.write_text("a log of an earlier release")
    (tmp_path / "home" / "plugins").mkdir()
    beside = tmp_path / "logs"
    beside.mkdir()
    workspace = Workspace(tmp_path)
    for _ in range(2):
        workspace.prepare()
        assert (tmp_path / "home" / "logs").is_file()
    assert (tmp_path / "home" / "plugins").is_dir()
    assert beside.is_dir()
    environment = workspace.environment({})
    assert environment["PULUMI_HOME"] == str(tmp_path / "home")
    assert environment["PULUMI_SKIP_CHECKPOINTS"] == "true"
