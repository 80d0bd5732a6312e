"""The login item of local mode, on fakes of launchd and systemd that run real processes."""

from __future__ import annotations

import plistlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.steps import launchd
from agent.steps.machine import Facts
from agent.steps.step import State, run_steps
from agent.steps.systemd import unit_text
from automation.local.folders import LocalFolders
from automation.local.login_item import install_steps, login_service, removal_steps
from tests.support.services import FakedMachine


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


def test_the_unit_of_a_login_ends_with_the_session(folders: LocalFolders) -> None:
    service = login_service(folders, [sys.executable, "-m", "x"], {"PATH": "/usr/bin", "AWS_SECRET_ACCESS_KEY": "no"})
    facts = Facts(os="linux", uid=1000, user="you", home="/home/you")
    titles = [step.title for step in install_steps(service, facts)]
    assert not any("lingers" in title for title in titles)
    text = unit_text(service, own_user=True)
    assert "WantedBy=default.target" in text
    assert "AWS" not in text
    assert f"StandardOutput=append:{folders.log}" in text
