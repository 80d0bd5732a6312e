"""The context of local services that set none: what fits on this machine, and what runs keeps its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from agent.client.port import HostUnreachable
from agent.contract import FilePlan, HostFacts, HostPlan, HostReport, ProcessPhase, ProcessPlan, ProcessReport
from agent.sources.errors import SourceNotFound, SourceUnreachable
from automation.local.applied import Applied
from automation.local.applying import record
from automation.local.contexts import ChosenContexts, choose_contexts
from automation.local.documents import LocalFolder, read_folder
from program.desired.keys import ServiceKey
from program.desired.model import GgufFacts
from tests.support.local_mode import both, model, service

GIB = 1 << 30
CHAT = ServiceKey("llmkube", "default", "chat")
HEADER = GgufFacts(
    architecture="llama",
    context_length=131_072,
    layer_count=32,
    embedding_size=4096,
    head_count=32,
    head_count_kv=8,
    weights_bytes=5 * GIB,
)


@dataclass
class Machine:
    """The agent of this machine, as far as contexts read it."""

    budget_gib: float | None = 64
    plans: dict[str, ProcessPlan] = field(default_factory=dict)
    reports: dict[str, ProcessReport] = field(default_factory=dict)
    answers: bool = True

    def plan(self) -> HostPlan:
        if not self.answers:
            raise HostUnreachable("Unreachable", "no answer")
        return HostPlan(host="local", processes=self.plans)

    def report(self) -> HostReport:
        budget = None if self.budget_gib is None else int(self.budget_gib * GIB)
        facts = HostFacts(
            host="local",
            address="127.0.0.1",
            os="linux",
            arch="x86_64",
            memory_bytes=64 * GIB,
            cpus=2,
            agent_version="1",
            memory_budget_bytes=budget,
        )
        return HostReport(facts=facts, processes=self.reports)

    def runs(self, folder: LocalFolder, *, ready: bool = True, pid: int | None = 7) -> None:
        """Take the plans of a folder, as the provider hands them over."""
        for each in folder.services.values():
            assert each.plan is not None
            self.plans[each.key.namespace + "/" + each.key.name] = each.plan
            report = ProcessReport(phase=ProcessPhase.READY, ready=ready, pid=pid, memory_bytes=6 * GIB)
            self.reports[each.key.namespace + "/" + each.key.name] = report


@dataclass
class Headers:
    """Finds the same header for each file, or fails."""

    facts: GgufFacts = HEADER
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def __call__(self, files: Sequence[FilePlan]) -> GgufFacts:
        self.asked.append(files[0].source)
        if self.error is not None:
            raise self.error
        return self.facts


def choose(
    machine: Machine, text: str, before: Applied = Applied(), headers: Headers | None = None
) -> tuple[ChosenContexts, Applied]:
    found = choose_contexts(read_folder({"a.yaml": text}, {}), before, machine, headers or Headers())  # type: ignore[arg-type] # only what is read
    return found, record(found.folder, before, {}, "", found.chosen)


def tokens(found: ChosenContexts, key: ServiceKey = CHAT) -> int | None:
    return found.folder.services[key].context_size


@pytest.mark.parametrize(("budget_gib", "expected"), [(64, 32_768), (9, 16_384), (6.8, 8_192), (1, 2_048)])
def test_a_new_service_gets_the_longest_context_that_fits(budget_gib: float, expected: int) -> None:
    found, applied = choose(Machine(budget_gib), both("chat"))
    entry = applied.of(*CHAT)
    assert tokens(found) == expected
    assert entry is not None and (entry.context_size, entry.default_context) == (expected, str(expected))


def test_what_runs_keeps_its_context_and_its_header_is_not_read_again() -> None:
    machine = Machine(9)
    first, applied = choose(machine, both("chat"))
    machine.runs(first.folder)
    machine.budget_gib = 64
    headers = Headers()
    again, _ = choose(machine, both("chat"), applied, headers)
    assert again.folder.services[CHAT].plan == first.folder.services[CHAT].plan
    assert headers.asked == []
    lost, _ = choose(machine, both("chat"), Applied())
    assert tokens(lost) == 16_384, "the record is lost"


def test_a_process_of_an_earlier_version_keeps_its_context_while_it_runs() -> None:
    machine = Machine()
    old = read_folder({"a.yaml": both("chat")}, {})
    before = record(old, Applied(), {}, "")
    machine.runs(old)
    assert tokens(choose(machine, both("chat"), before)[0]) == 2_048
    machine.runs(old, ready=False, pid=None)
    assert tokens(choose(machine, both("chat"), before)[0]) == 32_768


def test_a_context_that_was_set_stays_and_a_removed_one_is_chosen_again() -> None:
    machine = Machine()
    text = f"{model('chat')}---\n{service('chat', contextSize=4096)}"
    found, applied = choose(machine, text)
    assert (tokens(found), found.chosen) == (4_096, {})
    machine.runs(found.folder)
    assert tokens(choose(machine, both("chat"), applied)[0]) == 32_768


def test_services_that_take_turns_do_not_share_the_memory_and_pinned_ones_do() -> None:
    pinned = {"herdsman.dev/residency": "pinned", "herdsman.dev/model-group": "own"}
    other = f"{model('other')}---\n{service('other', annotations=pinned)}"
    machine = Machine(16)
    turns, _ = choose(machine, f"{both('chat')}---\n{both('other')}")
    assert tokens(turns) == tokens(turns, CHAT._replace(name="other")) == 32_768
    shared, _ = choose(machine, f"{other}---\n{both('chat')}")
    assert {tokens(shared), tokens(shared, CHAT._replace(name="other"))} == {32_768, 8_192}


@pytest.mark.parametrize(
    ("error", "again"), [(SourceUnreachable("no network"), True), (SourceNotFound("it is gone"), False)]
)
def test_an_unknown_header_leaves_the_choice_for_later(error: Exception, again: bool) -> None:
    machine, headers = Machine(), Headers(error=error)
    found, applied = choose(machine, both("chat"), headers=headers)
    entry = applied.of(*CHAT)
    assert (tokens(found), found.is_worth_another_try) == (2_048, again)
    assert entry is not None and entry.default_context == "pending"
    machine.runs(found.folder, ready=False, pid=None)
    assert tokens(choose(machine, both("chat"), applied)[0]) == 32_768
    machine.runs(found.folder)
    kept, _ = choose(machine, both("chat"), applied)
    assert (tokens(kept), kept.is_worth_another_try) == (2_048, False), "what runs is not restarted"


def test_a_server_that_does_not_answer_is_asked_once_for_all_its_models() -> None:
    headers = Headers(error=SourceUnreachable("no network"))
    pairs = [("chat", "hub.example"), ("other", "hub.example"), ("third", "nas.example")]
    text = "---\n".join(f"{model(name, source=f'https://{at}/{name}.gguf')}---\n{service(name)}" for name, at in pairs)
    found, _ = choose(Machine(), text, headers=headers)
    assert headers.asked == ["https://hub.example/chat.gguf", "https://nas.example/third.gguf"]
    assert found.is_worth_another_try and len(found.chosen) == 3


def test_an_agent_that_does_not_answer_changes_nothing() -> None:
    with pytest.raises(HostUnreachable):
        choose(Machine(answers=False), both("chat"))
