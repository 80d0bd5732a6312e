"""An error that concerns one process over SSH: it is in that process's report, and the others of its host go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.client.port import HostRefused
from agent.client.ssh import preparation
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.layout import Layout
from agent.client.ssh.processes import SshProcesses
from agent.contract import ProcessPhase, ProcessReason, ProcessReport
from tests.support.agents import HOST, PLAIN, command_plan
from tests.support.controlplane import eventually
from tests.support.sshd import Sshd, sshd
from tests.support.supervising import SERVER

FIRST, SECOND = PLAIN, f"{PLAIN}-second"
PLAN = command_plan(sys.executable, "-c", SERVER, "{host}", "{port}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "host") as made:
        yield made


@pytest.fixture
def processes(server: Sshd) -> Iterator[SshProcesses]:
    connection = SshConnection(server.target())
    yield SshProcesses(connection, host=HOST)
    connection.close()


def one_pass(processes: SshProcesses) -> list[ProcessReport]:
    """Advance both processes, as a pass over a host does."""
    seen = processes.list_processes()
    return [processes.advance(key, PLAN, 1, seen) for key in (FIRST, SECOND)]


def test_a_process_serves_although_its_proof_cannot_be_written(server: Sshd, processes: SshProcesses) -> None:
    proof = Path(Layout(str(server.store)).proved(FIRST))
    # The draft of the file cannot be written here, as on a full disk.
    obstacle = proof.with_name(f".{proof.name}.herdsman-new")
    obstacle.mkdir(parents=True)

    def ready() -> bool | None:
        return all(report.ready for report in one_pass(processes)) or None

    eventually(ready, what="both processes to serve", timeout_s=60)
    assert not proof.exists()

    obstacle.rmdir()
    eventually(lambda: (one_pass(processes) and proof.exists()) or None, what="the proof", timeout_s=60)


@pytest.mark.parametrize(
    ("host", "argument", "reason", "words"),
    [
        ({"init": ""}, "", ProcessReason.LAUNCH_FAILED, "the host has no systemd; run an agent there"),
        ({"os": "darwin"}, "\x01", ProcessReason.PLAN_INVALID, "a property list cannot contain an argument"),
    ],
)
def test_a_process_that_no_unit_can_describe_backs_off_with_the_remedy(
    processes: SshProcesses,
    monkeypatch: pytest.MonkeyPatch,
    host: dict[str, Any],
    argument: str,
    reason: ProcessReason,
    words: str,
) -> None:
    real = preparation.read_facts
    monkeypatch.setattr(preparation, "read_facts", lambda text: replace(real(text), **host))
    plan = PLAN.model_copy(update={"argv": (*PLAN.argv, argument)})
    report = processes.advance(FIRST, plan, 3, processes.list_processes())
    assert (report.phase, report.reason, report.observed_generation) == (ProcessPhase.BACKING_OFF, reason, 3)
    assert words in report.message
    with pytest.raises(HostRefused, match=words):  # a preview shows it, too
        processes.changes(SECOND, plan)
