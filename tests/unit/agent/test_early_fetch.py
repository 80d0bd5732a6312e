"""The fetch beside a running process, when one of its steps fails in a way that nobody expects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.contract import FilePlan, IdleQuestion, ProcessPlan
from agent.server.processes import early_fetch
from agent.server.processes.early_fetch import EarlyFetch
from agent.sources.errors import NoSpace
from tests.support.supervising import Supervised, server_plan, supervised

KEY = "prod/s"
SLOTS = IdleQuestion(path="/slots", kind="slots")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Supervised]:
    with supervised(tmp_path) as made:
        yield made


def plan_with(file: Path, busy: str = "", *more: str) -> ProcessPlan:
    file.touch()
    planned = FilePlan(source=str(file), cache_key=file.stem * 16, file_name=file.name)
    return server_plan(busy, "{model}", *more, file=planned, idle=SLOTS if busy else None)


def replaced(host: Supervised, tmp_path: Path, **changes: Any) -> None:
    """Replace a process by one with another file, and wait until the second one serves."""
    supervisor = host.start(**changes)
    supervisor.put(KEY, plan_with(tmp_path / "a.gguf"), 1)
    first = host.until(KEY, "Ready").pid
    supervisor.put(KEY, plan_with(tmp_path / "b.gguf"), 2)
    host.when(KEY, lambda report: report.ready and report.pid not in (None, first), what="to be replaced", timeout_s=20)


def test_a_fetch_whose_thread_cannot_start_is_begun_again(
    host: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [RuntimeError("can't start new thread")]

    def early(*arguments: Any, **options: Any) -> EarlyFetch:
        if refused:
            raise refused.pop()
        return EarlyFetch(*arguments, **options)

    monkeypatch.setattr(early_fetch, "EarlyFetch", early)
    replaced(host, tmp_path)
    assert not refused


def test_an_error_after_a_fetch_does_not_end_the_supervision(host: Supervised, tmp_path: Path) -> None:
    full = [NoSpace("full", lacking_bytes=1)]

    def fetch(plan: FilePlan, _progress: Any, _cancel: Any) -> Path:
        if plan.file_name == "b.gguf" and full:
            raise full.pop()
        return Path(plan.source)

    def freed_by_stop(_key: str) -> int:
        raise OSError("the disk is gone")

    replaced(host, tmp_path, fetch=fetch, freed_by_stop=freed_by_stop)
    assert not full


def test_the_reason_of_one_replacement_is_not_told_of_the_next(host: Supervised, tmp_path: Path) -> None:
    """The first one is called off while requests end. The second one needs no other files."""
    busy = tmp_path / "busy"
    busy.touch()

    def fetch(plan: FilePlan, _progress: Any, _cancel: Any) -> Path:
        if plan.file_name == "b.gguf":
            raise NoSpace("full", lacking_bytes=1)
        return Path(plan.source)

    def plan(name: str, *more: str) -> ProcessPlan:
        return plan_with(tmp_path / name, str(busy), *more)

    supervisor = host.start(fetch=fetch, freed_by_stop=lambda _key: 1)
    supervisor.put(KEY, plan("a.gguf"), 1)
    pid = host.until(KEY, "Ready").pid
    supervisor.put(KEY, plan("b.gguf"), 2)
    assert "no room" in host.until(KEY, "Stopping").message
    supervisor.put(KEY, plan("a.gguf"), 3)
    assert host.until(KEY, "Ready").pid == pid
    supervisor.put(KEY, plan("a.gguf", "more"), 4)
    assert host.until(KEY, "Stopping").message == ""


@pytest.mark.parametrize("fails", ["fetch", "start"])
def test_the_log_names_the_step_that_failed(host: Supervised, tmp_path: Path, fails: str) -> None:
    def fetch(plan: FilePlan, _progress: Any, _cancel: Any) -> Path:
        if fails == "fetch":
            raise NoSpace("full")
        return Path(plan.source)

    wanted = plan_with(tmp_path / "a.gguf")
    if fails == "start":
        wanted = wanted.model_copy(update={"argv": ("no-such-program", "{model}")})
    with capture_logs() as logs:
        host.start(fetch=fetch).put(KEY, wanted, 1)
        host.when(KEY, lambda report: bool(report.reason), what=f"to fail to {fails}", timeout_s=20)
    said = {each["event"] for each in logs if each["log_level"] == "warning"}
    expected = {"fetch": "Failed to fetch the files of the process", "start": "Failed to start the process"}
    assert expected[fails] in said
    assert not said & (set(expected.values()) - {expected[fails]})
