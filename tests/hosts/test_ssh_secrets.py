"""Secret variables on a host over SSH: from the owner's files, into a file of the unit, and nowhere else."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.layout import Layout, unit_name
from agent.client.ssh.preparation import SecretFiles
from agent.client.ssh.processes import SshProcesses
from agent.contract import ProcessPhase, ProcessPlan, ProcessReason, ProcessReport, SecretReference
from agent.processes.secret_values import SecretUnavailable
from tests.support.agents import HOST, PLAIN, command_plan
from tests.support.controlplane import eventually
from tests.support.sshd import Sshd, sshd
from tests.support.supervising import SERVER

KEY = PLAIN
VALUE = 'hf_"1 $HOME `id` \\ %h'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "host") as made:
        yield made


@pytest.fixture
def processes(server: Sshd) -> Iterator[SshProcesses]:
    connection = connect(server)
    yield SshProcesses(connection, host=HOST)
    connection.close()


def folder(server: Sshd) -> Path:
    return server.directory / "secrets"


def connect(server: Sshd) -> SshConnection:
    return SshConnection(server.target(secrets=str(folder(server))))


def put(server: Sshd, text: str, *, mode: int = 0o600) -> Path:
    file = folder(server) / "prod" / "hub" / "token"
    for each in (file.parents[2], file.parents[1], file.parent):
        each.mkdir(mode=0o700, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def plan(**changes: object) -> ProcessPlan:
    made = command_plan(sys.executable, "-c", SERVER, "{host}", "{port}", env={"PLAIN": "1"})
    secret = {"HF_TOKEN": SecretReference(secret="hub", key="token")}
    return made.model_copy(update={"secret_env": secret, **changes})


def ready(processes: SshProcesses, wanted: ProcessPlan) -> ProcessReport:
    def look() -> ProcessReport | None:
        report = processes.advance(KEY, wanted, 1, processes.list_processes())
        return report if report.ready else None

    found = eventually(look, what="the process to serve", timeout_s=60)
    assert found is not None
    return found


def unit_of(server: Sshd) -> Path:
    return server.directory / "systemd" / "system" / f"{unit_name(KEY)}.service"


def test_a_value_goes_from_the_owners_file_into_the_process_and_nowhere_else(
    server: Sshd, processes: SshProcesses
) -> None:
    wanted = plan()
    refused = processes.advance(KEY, wanted, 1, processes.list_processes())
    assert (refused.phase, refused.reason) == (ProcessPhase.BACKING_OFF, ProcessReason.SECRET_UNAVAILABLE)
    assert "env[HF_TOKEN].valueFrom.secretKeyRef" in refused.message
    assert str(folder(server) / "prod" / "hub" / "token") in refused.message

    put(server, f"{VALUE}\n")
    report = ready(processes, wanted)
    assert report.pid is not None
    environment = psutil.Process(report.pid).environ()
    assert (environment["HF_TOKEN"], environment["PLAIN"]) == (VALUE, "1")

    file = Path(Layout(str(server.store)).secrets(KEY))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(unit_of(server).stat().st_mode) == 0o600
    with_value = [
        each
        for each in server.directory.rglob("*")
        if each.is_file() and not each.is_symlink() and b"hf_" in each.read_bytes()
    ]
    # The fake of systemctl also records the environment of processes that it started; systemd keeps that in memory.
    expected = {file, folder(server) / "prod" / "hub" / "token"}
    assert {each for each in with_value if "systemctl-state" not in each.parts} == expected
    assert "hf_" not in " ".join(psutil.Process(report.pid).cmdline())
    assert "hf_" not in "\n".join(server.calls)

    seen = processes.list_processes()[KEY]
    assert seen.unit and seen.installed, "the unit is read although only its owner may"
    assert ready(processes, wanted).pid == report.pid

    eventually(
        lambda: processes.remove(KEY, processes.list_processes()) is None, what="the process to be gone", timeout_s=30
    )
    assert not file.exists()


def test_a_unit_with_variables_that_others_could_read_is_closed_without_a_restart(
    server: Sshd, processes: SshProcesses
) -> None:
    wanted = plan(secret_env=None)
    first = ready(processes, wanted)
    unit_of(server).chmod(0o644)
    connection = connect(server)
    try:
        later = SshProcesses(connection, host=HOST)
        assert ready(later, wanted).pid == first.pid
        assert stat.S_IMODE(unit_of(server).stat().st_mode) == 0o600
        eventually(lambda: later.remove(KEY, later.list_processes()) is None, what="the process to be gone")
    finally:
        connection.close()


@pytest.mark.parametrize("how", ["group", "folder", "link", "linked folder", "hard link", "directory", "owner"])
def test_a_file_that_is_not_the_owners_alone_is_refused(server: Sshd, processes: SshProcesses, how: str) -> None:
    file = put(server, "hf_1\n")
    read = SecretFiles(processes._machine, str(folder(server))).read
    assert read(("prod", "hub", "token")) == b"hf_1\n"
    assert read(("prod", "hub", "other")) is None
    match how:
        case "group":
            file.chmod(0o640)
        case "folder":
            file.parent.chmod(0o777)
        case "link":
            file.rename(server.directory / "elsewhere")
            file.symlink_to(server.directory / "elsewhere")
        case "linked folder":
            file.parent.rename(server.directory / "elsewhere")
            file.parent.symlink_to(server.directory / "elsewhere")
        case "hard link":
            os.link(file, server.directory / "second")
        case "directory":
            file.unlink()
            file.mkdir()
        case "owner":
            if os.geteuid() != 0:
                pytest.skip("only root gives files away; run as root")
            os.chown(file, 65534, 65534)
    with pytest.raises(SecretUnavailable) as refused:
        read(("prod", "hub", "token"))
    assert "hf_1" not in str(refused.value)
