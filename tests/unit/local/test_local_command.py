"""`herdsman local` as far as it needs no instance: what it refuses, what it says, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from automation.cli.main import invoke
from automation.local.applied import Applied, FileProblem
from automation.local.folders import LocalFolders


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    # The real home may have a login item.
    monkeypatch.setattr("automation.local.login_item.is_installed", lambda _facts: False)
    return tmp_path


def test_status_of_what_does_not_run_fails_and_says_how_to_start_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["local", "status"]) == 1
    assert "herdsman local up" in capsys.readouterr().out


def test_status_for_scripts_has_the_services_and_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    folders = LocalFolders.of_user()
    folders.make()
    Applied(problems=(FileProblem(file="chat.yaml", message="is not YAML"),)).write(folders.applied)
    assert invoke(["local", "status", "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["running"] is False
    assert told["problems"] == [{"file": "chat.yaml", "message": "is not YAML"}]


def test_down_of_what_does_not_run_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["local", "down"]) == 0
    assert "was not running" in capsys.readouterr().out


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "192.168.1.2:80", "localhost", "127.0.0.1:99999", "8080"])
def test_only_an_address_on_loopback_is_accepted(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["local", "up", "--listen", listen]) == 64
    assert "--listen" in capsys.readouterr().err


def test_a_missing_pulumi_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke(["local", "up"]) == 1
    told = capsys.readouterr().err
    assert "pulumi" in told
    assert "herdsman tools install pulumi" in told


def test_a_login_item_cannot_stay_in_the_foreground() -> None:
    assert invoke(["local", "up", "--foreground", "--at-login"]) == 64
