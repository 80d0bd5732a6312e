"""A process that may sleep and serves by an earlier plan does not sleep, because its plan could not wake it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.contract import EarlierProcess, ProcessPhase, ProcessPlan, ProcessReport
from agent.processes.decision import Desired
from agent.server.processes.ports import Ports
from agent.server.processes.worker_context import Holds
from agent.server.sleep import ProcessSleep
from agent.server.store import Store

KEY = "prod/chat"
PLAN = ProcessPlan(host="h", service="s", argv=("x",), service_name="s", idle_timeout_s=1.0)


@pytest.mark.parametrize("earlier", [None, EarlierProcess(phase=ProcessPhase.READY)])
def test_only_a_process_of_the_present_plan_is_put_to_sleep(tmp_path: Path, earlier: EarlierProcess | None) -> None:
    held: list[str] = []
    supervisor: Any = SimpleNamespace(
        list_desired=lambda: {KEY: Desired(PLAN, "hash")},
        report=lambda _key: ProcessReport(phase=ProcessPhase.READY, ready=True, earlier=earlier),
        hold=lambda key, _source, _hold: held.append(key),
    )
    store = Store(tmp_path)
    sleep = ProcessSleep(store, Ports("127.0.0.1", first=0, count=1), Holds(), address="127.0.0.1")
    sleep.start(supervisor)
    sleep.proxy.start()
    try:
        sleep._sleep(KEY)
        assert held == ([KEY] if earlier is None else [])
    finally:
        sleep.stop()
