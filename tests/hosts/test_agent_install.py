"""An agent under a service manager, installed, changed, upgraded, killed and taken away, while a real model serves."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.client.http import HttpHost, token_from
from agent.server.process import marked_processes
from agent.server.run_file import read_run_file
from automation.cli import agent_service, main
from tests.support.agents import HOST, _end_all, gone, llama_plan, until
from tests.support.controlplane import eventually
from tests.support.services import FakedMachine

VERSION = agent_service.agent_version()


@pytest.fixture(params=["systemctl", "launchctl"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakedMachine]:
    made = FakedMachine(tmp_path / "root", request.param)
    monkeypatch.setattr(agent_service, "this_machine", lambda: made)
    yield made
    made.end()
    _end_all(tmp_path / "store")


def herdsman(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main.invoke(["agent", *words, "-o", "json"])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out)


def test_model_servers_outlive_every_change_of_the_agent_and_go_only_when_asked(
    machine: FakedMachine,
    tmp_path: Path,
    llama_server: Path,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = tmp_path / "store"
    run = ("--host", HOST, "--store", str(store), "--plan-source", "http", "--address", "127.0.0.1")
    run = (*run, "--allowed-host-path-roots", str(tiny_model.parent))
    own = ("--user", machine.facts.user, "--env", f"HERDSMAN_LLAMA_SERVER={llama_server}")
    install = ("install", *own, *run)

    def agent_pid() -> int:
        found = read_run_file(store)
        assert found is not None and psutil.pid_exists(found.pid)
        return found.pid

    def client() -> HttpHost:
        found = read_run_file(store)
        assert found is not None
        return HttpHost(f"http://127.0.0.1:{found.http_port}", token_from(store / "agent-token"))

    def model_pids() -> list[int]:
        identity = (store / "agent-id").read_text().strip()
        return [handle.pid for each in marked_processes(identity).values() for _, handle in each]

    code, said = herdsman(capsys, *install, "--dry-run")
    assert code == 2 and said["changed"] and not store.exists() and machine.changes() == []
    assert any(f'+  "--host={HOST}"' in each["diff"] for each in said["steps"])
    code, said = herdsman(capsys, *install)
    assert code == 0 and said["changed"]
    first = agent_pid()
    assert herdsman(capsys, *install)[1]["changed"] is False
    assert herdsman(capsys, "upgrade", "--dry-run")[0] == 0

    client().put("prod/tiny", llama_plan(tiny_model))
    pid = until(client(), "prod/tiny", "Ready").pid

    # Other options, then another version: a new agent each time, the same model server.
    assert herdsman(capsys, *install, "--label", "rack=1")[0] == 0
    second = agent_pid()
    assert second != first and until(client(), "prod/tiny", "Ready").pid == pid
    newer = tmp_path / "herdsman-newer"
    newer.write_text(f'#!/bin/sh\n[ "$1" = version ] && echo 9.9.9 && exit\nexec {agent_service.program()[0]} "$@"\n')
    newer.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(agent_service, "agent_version", lambda: "9.9.9")
        patched.setattr(agent_service, "program", lambda: (str(newer),))
        assert herdsman(capsys, "upgrade", "--dry-run")[0] == 2
        assert agent_pid() == second
        assert herdsman(capsys, "upgrade")[0] == 0
        assert agent_pid() != second and until(client(), "prod/tiny", "Ready").pid == pid
        assert client().report().facts.labels == {"rack": "1"}, "an upgrade keeps the options"
        assert herdsman(capsys, "upgrade")[1]["changed"] is False

    # The manager starts an agent that died, and that one adopts what it finds.
    killed = agent_pid()
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: (found := read_run_file(store)) and found.pid != killed, what="another agent", timeout_s=30)
    assert until(client(), "prod/tiny", "Ready").pid == pid
    assert model_pids() == [pid]
    code, told = herdsman(capsys, "status")
    assert code == 0 and told["answers"] and told["processes"] == {"Ready": 1} and told["host"] == HOST

    # Without being asked to, an uninstall leaves them; the next agent takes them over; with it, nothing is left.
    assert herdsman(capsys, "uninstall")[0] == 0
    assert model_pids() == [pid] and main.invoke(["agent", "status"]) == 1
    assert herdsman(capsys, *install)[0] == 0
    assert until(client(), "prod/tiny", "Ready").pid == pid
    code, said = herdsman(capsys, "uninstall", "--stop-processes")
    assert code == 0, said
    assert gone(pid) and model_pids() == []
    assert herdsman(capsys, "uninstall", "--stop-processes")[1]["changed"] is False
    assert not list((tmp_path / "root/etc").rglob("*.json")) and not list(machine.units.glob("*.service"))


def test_what_is_wrong_is_said_before_anything_is_changed(
    machine: FakedMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["agent", "install", "--host", HOST, "--plan-source", "http", "--address", "127.0.0.1"]
    base += ["--store", str(tmp_path / "store")]

    def refused(*words: str, code: int = 1) -> str:
        assert main.invoke([*base, *words]) == code
        assert machine.changes() == [] and not (tmp_path / "store").exists()
        return capsys.readouterr().err

    monkeypatch.delenv("SUDO_USER", raising=False)
    assert "--user NAME" in refused()
    assert "no user `nobody-of-that-name`" in refused("--user", "nobody-of-that-name")
    me = machine.facts.user
    assert "no /nowhere" in refused("--user", me, "--credentials", "/nowhere")
    assert "No such option: --modell" in refused("--user", me, "--modell", "x", code=64)
    assert "everybody" in refused("--user", me, "--env", "HF_TOKEN=hf_1", code=64)
    monkeypatch.setattr(agent_service, "program", lambda: ("/opt/not/there",))
    assert f"user `{me}` cannot run `/opt/not/there`" in refused("--user", me)
    assert main.invoke(["agent", "upgrade"]) == 1
    assert "no agent `herdsman-agent` is installed" in capsys.readouterr().err
    if machine.manager == "systemctl":
        (machine.state / "offline").touch()
        assert "does not run here" in refused("--user", me)
    else:
        assert "errno 65" in refused("--user-unit")
