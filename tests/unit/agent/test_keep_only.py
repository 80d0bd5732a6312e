"""A complete plan removes the processes that it lacks, but none that is added while the plan is read."""

from __future__ import annotations

import threading
from pathlib import Path

from agent.contract import ProcessPlan
from agent.server.processes.ports import Ports
from agent.server.processes.supervisor import Supervisor
from agent.server.processes.worker_context import WorkerContext
from agent.server.store import Store


def plan(name: str) -> ProcessPlan:
    return ProcessPlan(host="h", service=name, argv=("no-such-engine",), service_name=name)


def supervisor(store: Store) -> Supervisor:
    """A supervisor that finds no binary, so that its processes wait for one."""
    store.open()
    return Supervisor(
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


def test_what_is_put_meanwhile_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = supervisor(store)
    made.put("ns/old", plan("old"))
    putting: list[threading.Thread] = []

    def keys() -> tuple[str, ...]:
        # A watch delivers a process after the list was taken.
        putting.append(threading.Thread(target=made.put, args=("ns/new", plan("new"))))
        putting[0].start()
        putting[0].join(0.2)
        return ()

    made.keep_only(keys)
    putting[0].join()
    assert set(made.list_desired()) == {"ns/new"}
    made.stop(keep_processes=False)
    store.close()
