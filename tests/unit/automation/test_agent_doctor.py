"""The findings of `herdsman doctor agent`."""

from __future__ import annotations

import base64
import errno
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.server.joining.identity import kubeconfig_text
from automation.cli import agent_cluster_checks, agent_machine_checks, agent_macos_checks
from automation.cli.agent_cluster_checks import clock_finding, clock_offset_s
from automation.cli.agent_machine_checks import store_finding
from automation.cli.agent_macos_checks import collector_finding, sleep_finding
from automation.cli.agent_token_check import token_finding

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
DATE = "Sat, 21 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("sent", "received", "state"),
    [
        (0.2, 0.4, "ok"),  # a Date header has a resolution of one second
        (-0.5, 0.1, "ok"),
        (6.0, 6.2, "warning"),
        (-30.0, -29.9, "warning"),
        (300.0, 300.1, "failed"),
        (-3600.0, -3599.0, "failed"),
    ],
)
def test_a_clock_is_judged_by_the_servers_date(sent: float, received: float, state: str) -> None:
    base = NOW.timestamp()
    offset = clock_offset_s(DATE, base + sent, base + received)
    found = clock_finding(offset)
    assert found.state == state
    if state != "ok":
        assert ("ahead" in found.detail) == (sent > 0) and "ntp" in found.hint


def test_macs_are_told_of_the_wired_collector_and_of_launch_agents(tmp_path: Path) -> None:
    assert list(collector_finding(None, "26.1")) == [] and list(collector_finding("0", "15.6")) == []
    assert [each.state for each in collector_finding("1", "26.0")] == ["ok"]
    (found,) = collector_finding("0", "26.1")
    assert found.state == "warning" and "sysctl iogpu.disable_wired_collector=1" in found.hint
    ours, other = tmp_path / "dev.herdsman.agent.plist", tmp_path / "com.example.plist"
    ours.write_text("<string>/opt/herdsman</string><string>agent</string>")
    other.write_text("<string>/opt/other</string>")
    (trap,) = agent_macos_checks.agent_trap([ours, other, tmp_path / "missing.plist"])
    assert trap.state == "failed" and "LaunchDaemon" in trap.hint


def test_no_route_to_the_cluster_on_a_mac_is_named_for_what_it_is() -> None:
    inner = OSError(errno.EHOSTUNREACH, "No route to host")
    outer = RuntimeError("unreachable")
    outer.__cause__ = inner
    assert agent_cluster_checks.is_no_route(outer)
    assert agent_cluster_checks.is_no_route(RuntimeError("[Errno 65] No route to host"))
    assert not agent_cluster_checks.is_no_route(OSError(errno.ECONNREFUSED, "Connection refused"))


def test_a_store_must_be_writable_and_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_machine_checks, "LITTLE_SPACE_BYTES", 1)
    found = store_finding(tmp_path / "a" / "b", lambda *_: True)
    assert found.state == "ok" and f"the agent creates it in {tmp_path}" in found.detail
    assert store_finding(tmp_path, lambda *_: False).state == "failed"
    (tmp_path / "file").touch()
    assert "not a directory" in store_finding(tmp_path / "file" / "store", lambda *_: True).detail
    monkeypatch.setattr(agent_machine_checks, "LITTLE_SPACE_BYTES", 1 << 60)
    assert store_finding(tmp_path, lambda *_: True).state == "warning"


@pytest.mark.parametrize(("days", "state"), [(400, "ok"), (29, "warning"), (-1, "failed")])
def test_a_certificate_is_warned_of_before_it_ends(days: int, state: str) -> None:
    assert agent_machine_checks.certificate_finding("/c.crt", NOW + timedelta(days=days, hours=1), NOW).state == state


def test_a_mac_that_sleeps_is_named_with_the_command_that_helps() -> None:
    printed = "System-wide power settings:\nCurrently in use:\n standby              1\n sleep                %s\n"
    (warned,) = sleep_finding(printed % "1 (sleep prevented by caffeinate)")
    assert warned.state == "warning" and "pmset" in warned.hint
    (fine,) = sleep_finding(printed % "0")
    assert fine.state == "ok"
    assert list(sleep_finding("")) == [], "no Mac"


@pytest.mark.parametrize(("day", "state"), [(1, "ok"), (19, "ok"), (21, "warning"), (31, "failed")])
def test_the_token_of_a_host_that_joined_is_judged_by_its_age(tmp_path: Path, day: int, state: str) -> None:
    claims = json.dumps({"sub": "a", "iat": 0, "exp": 30 * 86400}).encode()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubeconfig_text("https://10.0.0.1", "mac-1"))
    (tmp_path / "token").write_text(f"a.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c")
    [found] = token_finding(kubeconfig, day * 86400.0)
    assert found.state == state and "1970-01-31" in found.detail
    (tmp_path / "token").unlink()
    [found] = token_finding(kubeconfig, 0.0)
    assert found.state == "failed" and "host invite mac-1 --again" in found.hint
    kubeconfig.write_text("apiVersion: v1\n")
    assert list(token_finding(kubeconfig, 0.0)) == []
