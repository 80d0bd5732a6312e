"""The default context of a HostProcess without a loop: chosen once by a real agent's memory, and then kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.client.http import HttpHost
from agent.contract import FilePlan, ProcessPlan
from program.runtimes.flags import number_of
from tests.engine.stacks import Stack
from tests.hosts.test_host_plugin import Program, changes
from tests.hosts.test_host_plugin import program as program_of
from tests.support.agents import TINY, TINY_NAME, AgentProcess, agent, llama_plan
from tools.tiny_model import Shape, write_tiny_model

TRAINED = 4096


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return write_tiny_model(tmp_path / "models" / "tiny.gguf", shape=Shape(context=TRAINED))


@pytest.fixture
def host(tmp_path: Path, model: Path) -> Iterator[AgentProcess]:
    sources = ("--plan-source", "http", "--address", "127.0.0.1", "--allowed-host-path-roots", str(model.parent))
    with agent(tmp_path / "store", *sources) as made:
        yield made


@pytest.fixture
def client(host: AgentProcess) -> HttpHost:
    return host.start()


def planned(model: Path | str, tokens: int = 2048, **changed: Any) -> ProcessPlan:
    plan = llama_plan(model, **changed)
    words = ["--ctx-size" if each == "-c" else str(tokens) if each == "256" else each for each in plan.argv]
    return plan.model_copy(update={"argv": tuple(words)})


def program(host: AgentProcess, plan: ProcessPlan, **inputs: Any) -> Program:
    return program_of(host, plan, name=TINY_NAME, **inputs)


def context(client: HttpHost) -> int | None:
    plan = client.get(TINY).plan
    assert plan is not None
    return number_of(plan.argv, "--ctx-size")


def recorded(stack: Stack) -> object:
    return stack.state()["tiny"]["inputs"].get("defaultContext")


def test_the_context_that_fits_is_chosen_once_and_kept(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, model: Path
) -> None:
    wanted = program(host, planned(model), defaultContext="auto")
    told = stack.preview(wanted)
    assert f"{TRAINED:,} tokens of context, the longest that fits" in str(told.events)
    stack.up(wanted)
    assert (context(client), recorded(stack)) == (TRAINED, str(TRAINED))
    pid = client.get(TINY).report.pid
    # Less memory than it takes now: a choice of today would be shorter, and the process keeps its own.
    less = program(host, planned(model, memory_budget_bytes=1 << 20, memory_check="warn"), defaultContext="auto")
    preview = stack.preview(less)
    assert "tokens of context" not in str(preview.events)
    assert changes(stack.up(wanted)) == {}
    assert (context(client), client.get(TINY).report.pid) == (TRAINED, pid)


def test_a_process_of_an_earlier_version_keeps_its_context(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, model: Path
) -> None:
    stack.up(program(host, planned(model)))
    assert changes(stack.up(program(host, planned(model), defaultContext="auto"))) == {}
    assert (context(client), recorded(stack)) == (2048, None)


def test_a_context_that_the_service_had_set_is_replaced_by_a_chosen_one(
    host: AgentProcess, client: HttpHost, stack: Stack, llama_server: Path, model: Path
) -> None:
    stack.up(program(host, planned(model, 512)))
    assert changes(stack.up(program(host, planned(model), defaultContext="auto"))) == {"update": 1}
    assert context(client) == TRAINED


def test_without_the_header_the_default_is_used_with_a_warning_and_nothing_is_fixed(
    host: AgentProcess, client: HttpHost, stack: Stack, model: Path
) -> None:
    gone = FilePlan(source="http://127.0.0.1:9/gone.gguf", cache_key="gone", file_name="gone.gguf")
    told = str(stack.preview(program(host, planned(model, file=gone), defaultContext="auto")).events)
    assert "2,048 tokens of context" in told and "spec.contextSize sets another" in told


def test_another_word_is_refused(host: AgentProcess, client: HttpHost, stack: Stack, model: Path) -> None:
    assert "must be `auto`" in stack.fails(program(host, planned(model), defaultContext="8192"))
