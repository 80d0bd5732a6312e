"""Plain Pulumi over hosts: the real CLI finds `pulumi-resource-herdsman` on PATH and drives a real agent.

Covered: create, no change, update, refresh after a change outside of Pulumi, invalid input, a process that never
serves, processes of other owners, destroy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest

from agent.client.http import HttpHost
from agent.client.port import ProcessNotFound
from agent.contract import ProcessPlan
from tests.engine.stacks import Run, Stack
from tests.support.agents import TINY, TINY_NAME, AgentProcess, agent, gone, llama_plan

Program = Callable[[], None]


class HostProcess(pulumi.CustomResource):
    address: pulumi.Output[str]
    port: pulumi.Output[int]
    phase: pulumi.Output[str]

    def __init__(self, name: str, inputs: dict[str, Any], opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(
            "herdsman:index:HostProcess", name, {"address": None, "port": None, "phase": None, **inputs}, opts
        )


@pytest.fixture
def host(tmp_path: Path, tiny_model: Path) -> Iterator[AgentProcess]:
    with agent(
        tmp_path / "store",
        *("--plan-source", "http", "--address", "127.0.0.1"),
        *("--allowed-host-path-roots", str(tiny_model.parent)),
    ) as made:
        yield made


@pytest.fixture
def client(host: AgentProcess) -> HttpHost:
    return host.start()


def program(host: AgentProcess, planned: ProcessPlan, **changes: Any) -> Program:
    inputs = {
        "endpoint": host.url,
        "tokenFile": str(host.store / "agent-token"),
        "namespace": "prod",
        "name": TINY_NAME,
        "plan": planned.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        **changes,
    }

    def run() -> None:
        made = HostProcess("tiny", inputs)
        pulumi.export("url", pulumi.Output.format("http://{0}:{1}", made.address, made.port))

    return run


def changes(run: Run) -> dict[str, int]:
    [counted] = [event.summary_event.resource_changes for event in run.events if event.summary_event is not None]
    return {str(operation): count for operation, count in counted.items() if operation != "same"}


def test_a_host_process_is_created_kept_updated_and_destroyed(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, tiny_model: Path
) -> None:
    first = stack.up(program(host, llama_plan(tiny_model)))
    report = client.get(TINY).report
    assert report.ready, "up returns when the process serves"
    assert first.outputs["url"] == f"http://{report.address}:{report.port}"

    assert changes(stack.up(program(host, llama_plan(tiny_model)))) == {}
    assert client.get(TINY).report.pid == report.pid

    longer = llama_plan(tiny_model, extra=("--alias", "renamed"))
    assert changes(stack.up(program(host, longer))) == {"update": 1}
    replaced = client.get(TINY)
    assert replaced.plan == longer
    assert replaced.report.ready
    assert replaced.report.pid != report.pid

    stack.destroy()
    with pytest.raises(ProcessNotFound):
        client.get(TINY)
    assert replaced.report.pid is not None
    assert gone(replaced.report.pid, timeout_s=1)


def test_a_preview_shows_the_change_and_touches_nothing(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, tiny_model: Path
) -> None:
    previewed = stack.preview(program(host, llama_plan(tiny_model)))
    assert changes(previewed) == {"create": 2}, "the stack and the process"
    with pytest.raises(ProcessNotFound):
        client.get(TINY)


def test_a_refresh_sees_what_changed_behind_pulumis_back_and_up_repairs_it(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, tiny_model: Path
) -> None:
    wanted = llama_plan(tiny_model)
    stack.up(program(host, wanted))
    assert changes(stack.refresh()) == {}
    client.put(TINY, llama_plan(tiny_model, extra=("--alias", "by-hand")))
    assert changes(stack.refresh()) == {"update": 1}
    assert changes(stack.up(program(host, wanted))) == {"update": 1}
    assert client.get(TINY).plan == wanted


def test_a_renamed_process_is_replaced(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, tiny_model: Path
) -> None:
    stack.up(program(host, llama_plan(tiny_model)))
    assert "replace" in changes(stack.up(program(host, llama_plan(tiny_model), name="other")))
    assert list(client.report().processes) == ["prod/other"]


def test_a_plan_that_no_host_could_take_is_refused_before_anything_runs(
    host: AgentProcess, client: HttpHost, stack: Stack, tiny_model: Path
) -> None:
    bad = {"host": "test-host", "argv": "llama-server", "serviceName": "tiny"}
    said = stack.fails(program(host, llama_plan(tiny_model), plan=bad))
    assert "plan.argv" in said
    assert "plan.service" in said
    assert client.report().processes == {}


def test_a_process_that_never_serves_fails_the_update_and_is_still_ours_to_destroy(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, tiny_model: Path
) -> None:
    said = stack.fails(program(host, llama_plan(tiny_model, extra=("--no-such-flag",))))
    assert "no-such-flag" in said
    assert TINY in json.dumps(stack.state())
    stack.up(program(host, llama_plan(tiny_model)))
    assert client.get(TINY).report.ready
    stack.destroy()
    assert client.report().processes == {}


def test_a_process_of_another_plan_is_not_taken_over(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, tiny_model: Path
) -> None:
    by_hand = llama_plan(tiny_model, extra=("--alias", "by-hand"))
    client.put(TINY, by_hand)
    said = stack.fails(program(host, llama_plan(tiny_model)))
    assert "AlreadyExists" in said
    assert client.get(TINY).plan == by_hand
    stack.up(program(host, by_hand))


def test_an_agent_that_is_not_there_is_named(tmp_path: Path, stack: Stack, tiny_model: Path) -> None:
    (tmp_path / "token").write_text("any")
    absent = AgentProcess(tmp_path)
    inputs = {"endpoint": "http://127.0.0.1:9", "tokenFile": str(tmp_path / "token")}
    said = stack.fails(program(absent, llama_plan(tiny_model), **inputs))
    assert "http://127.0.0.1:9" in said
