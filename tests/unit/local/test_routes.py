"""The gateway's routes on one machine: names of what was applied, addresses of the agent's reports."""

from __future__ import annotations

import pytest

from agent.contract import ProcessPhase, ProcessReport
from automation.local.applied import Applied, AppliedService
from automation.local.folders import LocalFolders
from automation.local.instance import Instance
from automation.local.routes import routes_of
from automation.local.running import AppliedFile, FolderWatch
from automation.local.state import service_state
from automation.places.place import State

SERVICE = AppliedService(
    dialect="llmkube",
    namespace="default",
    name="chat",
    file="chat.yaml",
    spec_hash="1",
    process="default/chat",
    model="chat",
    document={"kind": "InferenceService", "metadata": {"annotations": {"herdsman.dev/model-aliases": "gpt-4, fast"}}},
)
UP = Instance(pid=1, mark="m", url="http://127.0.0.1:8080/v1")


def report(phase: ProcessPhase, *, port: int | None = 18000, reason: str = "", message: str = "") -> ProcessReport:
    return ProcessReport(phase=phase, port=port, address="127.0.0.1", reason=reason, message=message)


@pytest.mark.parametrize(
    ("phase", "state"),
    [(ProcessPhase.ASLEEP, "asleep"), (ProcessPhase.READY, "ready"), (ProcessPhase.DOWNLOADING, "not ready")],
)
def test_a_service_is_reached_at_its_proxy_also_while_it_does_not_run(phase: ProcessPhase, state: str) -> None:
    (route,) = routes_of(Applied(services=(SERVICE,)), {"default/chat": report(phase)})
    assert route.targets == (("127.0.0.1", 18000),)
    assert route.model.state == state
    assert route.model.aliases == ("gpt-4", "fast")


def test_a_service_without_a_process_is_listed_and_has_no_address() -> None:
    (route,) = routes_of(Applied(services=(SERVICE,)), {})
    assert route.targets == ()
    assert str(route.model.service) == "default/chat"


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (report(ProcessPhase.READY), State.READY),
        (report(ProcessPhase.ASLEEP, reason="Idle"), State.ASLEEP),
        (report(ProcessPhase.DOWNLOADING), State.STARTING),
        (report(ProcessPhase.PENDING, reason="InsufficientMemory"), State.WAITING),
        (report(ProcessPhase.BACKING_OFF, reason="RuntimeMissing"), State.FAILED),
        (report(ProcessPhase.BACKING_OFF, reason="ProcessExited"), State.STARTING),
        (report(ProcessPhase.FAILED, reason="CrashLoop"), State.FAILED),
        (None, State.STARTING),
    ],
)
def test_the_state_of_a_service_follows_its_process(found: ProcessReport | None, state: State) -> None:
    assert service_state(SERVICE, found, UP).state is state


def test_a_broken_edit_is_shown_beside_what_still_runs() -> None:
    broken = SERVICE.model_copy(update={"problem": "spec.contextSize: is not a number"})
    runs = service_state(broken, report(ProcessPhase.READY), UP)
    assert (runs.state, runs.is_current, runs.message) == (State.READY, False, broken.problem)
    assert service_state(broken, None, UP).state is State.FAILED


def test_nothing_is_reached_while_local_mode_is_down() -> None:
    found = service_state(SERVICE, report(ProcessPhase.READY), None)
    assert (found.state, found.reason, found.ready_replicas) == (State.STOPPED, "NotRunning", 0)


def test_the_watch_sees_a_change_of_content_and_no_other_file(folders: LocalFolders) -> None:
    watch = FolderWatch(folders.config)
    first = watch.look()
    (folders.config / ".hidden.yaml").write_text("")
    assert watch.look() == first
    (folders.config / "chat.yaml").write_text("a")
    second = watch.look()
    (folders.config / "chat.yaml").write_text("bc")
    assert len({first, second, watch.look()}) == 3


def test_the_record_is_read_again_after_a_change(folders: LocalFolders) -> None:
    file = AppliedFile(folders.applied)
    assert file.read() is None
    Applied().write(folders.applied)
    assert file.read() == Applied()
    Applied(services=(SERVICE,)).write(folders.applied)
    assert file.read() == Applied(services=(SERVICE,))


@pytest.mark.parametrize("reason", ["SourceNotFound", "SourceUnauthorized", "SourceRefused", "NotGguf"])
def test_a_source_that_only_a_person_can_mend_is_a_failure(reason: str) -> None:
    found = ProcessReport(phase=ProcessPhase.BACKING_OFF, reason=reason)
    assert service_state(SERVICE, found, UP).state is State.FAILED


def test_what_the_process_says_of_an_earlier_edit_is_not_shown_as_the_present_state() -> None:
    failed = report(ProcessPhase.BACKING_OFF, reason="SourceNotFound", message="the old file is gone")
    found = service_state(SERVICE, failed, UP, is_current=False)
    assert (found.state, found.message) == (State.STARTING, "the last edit is not applied yet")
    assert service_state(SERVICE, report(ProcessPhase.READY), UP, is_current=False).state is State.READY
