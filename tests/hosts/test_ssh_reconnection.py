"""Errors of commands after a reconnection: they concern one process, and the pass over its host goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.processes import SshProcesses
from agent.contract import ProcessPhase, ProcessReason
from tests.support.agents import HOST, PLAIN, command_plan
from tests.support.controlplane import eventually
from tests.support.sshd import Sshd, sshd
from tests.support.supervising import SERVER

KEY = PLAIN
PLAN = command_plan(sys.executable, "-c", SERVER, "{host}", "{port}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "host") as made:
        yield made


@pytest.fixture
def connection(server: Sshd) -> Iterator[SshConnection]:
    made = SshConnection(server.target())
    yield made
    made.close()


def test_a_command_that_fails_after_a_reconnection_defers_one_process(server: Sshd, connection: SshConnection) -> None:
    processes = SshProcesses(connection, host=HOST)
    uname = server.directory / "bin" / "uname"

    def reconnect_to_a_failing_host() -> None:
        """Have the script fail that reads the host's properties, which each new connection runs."""
        uname.write_text("#!/bin/sh\nkill -9 $PPID\n")
        uname.chmod(0o755)
        connection.close()
        connection.run(["true"])  # as the check of another process

    seen = processes.list_processes()
    reconnect_to_a_failing_host()
    report = processes.advance(KEY, PLAN, 3, seen)
    assert (report.phase, report.reason) == (ProcessPhase.BACKING_OFF, ProcessReason.LAUNCH_FAILED)
    assert "reading the host's properties" in report.message
    assert report.observed_generation == 3

    uname.unlink()
    eventually(
        lambda: processes.advance(KEY, PLAN, 3, processes.list_processes()).ready,
        what="the process to serve",
        timeout_s=60,
    )

    seen = processes.list_processes()
    reconnect_to_a_failing_host()
    removed = processes.remove(KEY, seen)
    assert removed is not None
    assert (removed.phase, removed.reason) == (ProcessPhase.STOPPING, ProcessReason.LAUNCH_FAILED)
    assert "reading the host's properties" in removed.message
    uname.unlink()
    eventually(
        lambda: processes.remove(KEY, processes.list_processes()) is None,
        what="the process to be gone",
        timeout_s=60,
    )
