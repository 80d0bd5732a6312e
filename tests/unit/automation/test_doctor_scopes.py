"""The scopes of `herdsman doctor`: how they are read, and what is checked without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from automation.cli import agent_main
from automation.cli.doctor_scopes import Finding, Request, Scope, ScopeUnknown, coverage, read_request, skipped
from automation.cli.local_checks import judge_local
from automation.cli.main import invoke
from automation.console.check import Check
from automation.local.applied import FileProblem
from automation.local.folders import LocalFolders
from automation.local.instance import Instance
from automation.local.state import LocalState
from automation.places.place import ServiceState, State


def test_scopes_are_read_in_their_order_and_a_host_has_a_name() -> None:
    assert read_request([]) == Request(is_open=True)
    assert read_request(["loop", "cluster", "loop"]) == Request((Scope.LOOP, Scope.CLUSTER))
    assert read_request(["host", "hosts", "host", "mac-1"]) == Request((), ("hosts", "mac-1"))
    assert read_request(["agent", "--store", "x"]) == Request((Scope.AGENT,), agent_options=("--store", "x"))
    assert read_request([], ["studio"]) == Request(hosts=("studio",), is_open=True)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["clutser"], "did you mean `cluster`"),
        (["host"], "needs a name"),
        (["host", "--store"], "needs a name"),
        (["local", "--store", "x"], "those of an agent"),
        (["mac-1"], "host, cluster, loop"),
    ],
)
def test_a_wrong_scope_names_the_right_ones(words: list[str], part: str) -> None:
    with pytest.raises(ScopeUnknown, match=part):
        read_request(words)


def test_a_named_host_is_a_scope_and_no_scope_is_each() -> None:
    one = read_request(["host", "mac-1"])
    assert [scope for scope in Scope if one.wants(scope)] == [Scope.HOSTS]
    assert all(read_request([]).wants(scope) for scope in Scope)


def test_what_was_not_checked_is_named() -> None:
    findings = [Finding("loop", Check("python", "ok", "")), skipped(Scope.AGENT, "no agent is installed")]
    assert coverage(findings) == "Checked: loop. Not checked: agent."
    assert findings[1].check.detail == "not checked: no agent is installed"


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without kubeconfig, agent and local mode."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def test_a_machine_without_anything_is_told_each_part_that_was_not_checked(
    newcomer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["doctor", "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {each["scope"] for each in found if each["state"] == "skipped"} >= {"hosts", "gateway", "agent", "local"}
    (cluster,) = (each for each in found if each["scope"] == "cluster")
    assert cluster["state"] == "missing" and "herdsman cluster up" in cluster["hint"]
    assert invoke(["doctor"]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].split() == ["SCOPE", "CHECK", "STATE", "DETAIL", "WHAT", "TO", "DO"]
    assert "Not checked: hosts, gateway, agent, local." in shown.err


def test_a_named_scope_is_checked_alone(newcomer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "local", "-o", "json"]) == 1
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert {each["scope"] for each in found.values()} == {"local"}
    assert found["local mode"]["state"] == "missing" and "local up" in found["local mode"]["hint"]


def test_the_older_names_print_what_they_printed(newcomer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--plan-source", "http", "--store", str(newcomer / "store"), "--address", "127.0.0.1")
    old = invoke(["agent", "doctor", *options, "-o", "json"])
    before = capsys.readouterr()
    new = invoke(["doctor", "agent", "-o", "json", "--", *options])
    after = capsys.readouterr()
    assert old == new and before.err == after.err == ""
    plain = [{key: value for key, value in each.items() if key != "scope"} for each in json.loads(after.out)]
    assert [each["check"] for each in json.loads(before.out)] == [each["check"] for each in plain]
    assert set(json.loads(before.out)[0]) == {"check", "state", "detail", "hint"}
    assert agent_main.run(["doctor", "agent", "--", *options, "-o", "json"]) == old
    assert [each["check"] for each in json.loads(capsys.readouterr().out)] == [each["check"] for each in plain]


@pytest.mark.parametrize("group", ["agent", "host"])
def test_the_help_does_not_list_the_older_names(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([group, "--help"]) == 0
    assert "doctor" not in capsys.readouterr().out


def test_local_mode_is_judged_by_what_it_says_of_itself(tmp_path: Path) -> None:
    folders = LocalFolders(tmp_path / "config", tmp_path / "state", tmp_path / "store")
    failed = ServiceState("default", "chat", State.FAILED, "Failed", reason="CrashLoop", message="exit code 1")
    well = ServiceState("default", "embed", State.ASLEEP, "Asleep")
    problems = (FileProblem(file="a.yaml", message="is no YAML"),)
    state = LocalState(folders, Instance(pid=1, mark="m"), (failed, well), problems)
    found = {each.check: each for each in judge_local(state)}
    assert {name: each.state for name, each in found.items()} == {
        "local mode": "warning",
        "file a.yaml": "missing",
        "service default/chat": "warning",
    }
    assert found["service default/chat"].detail == "CrashLoop: exit code 1"
