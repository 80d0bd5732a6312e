"""A unit that is changed or deleted on a host over SSH is restored within seconds, or kept if the loop may not repair
it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.layout import unit_name
from agent.client.ssh.processes import SshProcesses
from agent.contract import ProcessPlan, ProcessReport
from tests.support.agents import HOST, TINY, kill, llama_plan
from tests.support.controlplane import eventually
from tests.support.sshd import Sshd, sshd

KEY = TINY


class Watched:
    """One process that the test reconciles as a worker of the loop does."""

    def __init__(self, server: Sshd, plan: ProcessPlan) -> None:
        self.plan = plan
        self.repair = True
        self.told: list[tuple[str, str, bool]] = []
        self.connection = SshConnection(server.target())
        self.processes = SshProcesses(self.connection, host=HOST, may_repair=self._may_repair)

    def _may_repair(self, key: str, words: str, is_news: bool) -> bool:
        self.told.append((key, words, is_news))
        return self.repair

    def step(self) -> ProcessReport:
        return self.processes.advance(KEY, self.plan, 1, self.processes.list_processes())

    def ready(self, *, but: int | None = None) -> ProcessReport:
        def look() -> ProcessReport | None:
            report = self.step()
            return report if report.ready and report.pid != but else None

        found = eventually(look, what="the process to serve", timeout_s=60)
        assert found is not None
        return found


@pytest.fixture
def server(tmp_path: Path, llama_server: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "host", binaries=[llama_server]) as made:
        yield made


def test_a_changed_unit_is_put_back_or_left_as_asked(server: Sshd, tiny_model: Path) -> None:
    watched = Watched(server, llama_plan(tiny_model))
    try:
        first = watched.ready()
        watched.step()
        unit = server.directory / "systemd" / "system" / f"{unit_name(KEY)}.service"
        good = unit.read_text()

        unit.write_text(good.replace("Restart=always", "Restart=no"))
        assert watched.step().ready
        assert unit.read_text() == good
        unit.unlink()
        watched.step()
        watched.step()
        assert unit.read_text() == good
        assert watched.told == [(KEY, "was changed", True), (KEY, "was deleted", True)]
        assert watched.step().pid == first.pid, "what runs is not restarted for its unit"

        # A process that the changed unit has started is restarted with the restored unit.
        unit.write_text(good.replace("Restart=always", "Restart=on-failure"))
        assert first.pid is not None
        kill(first.pid)
        eventually(lambda: watched.processes.list_processes()[KEY].runs or None, what="another start", timeout_s=60)
        second = watched.processes.list_processes()[KEY].pid
        assert second != first.pid
        third = watched.ready(but=second)
        assert unit.read_text() == good

        watched.told.clear()
        watched.step()
        watched.repair = False
        unit.write_text(good + "# mine\n")
        for _ in range(3):
            assert watched.step().pid == third.pid
            time.sleep(0.1)
        assert unit.read_text() == good + "# mine\n"
        assert watched.told == [(KEY, "was changed", True), (KEY, "was changed", False), (KEY, "was changed", False)]
        watched.repair = True
        watched.step()
        assert unit.read_text() == good
    finally:
        watched.connection.close()


def test_the_host_starts_a_killed_process_again_without_the_loop(server: Sshd, tiny_model: Path) -> None:
    watched = Watched(server, llama_plan(tiny_model))
    try:
        first = watched.ready()
        assert first.pid is not None
        calls = server.changing_calls
        kill(first.pid)
        again = watched.ready(but=first.pid)
        assert again.port == first.port
        assert server.changing_calls == calls
    finally:
        watched.connection.close()
