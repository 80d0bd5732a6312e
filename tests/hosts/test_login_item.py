"""The login item of local mode, on fakes of launchd and systemd that run real processes."""

from __future__ import annotations

import os
import plistlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.steps import launchd
from agent.steps.step import State, run_steps
from automation.local.background import command, wait_until_serving
from automation.local.folders import LocalFolders
from automation.local.instance import running_instance
from automation.local.login_item import install_steps, login_service, removal_steps
from tests.support.agents import gone
from tests.support.services import FakedMachine
from tests.support.supervising import free_port


@pytest.fixture
def folders(tmp_path: Path) -> LocalFolders:
    made = LocalFolders(tmp_path / "config", tmp_path / "state", tmp_path / "store")
    made.make()
    return made


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[FakedMachine]:
    made = FakedMachine(tmp_path / "root", "launchctl")
    yield made
    made.end()


def test_a_launch_agent_is_installed_in_the_session_of_its_user_and_removed(
    mac: FakedMachine, folders: LocalFolders, tmp_path: Path
) -> None:
    facts = replace(mac.facts, uid=501, home=str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    service = replace(login_service(folders, argv, {"HOME": "/home/you", "HF_TOKEN": "secret"}), log_file="")
    steps = install_steps(service, facts)
    outcomes = run_steps(steps, mac)
    assert [each for each in outcomes if each.state is State.FAILED] == []
    path = tmp_path / "home/Library/LaunchAgents/dev.herdsman.local.plist"
    assert "secret" not in path.read_text()
    assert plistlib.loads(path.read_bytes())["EnvironmentVariables"]["HOME"] == "/home/you"
    pid = mac.pid_of("dev.herdsman.local")
    assert pid
    assert {each.state for each in run_steps(steps, mac)} == {State.OK}
    assert all("system/" not in call for call in mac.calls())

    assert not [each for each in run_steps(removal_steps(facts), mac) if each.state is State.FAILED]
    assert not path.exists()
    assert launchd.job_state(mac, "dev.herdsman.local", launchd.Domain.of_user(facts)) is None


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakedMachine]:
    """A machine whose user has a systemd, with its units in the folder of a test."""
    made = FakedMachine(tmp_path / "root", "systemctl")
    # A user's manager is called through `env`, which looks on PATH.
    monkeypatch.setenv("PATH", f"{made.commands}:{os.environ['PATH']}")
    (made.state / "units").write_text(str(tmp_path / "home/.config/systemd/user"))
    yield made
    made.end()


def test_a_unit_of_the_user_runs_local_mode_until_it_is_removed(
    linux: FakedMachine, tmp_path: Path, pulumi_cli: Path
) -> None:
    (tmp_path / "home").mkdir()
    facts = replace(linux.facts, uid=1000, home=str(tmp_path / "home"))
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME")},
        **{f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "STATE", "DATA")},
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    folders = LocalFolders.of_user(environment)
    folders.make()
    service = login_service(folders, command(f"127.0.0.1:{free_port()}", ()), environment)
    steps = install_steps(service, facts)
    assert not any("lingers" in step.title for step in steps), "it ends with the session"
    assert [each for each in run_steps(steps, linux) if each.state is State.FAILED] == []
    unit = tmp_path / "home/.config/systemd/user/herdsman-local.service"
    assert "WantedBy=default.target" in unit.read_text()
    assert "AWS" not in unit.read_text()

    found = wait_until_serving(folders, timeout_s=90)
    assert found is not None, folders.log.read_text()
    assert not [each for each in run_steps(removal_steps(facts), linux) if each.state is State.FAILED]
    assert not unit.exists()
    assert gone(found.pid)
    assert running_instance(folders) is None
    assert not folders.instance.exists(), "it ended in good order"
