"""Properties that both transports to a host share: an agent's HTTP API and SSH pass the same tests with real
servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.client.port import HostClient, ProcessNotFound, ProcessState
from agent.client.ssh.host import SshHost
from tests.support.agents import HOST, TINY, agent, gone, llama_plan
from tests.support.controlplane import eventually
from tests.support.sshd import sshd

KEY = TINY


@pytest.fixture(params=["agent", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path, llama_server: Path, tiny_model: Path) -> Iterator[HostClient]:
    if request.param == "agent":
        options = ("--plan-source", "http", "--address", "127.0.0.1")
        allowed = ("--allowed-host-path-roots", str(tiny_model.parent))
        with agent(tmp_path / "store", *options, *allowed) as made:
            yield made.start()
        return
    with sshd(tmp_path / "host", binaries=[llama_server]) as server:
        over_ssh = SshHost(server.target(), host=HOST)
        yield over_ssh
        over_ssh.close()


def served(host: HostClient, *, generation: int = 0) -> ProcessState:
    def look() -> ProcessState | None:
        state = host.get(KEY)
        current = state.generation >= generation and state.report.observed_generation >= state.generation
        return state if state.report.ready and current else None

    return eventually(look, what="the process to serve", timeout_s=60)


def is_gone(host: HostClient) -> bool:
    try:
        state = host.get(KEY)
    except ProcessNotFound:
        return True
    assert state.plan is None, "on its way out"
    return False


def test_a_host_takes_keeps_changes_and_gives_back_a_process(host: HostClient, tiny_model: Path) -> None:
    with pytest.raises(ProcessNotFound):
        host.get(KEY)
    host.delete(KEY)
    assert host.plan().processes == {}
    plan = llama_plan(tiny_model)

    put = host.put(KEY, plan)
    assert put.plan == plan and not put.report.ready, "it returns before the process runs"
    first = served(host)
    assert first.plan == plan and first.report.port
    same = host.put(KEY, plan)
    assert same.generation == first.generation
    assert served(host).report.pid == first.report.pid

    told = host.report()
    assert told.facts.host == HOST and told.facts.memory_bytes > 0
    assert told.facts.runtimes["llama-server"]
    assert told.processes[KEY].ready
    assert host.plan().processes == {KEY: plan}

    changed = plan.model_copy(update={"argv": (*plan.argv, "--alias", "other")})
    put = host.put(KEY, changed)
    second = served(host, generation=put.generation)
    assert second.plan == changed and second.report.pid != first.report.pid

    host.delete(KEY)
    eventually(lambda: is_gone(host) or None, what="the process to be gone", timeout_s=60)
    assert second.report.pid is not None and gone(second.report.pid, timeout_s=1)
    assert host.report().processes == {}
