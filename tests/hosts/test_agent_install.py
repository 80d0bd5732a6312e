"""An agent under a service manager, installed, changed, upgraded, killed and uninstalled, while a real model serves.

The service managers are a real systemd, booted in namespaces where that is possible, and fakes of systemd and launchd.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from agent.client.http import HttpHost, token_from
from agent.server.processes.process import marked_processes
from agent.server.store import RUN_FILE, RunFile
from automation.cli import agent_service, main
from kubeapi.client import KubeClient
from tests.support.agents import HOST, TINY, _end_all, llama_plan, until
from tests.support.booted_systemd import BootedSystemd, booted
from tests.support.controlplane import eventually
from tests.support.loop import install_crds
from tests.support.services import FakedMachine
from tools.localcluster import LocalCluster

NEWER = "9.9.9"


class Stage(Protocol):
    """The machine on which `herdsman agent …` is run; `newer` runs a later version of it."""

    def herdsman(self, *words: str, newer: bool = False) -> tuple[int, Any]: ...

    def kill(self, pid: int) -> None: ...


@dataclass
class Booted:
    systemd: BootedSystemd
    later: Path
    """Has the metadata of a later version, for PYTHONPATH."""

    def herdsman(self, *words: str, newer: bool = False) -> tuple[int, Any]:
        environment = {"PYTHONPATH": str(self.later)} if newer else {}
        ended = self.systemd.run(sys.executable, "-m", "automation.cli", "agent", *words, "-o", "json", **environment)
        assert ended.stdout, ended.stderr
        return ended.returncode, json.loads(ended.stdout)

    def kill(self, pid: int) -> None:
        self.systemd.run("bash", "-c", f"kill -9 {pid}")


@dataclass
class Faked:
    machine: FakedMachine
    capsys: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch
    program: Path

    def herdsman(self, *words: str, newer: bool = False) -> tuple[int, Any]:
        self.capsys.readouterr()
        with self.patch.context() as patched:
            patched.setattr(agent_service, "this_machine", lambda: self.machine)
            if newer:
                patched.setattr(agent_service, "agent_version", lambda: NEWER)
                patched.setattr(agent_service, "program", lambda: (str(self.program),))
            code = main.invoke(["agent", *words, "-o", "json"])
        said = self.capsys.readouterr()
        assert said.out, said.err
        return code, json.loads(said.out)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def on_systemd(tmp_path: Path) -> Iterator[Booted]:
    metadata = tmp_path / "later" / f"herdsman-{NEWER}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: herdsman\nVersion: {NEWER}\n")
    with booted(tmp_path / "boot") as systemd:
        yield Booted(systemd, tmp_path / "later")


@pytest.fixture(params=["systemd", "pretended systemd", "pretended launchd"])
def stage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        stack.callback(_end_all, tmp_path / "store")
        if request.param == "systemd":
            yield stack.enter_context(on_systemd(tmp_path))
            return
        tool = "systemctl" if request.param == "pretended systemd" else "launchctl"
        machine = FakedMachine(tmp_path / "root", tool)
        stack.callback(machine.end)
        program = tmp_path / "herdsman-newer"
        program.write_text(
            f'#!/bin/sh\n[ "$1" = version ] && echo {NEWER} && exit\nexec {agent_service.program()[0]} "$@"\n'
        )
        program.chmod(0o755)
        yield Faked(machine, capsys, monkeypatch, program)


def read_run_file(store: Path) -> RunFile | None:
    """Return the run file that the last agent of a store wrote, or None. Its pid is valid in the stage's PID
    namespace.
    """
    path = store / RUN_FILE
    return RunFile.model_validate_json(path.read_bytes()) if path.exists() else None


@pytest.mark.soak
def test_model_servers_outlive_every_change_of_the_agent_and_go_only_when_asked(
    stage: Stage, tmp_path: Path, llama_server: Path, tiny_model: Path
) -> None:
    store = tmp_path / "store"
    install = ("install", "--user", agent_service.LocalMachine().facts.user)
    install += ("--env", f"HERDSMAN_LLAMA_SERVER={llama_server}")
    install += ("--host", HOST, "--store", str(store), "--plan-source", "http", "--address", "127.0.0.1")
    install += ("--allowed-host-path-roots", str(tiny_model.parent))

    def agent_pid() -> int:
        found = read_run_file(store)
        assert found is not None
        return found.pid

    def client() -> HttpHost:
        found = read_run_file(store)
        assert found is not None
        return HttpHost(f"http://127.0.0.1:{found.http_port}", token_from(store / "agent-token"))

    def model_servers() -> list[int]:
        identity = (store / "agent-id").read_text().strip()
        return [handle.pid for each in marked_processes(identity).values() for _, handle in each]

    code, said = stage.herdsman(*install, "--dry-run")
    assert code == 2 and said["changed"] and not store.exists(), said
    assert any(f'+  "--host={HOST}"' in each["diff"] for each in said["steps"])
    code, said = stage.herdsman(*install)
    assert code == 0 and said["changed"], said
    first = agent_pid()
    assert stage.herdsman(*install)[1]["changed"] is False
    assert stage.herdsman("upgrade", "--dry-run")[0] == 0

    client().put(TINY, llama_plan(tiny_model))
    pid = until(client(), TINY, "Ready").pid
    served = model_servers()
    assert len(served) == 1

    # Other options, then another version: a new agent each time, the same model server.
    assert stage.herdsman(*install, "--label", "rack=1")[0] == 0
    second = agent_pid()
    assert second != first and until(client(), TINY, "Ready").pid == pid
    assert stage.herdsman("upgrade", "--dry-run", newer=True)[0] == 2
    assert agent_pid() == second
    code, said = stage.herdsman("upgrade", newer=True)
    assert code == 0, said
    assert agent_pid() != second and until(client(), TINY, "Ready").pid == pid
    assert client().report().facts.labels == {"rack": "1"}, "an upgrade keeps the options"
    assert stage.herdsman("upgrade", newer=True)[1]["changed"] is False

    # The service manager restarts an agent that died, and the new one adopts the running processes.
    killed = agent_pid()
    stage.kill(killed)
    eventually(lambda: (found := read_run_file(store)) and found.pid != killed, what="another agent", timeout_s=60)
    assert until(client(), TINY, "Ready").pid == pid
    assert model_servers() == served
    code, told = stage.herdsman("status")
    assert code == 0 and told["answers"] and told["processes"] == {"Ready": 1} and told["host"] == HOST

    # By default an uninstall leaves the processes, and the next agent adopts them; with the option, it stops them all.
    assert stage.herdsman("uninstall")[0] == 0
    assert model_servers() == served
    assert stage.herdsman(*install)[0] == 0
    assert until(client(), TINY, "Ready").pid == pid
    assert model_servers() == served
    code, said = stage.herdsman("uninstall", "--stop-processes")
    assert code == 0, said
    assert model_servers() == []
    assert stage.herdsman("uninstall", "--stop-processes")[1]["changed"] is False


@pytest.fixture(params=["systemctl", "launchctl"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakedMachine]:
    made = FakedMachine(tmp_path / "root", request.param)
    monkeypatch.setattr(agent_service, "this_machine", lambda: made)
    yield made
    made.end()


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
    assert "user `nobody-of-that-name` does not exist" in refused("--user", "nobody-of-that-name")
    me = machine.facts.user
    assert "/nowhere does not exist" in refused("--user", me, "--credentials", "/nowhere")
    assert "No such option: --modell" in refused("--user", me, "--modell", "x", code=64)
    assert "every user of the machine" in refused("--user", me, "--env", "HF_TOKEN=hf_1", code=64)
    monkeypatch.setattr(agent_service, "program", lambda: ("/opt/not/there",))
    assert f"user `{me}` cannot run `/opt/not/there`" in refused("--user", me)
    assert main.invoke(["agent", "upgrade"]) == 1
    assert "no agent `herdsman-agent` is installed" in capsys.readouterr().err
    if machine.manager == "systemctl":
        (machine.state / "offline").touch()
        assert "does not run here" in refused("--user", me)
    else:
        assert "errno 65" in refused("--user-unit")


def test_an_agent_is_installed_with_the_options_of_the_guides(
    machine: FakedMachine, control_plane: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(*words: str) -> int:
        capsys.readouterr()
        store = ["--store", str(tmp_path / "store"), "--user", machine.facts.user]
        return main.invoke(["agent", "install", "--host", HOST, *store, *words])

    joins = ["--kubeconfig", str(control_plane.kubeconfig), "--address", "127.0.0.1"]
    assert install(*joins, "--dry-run") == 2
    assert machine.changes() == []
    with contextlib.closing(KubeClient.from_kubeconfig(str(control_plane.kubeconfig))) as client:
        install_crds(client)
    assert install(*joins) == 0
    assert main.invoke(["agent", "uninstall"]) == 0
    assert (
        install("--plan-source", "http", "--http-address", "127.0.0.1", "--http-port", "0", "--address", "127.0.0.1")
        == 0
    )
    assert main.invoke(["agent", "status"]) == 0
    assert main.invoke(["agent", "uninstall"]) == 0
