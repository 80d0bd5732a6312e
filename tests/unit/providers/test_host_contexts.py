"""The choice of a context by the plugin: the memory that others have left, and when a choice stays."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agent.client.port import HostUnreachable, ProcessNotFound, ProcessState
from agent.contract import (
    Accelerator,
    FilePlan,
    HostFacts,
    HostPlan,
    HostReport,
    ProcessPhase,
    ProcessPlan,
    ProcessReport,
)
from agent.sources.errors import SourceUnreachable
from components.providers.host_contexts import DefaultContexts
from components.providers.host_transports import HostTransports
from program.desired.model import GgufFacts
from program.runtimes.flags import number_of

GIB = 1 << 30
HEADER = GgufFacts(
    architecture="llama",
    context_length=16_384,
    layer_count=32,
    embedding_size=4096,
    head_count=32,
    head_count_kv=32,
    weights_bytes=4 * GIB,
)
"""A cache of 0.5 MiB for each token."""


def plan(name: str = "m", tokens: int = 2048, **changed: Any) -> ProcessPlan:
    argv = ("llama-server", "--ctx-size", str(tokens), "--port", "{port}")
    source = FilePlan(source=f"https://example.com/{name}.gguf", cache_key=name, file_name=f"{name}.gguf")
    return ProcessPlan(host="mac", service=name, argv=argv, file=source, service_name=name, **changed)


class Host:
    """A host with 16 GiB for models."""

    def __init__(self) -> None:
        self.facts = HostFacts(
            host="mac",
            address="127.0.0.1",
            os="linux",
            arch="x",
            memory_bytes=32 * GIB,
            cpus=8,
            agent_version="1",
            memory_budget_bytes=16 * GIB,
        )
        self.running: dict[str, tuple[ProcessPlan, ProcessReport]] = {}
        self.is_away = False

    def run(self, name: str, memory_gib: int, **changed: Any) -> None:
        report = ProcessReport(phase=ProcessPhase.READY, ready=True, memory_bytes=memory_gib * GIB)
        self.running[f"prod/{name}"] = plan(name, **changed), report

    def report(self) -> HostReport:
        if self.is_away:
            raise HostUnreachable("Unreachable", "the host does not answer")
        return HostReport(facts=self.facts, processes={key: report for key, (_, report) in self.running.items()})

    def plan(self) -> HostPlan:
        return HostPlan(host="mac", processes={key: found for key, (found, _) in self.running.items()})

    def get(self, key: str) -> ProcessState:
        if self.is_away:
            raise HostUnreachable("Unreachable", "the host does not answer")
        if key not in self.running:
            raise ProcessNotFound("NotFound", key)
        found, report = self.running[key]
        return ProcessState(plan=found, report=report, generation=1)


class World:
    def __init__(self) -> None:
        self.host = Host()
        self.told: list[tuple[str, bool]] = []
        self.header: GgufFacts | Exception = HEADER
        transports = cast(HostTransports, self)
        self.contexts = DefaultContexts(transports, read=lambda _: self.read())

    def client_for(self, _given: object) -> Host:
        return self.host

    def read(self) -> GgufFacts:
        if isinstance(self.header, Exception):
            raise self.header
        return self.header

    def check(
        self, given: ProcessPlan | None = None, olds: dict[str, Any] | None = None, name: str = "m"
    ) -> dict[str, Any]:
        sent = (given or plan(name)).model_dump(mode="json", by_alias=True, exclude_defaults=True)
        news = {"endpoint": "https://mac:1", "namespace": "prod", "name": name, "plan": sent, "defaultContext": "auto"}
        return self.contexts.checked(news, olds or {}, lambda text, warns: self.told.append((text, warns)))


def tokens_of(inputs: dict[str, Any]) -> tuple[int | None, object]:
    return number_of(inputs["plan"]["argv"], "--ctx-size"), inputs.get("defaultContext")


@pytest.fixture
def world() -> World:
    return World()


def test_what_others_have_reserved_makes_the_context_shorter(world: World) -> None:
    assert tokens_of(world.check()) == (16_384, "16384")
    world = World()
    world.host.run("other", 8)
    assert tokens_of(world.check()) == (4096, "4096")
    assert world.told == [
        ("prod/m gets 4,096 tokens of context, the longest that fits. spec.contextSize sets another.", False)
    ]


def test_two_processes_of_one_run_share_the_memory(world: World) -> None:
    world.check()
    assert tokens_of(world.check(name="n")) == (2048, "2048")


def test_members_that_take_turns_do_not_count(world: World) -> None:
    world.host.run("other", 12, group="gpu", residency="onDemand")
    turns = plan(group="gpu", residency="onDemand")
    assert tokens_of(world.check(turns)) == (16_384, "16384")
    assert tokens_of(world.check(turns, name="n")) == (16_384, "16384"), "nor does one that this run has chosen"
    assert tokens_of(World().check(plan(memory_budget_bytes=7 * GIB))) == (4096, "4096")


def test_a_draft_alone_is_not_the_size_of_both_models(world: World) -> None:
    draft = FilePlan(source="https://example.com/draft.gguf", cache_key="d", file_name="draft.gguf")
    headers = [HEADER.model_copy(update={"weights_bytes": None}), HEADER]
    world.contexts.read = lambda _: headers.pop(0)
    assert tokens_of(world.check(plan(files={"draft": draft}))) == (2048, "pending")


def test_a_gpu_with_its_own_memory_bounds_the_context(world: World) -> None:
    gpu = Accelerator(type="cuda", memory_bytes=8 * GIB)
    world.host.facts = world.host.facts.model_copy(update={"accelerators": (gpu,)})
    assert tokens_of(world.check()) == (16_384, "16384"), "no layer is on the GPU"
    on_gpu = plan().model_copy(update={"argv": (*plan().argv, "--n-gpu-layers", "99")})
    assert tokens_of(world.check(on_gpu)) == (4096, "4096")


def test_a_choice_stays_without_a_question_to_the_host(world: World) -> None:
    olds = world.check()
    world.host.is_away = True
    assert tokens_of(world.check(olds=olds)) == (16_384, "16384")
    assert len(world.told) == 1


def test_another_model_or_host_gets_a_new_choice(world: World) -> None:
    olds = world.check()
    world.host.run("other", 8)
    assert tokens_of(world.check(plan("n"), olds=olds)) == (4096, "4096")
    moved = {**olds, "plan": {**olds["plan"], "host": "linux"}}
    assert tokens_of(world.check(olds=moved)) == (4096, "4096")


def test_the_plan_of_an_earlier_version_stays(world: World) -> None:
    earlier = {"plan": plan().model_dump(mode="json", by_alias=True)}
    assert tokens_of(world.check(olds=earlier)) == (2048, None)
    had_set = {"plan": plan(tokens=512).model_dump(mode="json", by_alias=True)}
    assert tokens_of(world.check(olds=had_set)) == (16_384, "16384")


@pytest.mark.parametrize("fact", ["host", "header", "size", "memory"])
def test_an_unknown_fact_leaves_the_choice_open_until_the_process_serves(world: World, fact: str) -> None:
    world.host.is_away = fact == "host"
    world.header = SourceUnreachable("example.com does not answer") if fact == "header" else HEADER
    if fact == "size":
        world.header = HEADER.model_copy(update={"weights_bytes": None})
    if fact == "memory":
        world.host.facts = world.host.facts.model_copy(update={"memory_budget_bytes": None})
    pending = world.check()
    assert tokens_of(pending) == (2048, "pending")
    assert [warns for _, warns in world.told] == [True]
    world.host.is_away, world.header = False, HEADER
    world.host.facts = Host().facts
    assert tokens_of(world.check(olds=pending)) == (16_384, "16384")
    world.host.run("m", 6)
    assert tokens_of(world.check(olds=pending)) == (2048, "pending")


def test_without_a_state_the_process_on_the_host_keeps_its_context(world: World) -> None:
    world.host.run("m", 6, tokens=8192)
    assert tokens_of(world.check()) == (8192, "8192")


def test_a_program_that_sets_the_context_is_left_alone(world: World) -> None:
    sent = plan(tokens=512).model_dump(mode="json", by_alias=True)
    news = {"namespace": "prod", "name": "m", "plan": sent}
    assert world.contexts.checked(news, {}, lambda *_: None) == news
