"""The log of a process over SSH stays small, also if a system unit writes it and the connection's user is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.layout import Layout
from agent.client.ssh.processes import SshProcesses
from agent.client.ssh.scripts import script
from agent.client.ssh.target import SshServer
from agent.contract import ProcessPhase, ProcessPlan
from tests.hosts.test_ssh_records import record_with, with_tool, written
from tests.support.agents import HOST, command_plan
from tests.support.booted_systemd import booted
from tests.support.controlplane import eventually
from tests.support.sshd import Sshd, sshd

KEY = "prod/tiny"
LIMIT, KEPT = 64 << 20, 1 << 20
USER, UID = "herdsman-test-llm", 48213

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs files of two users; run the tests as root")


@dataclass
class SudoHost:
    """A host with a real systemd whose SSH user is not root and may use sudo."""

    server: Sshd
    processes: SshProcesses

    @property
    def log(self) -> Path:
        return Path(Layout(str(self.server.store)).log(KEY))

    def runs(self, plan: ProcessPlan) -> int | None:
        """Advance the process once. Returns its pid if it runs by this plan."""
        seen = self.processes.list_processes()
        report = self.processes.advance(KEY, plan, 1, seen)
        assert report.phase is not ProcessPhase.BACKING_OFF, report.message
        return report.pid if KEY in seen and seen[KEY].record.plan == plan else None


@contextmanager
def sudo_host(directory: Path, boot: Path) -> Iterator[SudoHost]:
    """Provide the host. `directory` is one that all users may enter."""
    with booted(boot) as systemd:
        user = f"{USER}:x:{UID}:{UID}::{directory}:/bin/sh"
        # The namespace's /etc is an overlay.
        systemd.run("sh", "-c", f"echo '{user}' >>/etc/passwd; echo '{USER}:*:1::::::' >>/etc/shadow")
        with sshd(directory / "host", prefix=tuple(systemd.command()), manager=None) as server:
            for each in (server.directory, server.directory / "bin"):
                each.chmod(0o755)
            os.chown(server.directory / "home", UID, UID)
            # `env` does not give up the rights of its owner, as shells do.
            raised = server.directory / "bin" / "raised-env"
            shutil.copy("/usr/bin/env", raised)
            raised.chmod(0o4755)
            as_root = f"exec {raised} setpriv --reuid=0 --regid=0 --clear-groups"
            server.sudo(f'shift 2; {as_root} "$@"')
            # Without a D-Bus, systemd answers only root.
            systemctl = server.directory / "bin" / "systemctl"
            systemctl.write_text(f'#!/bin/sh\n{as_root} {shutil.which("systemctl")} "$@"\n')
            systemctl.chmod(0o755)
            known = server.target().server.known_hosts
            target = server.target(server=SshServer(server.address, USER, known, server.port), sudo=True)
            connection = SshConnection(target)
            processes = SshProcesses(connection, host=HOST)
            assert not processes.remote_host().machine.is_root
            yield SudoHost(server, processes)
            processes.remove(KEY, processes.list_processes())
            connection.close()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """An empty directory that all users may enter."""
    made = Path(tempfile.mkdtemp(prefix="herdsman-logs-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def host(open_directory: Path, tmp_path: Path) -> Iterator[SudoHost]:
    with sudo_host(open_directory, tmp_path / "boot") as made:
        yield made


def writing_plan(size: int, word: str) -> ProcessPlan:
    """Plan a process that prints so many bytes, and then a word every fifth of a second."""
    command = f"head -c {size} /dev/zero; while :; do echo {word}; sleep 0.2; done"
    return command_plan("/bin/sh", "-c", command, "{host}", "{port}", stop_grace_s=1.0)


@needs_root
def test_the_log_of_a_system_unit_is_shortened_for_a_user_who_is_not_root(host: SudoHost) -> None:
    plan = writing_plan(LIMIT + 1000, "first")
    eventually(lambda: host.runs(plan), what="the process", timeout_s=60)

    def is_short() -> bool | None:
        host.processes.list_processes()
        return 0 < host.log.stat().st_size < KEPT or None

    eventually(is_short, what="the log to be shortened", timeout_s=30)
    assert host.log.with_name(f"{host.log.name}.1").stat().st_size == KEPT
    assert (host.log.stat().st_uid, host.log.stat().st_mode & 0o777) == (UID, 0o600)

    # The log of a process that an earlier version started belongs to root.
    os.chown(host.log, 0, 0)
    later = writing_plan(0, "second")
    eventually(lambda: host.runs(later), what="the next process", timeout_s=60)
    eventually(lambda: "second" in host.log.read_text() or None, what="its output")
    assert "first" in host.log.read_text(), "the end of the log is kept"
    assert host.log.stat().st_uid == UID


@needs_root
def test_a_log_that_cannot_be_read_is_left_alone(open_directory: Path) -> None:
    store = written(record_with(), open_directory)
    layout = Layout(str(store))
    log = Path(layout.log(record_with().key))
    log.parent.mkdir()
    earlier = log.with_name(f"{log.name}.1")
    earlier.write_text("earlier lines")
    with log.open("wb") as made:
        made.truncate(LIMIT + 1)  # a sparse file
    log.chmod(0o600)
    for each in (store, *store.rglob("*")):
        os.chown(each, UID, UID)
    os.chown(log, 0, 0)
    command = ["sh", "-c", script("look"), "sh", str(store), "systemd", "system", str(open_directory)]
    tools = with_tool(open_directory, "systemctl")
    as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(open_directory), "LC_ALL": "C"}
    told = subprocess.run([*as_user, *command], env=environment, capture_output=True, text=True, check=True)
    assert "record64" in told.stdout and told.stderr == ""
    assert earlier.read_text() == "earlier lines"
