"""What one reading of the folder applies, keeps and removes, with an engine that only keeps objects."""

from __future__ import annotations

from automation.engine.port import Batch, EngineFailed, Stack
from automation.local.applied import Applied
from automation.local.applying import record, run_batches
from automation.local.documents import LocalFolder, read_folder
from program.desired.keys import ServiceKey
from tests.fakes.engine import FakeEngine
from tests.support.local_mode import both, model, service

CHAT = ServiceKey("llmkube", "default", "chat")
OTHER = CHAT._replace(name="other")


def apply(engine: FakeEngine, folder: LocalFolder, before: Applied = Applied()) -> Applied:
    return record(folder, before, run_batches(engine, folder, before), "")


def names(engine: FakeEngine) -> set[str]:
    return {name for _, _, name in engine.objects}


def test_services_are_applied_by_namespace_and_recorded() -> None:
    engine = FakeEngine()
    in_team = both("team-chat").replace("metadata:\n", "metadata:\n  namespace: team\n")
    applied = apply(engine, read_folder({"a.yaml": both("chat"), "b.yaml": in_team}, {}))
    assert [run.stack for run in engine.runs] == [Stack("default"), Stack("team")]
    entry = applied.of(*CHAT)
    assert entry is not None
    assert (entry.process, entry.problem, entry.file, entry.model) == ("default/chat", "", "a.yaml", "chat")
    assert entry.cache_keys


def test_a_deleted_document_ends_its_service_only() -> None:
    engine = FakeEngine()
    before = apply(engine, read_folder({"a.yaml": both("chat"), "b.yaml": both("other")}, {}))
    after = apply(engine, read_folder({"b.yaml": both("other")}, {}), before)
    assert names(engine) == {"other"}
    assert [each.name for each in after.services] == ["other"]


def test_a_file_that_broke_keeps_its_services() -> None:
    engine = FakeEngine()
    before = apply(engine, read_folder({"a.yaml": both("chat"), "b.yaml": both("other")}, {}))
    after = apply(engine, read_folder({"a.yaml": "kind: [never", "b.yaml": both("other")}, {}), before)
    assert names(engine) == {"chat", "other"}
    entry = after.of(*CHAT)
    assert entry is not None
    assert "a.yaml" in entry.problem
    assert entry.process == "default/chat"
    # A document that is gone from another file is removed all the same.
    last = apply(engine, read_folder({"a.yaml": "kind: [never"}, {}), after)
    assert names(engine) == {"chat"}
    assert [each.name for each in last.services] == ["chat"]


def test_a_broken_file_keeps_services_of_which_no_file_is_known() -> None:
    engine = FakeEngine()
    apply(engine, read_folder({"a.yaml": both("chat")}, {}))
    apply(engine, read_folder({"b.yaml": "kind: [never"}, {}), Applied())
    assert names(engine) == {"chat"}


def test_a_document_that_became_invalid_keeps_what_runs_and_says_why() -> None:
    engine = FakeEngine()
    before = apply(engine, read_folder({"a.yaml": both("chat")}, {}))
    text = f"{model('chat')}---\n{service('chat', contextSize='many')}"
    entry = apply(engine, read_folder({"a.yaml": text}, {}), before).of(*CHAT)
    assert names(engine) == {"chat"}
    assert entry is not None
    assert entry.process == "default/chat"
    assert "contextSize" in entry.problem


def test_a_suspended_service_ends_and_stays_listed() -> None:
    engine = FakeEngine()
    before = apply(engine, read_folder({"a.yaml": both("chat")}, {}))
    text = f"{model('chat')}---\n{service('chat', suspend=True)}"
    entry = apply(engine, read_folder({"a.yaml": text}, {}), before).of(*CHAT)
    assert names(engine) == set()
    assert entry is not None
    assert (entry.stopped, entry.problem) == (True, "")


def test_an_engine_that_cannot_run_is_the_problem_of_each_service() -> None:
    folder = read_folder({"a.yaml": both("chat")}, {})
    entry = record(folder, Applied(), {}, "`pulumi` was not found").of(*CHAT)
    assert entry is not None
    assert "pulumi" in entry.problem


def test_one_service_that_the_agent_refuses_is_the_problem_of_that_one() -> None:
    def refuse(manifest: dict[str, object]) -> str | None:
        metadata = manifest["metadata"]
        assert isinstance(metadata, dict)
        return "NotAllowed: no" if metadata["name"] == "other" else None

    engine = FakeEngine(refuse=refuse)
    applied = apply(engine, read_folder({"a.yaml": both("chat"), "b.yaml": both("other")}, {}))
    problems = {each.name: each.problem for each in applied.services}
    assert problems["chat"] == ""
    assert "NotAllowed" in problems["other"]


def test_a_failed_run_of_one_namespace_leaves_the_others_alone() -> None:
    def fail(batch: Batch) -> None:
        if batch.stack.namespace == "default":
            raise EngineFailed("ApplyFailed", "the disk is full")

    in_team = both("team-chat").replace("metadata:\n", "metadata:\n  namespace: team\n")
    engine = FakeEngine(before_run=fail)
    applied = apply(engine, read_folder({"a.yaml": both("chat"), "b.yaml": in_team}, {}))
    assert {each.name: each.problem for each in applied.services} == {"chat": "the disk is full", "team-chat": ""}
    assert names(engine) == {"team-chat"}
