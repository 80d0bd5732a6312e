"""States in a real PostgreSQL server that are read without the CLI: the layout of the pinned CLI, and failures."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from automation.engine.port import Batch, Stack, StateUnreachable
from automation.engine.pulumi_engine import PulumiEngine
from automation.engine.stack_cli import Run
from automation.engine.state_table import StateTable, TableUnreadable
from automation.engine.state_url import StateUrl
from kubeapi.client import KubeClient
from tests.fakes.rendered import key, service
from tests.support.postgres import PASSWORD, Postgres, stack_key

EngineFactory = Callable[..., PulumiEngine]
SOON_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    made = Postgres()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made
    made.close()


@pytest.fixture
def table(server: Postgres, make_engine: EngineFactory) -> Iterator[StateTable]:
    make_engine(state_url=server.url).stacks()  # has the CLI make the table
    found = StateTable.of_url(StateUrl.of(server.url))
    assert found is not None
    yield found
    found.close()


def test_a_restarted_engine_lists_and_reads_states_without_a_cli_process(
    make_engine: EngineFactory, namespace: str, server: Postgres, table: StateTable
) -> None:
    stack = Stack(namespace)
    made = make_engine(state_url=server.url)
    made.up(Batch(stack, (service("a", namespace=namespace),)))
    restarted = make_engine(state_url=server.url)
    assert stack in restarted.stacks()
    assert restarted.services(stack) == {key("a", namespace)}
    assert restarted.services(Stack(f"{namespace}-not-there")) == set()
    assert restarted.export(stack) == table.export(stack, timeout_s=SOON_S)
    assert restarted.cli_processes == 0
    # The CLI reads the same.
    restarted._states._table = None
    assert restarted.export(stack) == table.export(stack, timeout_s=SOON_S)
    assert restarted._states.names(Run(SOON_S)) == table.names(timeout_s=SOON_S)
    assert restarted.cli_processes == 2


def test_a_connection_that_the_server_closed_is_opened_again(server: Postgres, table: StateTable) -> None:
    server.write(stack_key("kept"), b'{"version": 3, "checkpoint": {"latest": {"resources": []}}}')
    assert "kept" in table.names(timeout_s=SOON_S)
    server.stop()
    server.start()
    assert table.export(Stack("kept"), timeout_s=SOON_S) == {"version": 3, "deployment": {"resources": []}}


def test_a_broken_state_is_left_to_the_cli(server: Postgres, table: StateTable) -> None:
    server.write(stack_key("cut"), b'{"version": 3, "checkpoint": {"latest": {"res')
    with pytest.raises(TableUnreadable):
        table.export(Stack("cut"), timeout_s=SOON_S)
    server.remove(stack_key("cut"))


def test_a_table_that_does_not_exist_yet_is_made_by_the_cli(make_engine: EngineFactory, server: Postgres) -> None:
    engine = make_engine(state_url=f"{server.url}&table=another")
    assert engine.stacks() == set()
    assert engine.cli_processes == 1
    assert engine.stacks() == set()
    assert engine.cli_processes == 1


def test_a_server_that_stops_answering_is_given_up(server: Postgres, table: StateTable) -> None:
    server.write(stack_key("slow"), b"{}")
    assert "slow" in table.names(timeout_s=SOON_S)
    backend = int(table._connection.info.backend_pid)
    os.kill(backend, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(TableUnreadable):
            table.names(timeout_s=0.5)
        assert time.monotonic() - began < SOON_S
    finally:
        os.kill(backend, signal.SIGCONT)
    assert "slow" in table.names(timeout_s=SOON_S)
    server.remove(stack_key("slow"))


def test_an_error_names_no_password_and_a_password_is_not_sent_without_tls(
    server: Postgres, client: KubeClient, make_engine: EngineFactory, namespace: str
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgres://herdsman@127.0.0.1:{nobody.getsockname()[1]}/postgres?sslmode=disable"
        with pytest.raises(StateUnreachable) as caught:
            make_engine(state_url=url).services(Stack(namespace))
        assert PASSWORD not in caught.value.message
    plain = StateTable.of_url(StateUrl.of(server.url.partition("?")[0]))
    assert plain is not None
    with pytest.raises(TableUnreadable, match="SSL"):
        plain.names(timeout_s=SOON_S)
