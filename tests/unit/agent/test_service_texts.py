"""The files for systemd and launchd: every argument must reach the process unchanged."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from agent.steps import launchd, systemd
from agent.steps.machine import Facts
from agent.steps.service import MARK, NotExpressible, Service
from agent.steps.step import difference

ODD = ("a b", '"q"', "it's", "$HOME", "${X}", "100%", "%h", "", "\\", "new\nline", "tab\t", "ünï", ";", "-x=1", "\x01")


@pytest.fixture
def service() -> Service:
    return Service(
        name="herdsman-agent",
        description="Herdsman agent, 100%\nof it",
        argv=("/usr/bin/env", "agent", *ODD),
        environment={"PLAIN": "1", "ODD": 'a "b" 50% $X \\'},
        user="daemon",
        keep_children=True,
        log_file="/Library/Logs/Herdsman/agent.log",
    )


def test_arguments_and_variables_are_quoted_for_systemd(service: Service) -> None:
    text = systemd.unit_text(service)
    assert "Description=Herdsman agent, 100%% of it\n" in text
    assert (
        r'ExecStart=/usr/bin/env agent "a b" "\"q\"" "it' + "'s"
        r'" "$$HOME" "$${X}" "100%%" "%%h" "" "\\" "new\nline" "tab\t" "ünï" ";" -x=1 "\x01"' + "\n"
    ) in text
    assert r'Environment="ODD=a \"b\" 50%% $X \\"' + "\n" in text
    assert f"Environment={MARK}={service.mark}\n" in text


def test_the_unit_keeps_children_and_takes_no_gpu_away(service: Service) -> None:
    text = systemd.unit_text(service)
    assert "KillMode=process\n" in text and "OOMPolicy=continue\n" in text and "User=daemon\n" in text
    assert "Restart=always\n" in text and "StartLimitIntervalSec=0\n" in text
    for taken in ("NoNewPrivileges", "PrivateDevices", "MemoryDenyWriteExecute", "PrivateTmp", "ProtectHome"):
        assert taken not in text
    plain = systemd.unit_text(replace(service, keep_children=False, max_starts=4))
    assert "KillMode=mixed\n" in plain and "StartLimitBurst=4\n" in plain and "OOMPolicy" not in plain
    own = systemd.unit_text(service, own_user=True)
    assert "User=" not in own and "Protect" not in own and "WantedBy=default.target\n" in own
    facts = Facts(os="linux", uid=1000, user="eva", home="/home/eva")
    assert systemd.unit_path("x", facts, own_user=True) == "/home/eva/.config/systemd/user/x.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(service: Service, tmp_path: Path) -> None:
    for own_user in (False, True):
        unit = tmp_path / "herdsman-agent.service"
        unit.write_text(systemd.unit_text(service, own_user=own_user))
        argv = ["systemd-analyze", "--man=no", "--recursive-errors=no", "verify", str(unit)]
        told = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"})
        assert "herdsman-agent.service" not in told.stderr, told.stderr


def test_the_property_list_says_the_same(service: Service) -> None:
    # A property list cannot contain control characters, so the argument with one is left out.
    keys = plistlib.loads(launchd.plist(replace(service, argv=service.argv[:-1])))
    assert keys["ProgramArguments"] == ["/usr/bin/env", "agent", *ODD[:-1]]
    assert keys["EnvironmentVariables"]["ODD"] == 'a "b" 50% $X \\'
    assert keys["UserName"] == "daemon" and keys["KeepAlive"] is True and keys["AbandonProcessGroup"] is True
    assert keys["Label"] == "dev.herdsman.agent" and keys["StandardErrorPath"] == "/Library/Logs/Herdsman/agent.log"
    assert launchd.plist_path(service.label) == "/Library/LaunchDaemons/dev.herdsman.agent.plist"
    with pytest.raises(NotExpressible):
        launchd.plist(service)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "../evil"}, "not a service name"),
        ({"argv": ("herdsman",)}, "absolute path"),
        ({"argv": ("/bin/x", "a\0b")}, "NUL"),
        ({"user": "eva; rm"}, "not a user name"),
        ({"environment": {"A B": "1"}}, "environment variable"),
    ],
)
def test_what_no_manager_could_run_is_refused(service: Service, change: dict[str, object], told: str) -> None:
    with pytest.raises(NotExpressible, match=told):
        replace(service, **change)  # type: ignore[arg-type]
    with pytest.raises(NotExpressible, match="no way to write"):
        systemd.command_line(("/opt/$x/herdsman",))


def test_another_definition_has_another_mark_and_waiting_longer_is_none(service: Service) -> None:
    assert replace(service, user="eva").mark != service.mark
    assert replace(service, settle_s=9.0).mark == service.mark
    logged = replace(service, log_to_file=True)
    assert "StandardError=append:/Library/Logs/Herdsman/agent.log\n" in systemd.unit_text(logged)
    assert logged.mark != service.mark and "Standard" not in systemd.unit_text(service)
    assert service.marked_environment[MARK] == service.mark


def test_a_difference_is_a_unified_diff_of_limited_size() -> None:
    assert difference("/x", b"a\nb\n", b"a\nc\n").splitlines()[-2:] == ["-b", "+c"]
    assert difference("/x", None, b"a").startswith("--- /dev/null\n+++ /x\n")
    assert difference("/x", b"\xff", b"a") == ""
    assert difference("/x", None, b"a\n" * 500).endswith("more lines\n")
