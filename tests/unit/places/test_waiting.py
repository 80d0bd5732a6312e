"""Waits for a service, with a place that has a script of states."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from automation.cli.place_options import find_service
from automation.cli.waiting import WaitEnded, wait_until_ready
from automation.places.place import Download, NoSuchService, Place, PlaceError, ServiceState, State

BASE = ServiceState(namespace="ns", name="chat", state=State.STARTING, phase="Creating", message="it loads")


class ScriptedPlace:
    """Returns the next state at each look."""

    def __init__(self, *states: ServiceState) -> None:
        self._states: Iterator[ServiceState] = iter(states)

    def watch(self, service: ServiceState, *, pause_s: float) -> ServiceState:
        return next(self._states, service)


def wait(*states: ServiceState, **options: Any) -> ServiceState:
    first, *rest = states
    return wait_until_ready(cast("Place", ScriptedPlace(*rest)), first, **{"timeout_s": 60.0, **options})


def of(state: State, **fields: Any) -> ServiceState:
    return replace(BASE, state=state, **fields)


@pytest.mark.parametrize("state", [State.READY, State.ASLEEP])
def test_a_service_that_answers_ends_the_wait_whatever_spec_it_has(state: State) -> None:
    assert wait(BASE, of(state, is_current=False)).state is state


def test_only_a_failure_of_the_present_spec_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    assert wait(of(State.FAILED, is_current=False), of(State.READY)).state is State.READY
    with pytest.raises(PlaceError, match="OutOfMemory: no room") as failed:
        wait(of(State.FAILED, reason="OutOfMemory", message="no room"))
    assert "herdsman logs chat" in failed.value.hint


def test_a_stopped_service_is_an_error_unless_it_was_wanted() -> None:
    with pytest.raises(PlaceError, match="is stopped"):
        wait(of(State.STOPPED))
    assert wait(BASE, of(State.STOPPED), ends_stopped=True).state is State.STOPPED


def test_the_end_of_the_time_names_the_reason() -> None:
    times = iter([0.0, 5.0, 11.0])
    with pytest.raises(WaitEnded, match="not ready after 10 seconds: it loads"):
        wait(BASE, timeout_s=10.0, clock=lambda: next(times))


def test_without_a_terminal_each_change_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    loading = [of(State.STARTING, download=Download(done, 100)) for done in (1, 2, 55, 56)]
    wait(BASE, BASE, *loading, of(State.WAITING, message="no GPU", reason="WaitingForGPU"), of(State.READY))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "chat is starting: it loads"
    assert len(lines) == 4
    assert "(55 %)" in lines[2] and lines[3] == "chat is waiting: no GPU"


def test_on_a_terminal_a_bar_is_drawn_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    wait(BASE, of(State.STARTING, download=Download(50, 100), message="[b]x\x1b[2J"), of(State.READY))
    drawn = terminal.getvalue()
    assert "chat is starting" in drawn
    assert "\x1b[2J" not in drawn


def test_a_download_that_fails_again_and_again_is_told_once_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    tries = of(State.STARTING, message="", download=Download(0, None))
    fails = of(State.STARTING, reason="SourceUnreachable", message="`hub` does not resolve")
    wait(*(3 * [tries, fails]), of(State.READY))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "chat is starting: the download begins"
    assert "`hub` does not resolve; check the network" in lines[1]
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("SourceUnauthorized", "HF_TOKEN"),
        ("SourceNotFound", "herdsman deploy chat --source"),
        ("NoSpace", "--purge"),
        ("RuntimeMissing", "tools install llama-server"),
    ],
)
def test_a_failure_says_what_to_do(reason: str, said: str) -> None:
    with pytest.raises(PlaceError) as failed:
        wait(of(State.FAILED, reason=reason, message="it failed"))
    assert said in failed.value.hint


def test_a_wait_that_ran_out_says_what_to_do() -> None:
    times = iter([0.0, 11.0])
    with pytest.raises(WaitEnded) as late:
        wait(of(State.WAITING, reason="InsufficientMemory"), timeout_s=10.0, clock=lambda: next(times))
    assert "herdsman ps" in late.value.hint and "herdsman status chat --watch" in late.value.hint


def test_a_service_is_also_found_by_the_id_that_deploy_got() -> None:
    class Named:
        def find(self, name: str, namespace: str | None) -> ServiceState:
            if name != "qwen3-5-4b":
                raise NoSuchService(f"no service `{name}`", hint="similar names: qwen3-5-4b")
            return BASE

    place = cast("Place", Named())
    assert find_service(place, "qwen3.5-4b", None) is find_service(place, "qwen3-5-4b", None) is BASE
    for missing in ("qwen3.6-4b", "nothing"):
        with pytest.raises(NoSuchService, match=f"`{missing}`"):
            find_service(place, missing, None)
