"""A worker that ends, and a plan that arrives at the same time, do not wait for each other's locks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.contract import ProcessPlan
from agent.processes.decision import Desired
from agent.server.daemons.shared import SharedDaemons
from agent.server.processes.ports import Ports
from agent.server.processes.supervisor import Supervisor
from agent.server.processes.worker import Worker
from agent.server.processes.worker_context import WorkerContext
from agent.server.store import Store
from tests.support.controlplane import eventually

KEY = "ns/chat"
PLAN = ProcessPlan(host="h", service="chat", argv=("no-such-engine",), service_name="chat")
GENEROUS_S = 20.0


def put(supervisor: Supervisor) -> None:
    supervisor.put(KEY, PLAN)


def remove(supervisor: Supervisor) -> None:
    supervisor.remove(KEY)


def keep_none(supervisor: Supervisor) -> None:
    supervisor.keep_only(tuple)


@pytest.mark.parametrize("change", [put, remove, keep_none])
def test_a_model_that_leaves_its_daemon_while_the_plan_changes_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Supervisor], None]
) -> None:
    leaves, inside, left = threading.Event(), threading.Event(), threading.Event()
    set_desired = Worker.set_desired

    def in_the_supervisor(worker: Worker, desired: Desired | None) -> bool:
        if leaves.is_set():
            inside.set()
        return set_desired(worker, desired)

    def remove_process(daemons: SharedDaemons, _key: str) -> None:
        leaves.set()
        # Until the supervisor's lock is held by the thread that changes the plan.
        inside.wait(GENEROUS_S)
        daemons._keeper.daemon_report("_daemons/ollama")
        left.set()

    monkeypatch.setattr(Worker, "set_desired", in_the_supervisor)
    monkeypatch.setattr(SharedDaemons, "remove_process", remove_process)
    store = Store(tmp_path)
    store.open()
    supervisor = Supervisor(
        WorkerContext(
            agent_id="test",
            address="127.0.0.1",
            store=store,
            ports=Ports("127.0.0.1"),
            fetch=lambda _plan, _progress, _cancel: Path("/nowhere"),
            find_binary=lambda _name: None,
            on_report=lambda _key, _desired, _report: None,
        )
    )
    supervisor.put(KEY, PLAN)
    supervisor.remove(KEY)
    assert leaves.wait(GENEROUS_S)
    changing = threading.Thread(target=change, args=(supervisor,), daemon=True)
    changing.start()
    changing.join(GENEROUS_S)
    assert not changing.is_alive()
    assert left.wait(GENEROUS_S)
    if change is put:
        eventually(lambda: set(supervisor.list_desired()) == {KEY}, what="the plan that arrived meanwhile to be kept")
        eventually(lambda: KEY in store.records(), what="its record to be kept")
    else:
        eventually(lambda: not supervisor.reports(), what="the process to be gone")
        eventually(lambda: not store.records(), what="its record to be gone")
    supervisor.stop(keep_processes=False)
    store.close()
