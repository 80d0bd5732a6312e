"""A host's memory with a real agent and real llama-servers: admission, pressure, groups that take turns.

Covered: processes that do not fit together, unknown sizes, an agent that adopts processes; simulated pressure, which
evicts the least important process until it is over; requests that swap models, and the return of the preferred one.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agent.client.http import HttpHost
from agent.contract import ProcessPlan, ProcessReport
from kubeapi.kinds import HOSTS
from tests.hosts.test_agent_kubernetes import host_process, status, until_ready
from tests.support.agents import REACHED, AgentProcess, agent, command_plan, llama_plan, until
from tests.support.controlplane import Api, eventually
from tests.support.definitions import install_crds
from tools.localcluster import LocalCluster

MIB = 1 << 20
CONTEXT = ("-c", "65536", "-np", "1")
"""Some 40 MiB of KV cache for the tiny model, all of it resident."""


def host(tmp_path: Path, tiny_model: Path, *arguments: str) -> AbstractContextManager[AgentProcess]:
    return agent(
        tmp_path / "store",
        *("--plan-source", "http", "--address", "127.0.0.1", "--allowed-host-path-roots", str(tiny_model.parent)),
        *arguments,
    )


def plan(model: Path, **changes: object) -> ProcessPlan:
    return llama_plan(model, extra=CONTEXT, **changes)


def reason(client: HttpHost, key: str, wanted: str, *, timeout_s: float = 90) -> ProcessReport:
    """Wait until a process has this reason."""
    seen: list[ProcessReport] = []

    def look() -> ProcessReport | None:
        seen[:] = [client.get(key).report]
        return seen[0] if seen[0].reason == wanted else None

    try:
        return eventually(look, what=f"{key} to say {wanted}", timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last report: {seen}") from None


def metric(made: AgentProcess, name: str) -> float:
    with urllib.request.urlopen(f"{made.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


def test_what_does_not_fit_waits_its_turn_and_what_is_unknown_is_not_started(
    tmp_path: Path, llama_server: Path, tiny_model: Path
) -> None:
    with host(tmp_path, tiny_model, "--memory-budget", "130Mi") as made:
        client = made.start()
        client.put("prod/first", plan(tiny_model))
        first = until(client, "prod/first", "Ready")
        assert first.memory_bytes is not None
        assert 30 * MIB < first.memory_bytes < 130 * MIB
        client.put("prod/second", plan(tiny_model))
        client.put("prod/urgent", plan(tiny_model, priority=1_000_000))
        client.put("prod/huge", llama_plan(tiny_model, extra=("-c", "1000000")))
        client.put("prod/unknown", command_plan(sys.executable, "-m", "http.server", memory_bytes=None))
        for key in ("prod/second", "prod/urgent"):
            refused = reason(client, key, "InsufficientMemory")
            assert refused.phase == "Pending"
            assert "of 130 MiB (memoryBudget)" in refused.message
            assert "prod/first has" in refused.message
        assert "may never have more" in reason(client, "prod/huge", "InsufficientMemory").message
        assert "memory-check: off" in reason(client, "prod/unknown", "MemoryUnknown").message
        # The next agent counts the memory of the processes that it adopts.
        made.kill()
        client = made.start()
        after = client.get("prod/first").report
        assert (after.phase, after.pid, after.memory_bytes) == ("Ready", first.pid, first.memory_bytes)
        reason(client, "prod/second", "InsufficientMemory")
        assert client.report().facts.memory_budget_bytes == 130 * MIB
        assert metric(made, 'herdsman_agent_memory_budget_bytes{memory="ram"}') == 130 * MIB
        # Free memory goes to the waiting process with the highest priority.
        for key in ("prod/urgent", "prod/second"):
            reason(client, key, "InsufficientMemory")
        client.delete("prod/first")
        until(client, "prod/urgent", "Ready")
        assert client.get("prod/second").report.reason == "InsufficientMemory"
        command = (sys.executable, "-m", "http.server", "--bind", "{host}", "{port}")
        unchecked = command_plan(*command, memory_bytes=None, memory_check="off")
        client.put("prod/unknown", unchecked)
        until(client, "prod/unknown", "Ready")


class Meminfo:
    """A file in place of /proc/meminfo. It shows little memory, so that the processes use most of it.

    Evictions need half of the used memory in Herdsman's processes. A llama-server with the tiny model has 16 MiB.
    """

    def __init__(self, folder: Path, total_mib: int) -> None:
        self.path = folder / "meminfo"
        self._total_mib = total_mib
        self.available(total_mib // 2)

    def available(self, mib: int) -> None:
        draft = self.path.with_suffix(".new")
        draft.write_text(f"MemTotal: {self._total_mib * 1024} kB\nMemAvailable: {mib * 1024} kB\n")
        draft.replace(self.path)


def test_under_pressure_the_least_important_gives_way_and_comes_back(
    tmp_path: Path, llama_server: Path, tiny_model: Path
) -> None:
    meminfo = Meminfo(tmp_path, 60)
    options = ("--meminfo", str(meminfo.path), "--memory-interval", "0.2", "--evict", "--memory-budget", "100Mi")
    with host(tmp_path, tiny_model, *options) as made:
        client = made.start()
        client.put("prod/low", llama_plan(tiny_model, priority=100))
        client.put("prod/lowest", llama_plan(tiny_model, priority=1, eviction_protection=True))
        # Protected, because it would be the next: the memory that is free is written by the test, not by the eviction.
        client.put("prod/high", llama_plan(tiny_model, priority=100_000, eviction_protection=True))
        before = {key: until(client, key, "Ready") for key in ("prod/low", "prod/lowest", "prod/high")}
        meminfo.available(9)
        eventually(lambda: client.report().facts.memory_pressure == "Warning", what="a warning")
        assert client.get("prod/low").report.phase == "Ready"
        meminfo.available(3)
        evicted = reason(client, "prod/low", "Evicted")
        assert "3 MiB of 60 MiB (5 %) were available" in evicted.message
        # The memory of one evicted process is enough.
        meminfo.available(30)
        eventually(lambda: client.report().facts.memory_pressure == "Normal", what="the pressure to be over")
        assert client.get("prod/low").report.phase == "Pending"
        for key in ("prod/lowest", "prod/high"):
            assert client.get(key).report.pid == before[key].pid
        assert metric(made, "herdsman_agent_evictions_total") == 1
        meminfo.available(50)
        assert until(client, "prod/low", "Ready").pid != before["prod/low"].pid
        assert metric(made, "herdsman_agent_evictions_total") == 1


def test_the_host_object_sets_budget_and_eviction_and_tells_of_both(
    control_plane: LocalCluster, api: Api, namespace: str, llama_server: Path, tiny_model: Path, tmp_path: Path
) -> None:
    install_crds(api)
    name, meminfo = f"memory-{namespace}", Meminfo(tmp_path, 50)
    body: dict[str, Any] = {
        "apiVersion": HOSTS.api_version,
        "kind": HOSTS.kind,
        "metadata": {"name": name},
        "spec": {"memoryBudget": "50Mi", "memoryPressure": {"eviction": True}},
    }
    api.apply(HOSTS.path(None, name), body)
    options = ("--kubeconfig", str(control_plane.kubeconfig), "--allowed-host-path-roots", str(tiny_model.parent))
    options = (*options, *REACHED, "--meminfo", str(meminfo.path), "--memory-interval", "0.2")

    def condition() -> dict[str, str]:
        told = ((api.get(HOSTS.path(None, name)) or {}).get("status") or {}).get("conditions") or ()
        return next((c for c in told if c["type"] == "MemoryPressure"), {"status": "", "message": ""})

    with agent(tmp_path / "store", *options, host=name) as made:
        made.start()
        eventually(lambda: "50 MiB (memoryBudget)" in condition()["message"], what="the budget to be told")
        for service, priority in (("low", 1), ("high", 9)):
            names = {"service": service, "service_name": service}
            host_process(api, namespace, name, llama_plan(tiny_model, priority=priority, **names))
            until_ready(api, namespace, service)
        host_process(api, namespace, name, plan(tiny_model, service="large", service_name="large"))
        eventually(lambda: status(api, namespace, "large").get("reason") == "InsufficientMemory", what="a refusal")
        meminfo.available(2)
        eventually(lambda: status(api, namespace, "low").get("reason") == "Evicted", what="the eviction")
        pressed = eventually(lambda: c if (c := condition())["status"] == "True" else None, what="the condition")
        assert pressed["reason"] == "Critical"
        eventually(lambda: f"not started again: {namespace}/low" in condition()["message"], what="who gave way")
        assert status(api, namespace, "high")["ready"]
        meminfo.available(46)
        until_ready(api, namespace, "low")
        eventually(lambda: condition()["status"] == "False", what="the end of the pressure to be told")
        # The agent follows a changed budget in the Host.
        refused = status(api, namespace, "large")["message"]
        body["spec"]["memoryBudget"] = "200Mi"
        api.apply(HOSTS.path(None, name), body)
        eventually(lambda: status(api, namespace, "large").get("message") != refused, what="the budget to be heeded")


def test_models_of_a_group_take_turns_as_they_are_asked_for(
    tmp_path: Path, llama_server: Path, tiny_model: Path
) -> None:
    with host(tmp_path, tiny_model, "--memory-budget", "130Mi") as made:
        client = made.start()
        turns = {"group": "one", "min_dwell_s": 0.5}
        client.put("prod/home", plan(tiny_model, residency="preferred", **turns))
        home = until(client, "prod/home", "Ready")
        client.put("prod/guest", plan(tiny_model, residency="onDemand", idle_timeout_s=2, **turns))
        waiting = reason(client, "prod/guest", "SwappedOut")
        assert waiting.phase == "Asleep"
        assert waiting.port is not None
        answers: list[object] = []

        def ask(port: int) -> None:
            body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}).encode()
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                answers.append(json.load(answer)["usage"])

        asked = [threading.Thread(target=ask, args=(waiting.port,)) for _ in range(3)]
        for each in asked:
            each.start()
        out = reason(client, "prod/home", "SwappedOut")
        assert "prod/guest" in out.message
        for each in asked:
            each.join(60)
        assert len(answers) == 3
        assert client.get("prod/home").report.pid is None
        # Without further requests the other model sleeps, and the preferred one is loaded again.
        back = until(client, "prod/home", "Ready")
        assert back.pid != home.pid
        assert client.get("prod/guest").report.phase == "Asleep"
        # One swap to the other model and one back.
        assert metric(made, "herdsman_agent_swaps_total") <= 2
