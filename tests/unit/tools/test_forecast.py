"""The time that builds still take: from earlier builds and from steps, over lanes that run at the same time."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tools import build
from tools.forecast import Forecast, record, recorded, time_text
from tools.progress import display
from tools.versions import TOOLS


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_longest_lane_counts_and_the_share_never_goes_back() -> None:
    clock = Clock()
    forecast = Forecast([{"a": 60.0, "b": 30.0}, {"c": 80.0}], clock=clock)
    assert (forecast.left_s(), forecast.share()) == (90.0, 0.0)
    forecast.begin("a")
    forecast.begin("c")
    clock.now += 45
    assert forecast.left_s() == 45.0 and forecast.share() == 0.5
    # A build that takes longer than usual keeps a little, and the bar waits.
    clock.now += 45
    assert forecast.left_s() == pytest.approx(33.0)
    before = forecast.share()
    forecast.step("c", 20, 100)
    assert forecast.left_s() == pytest.approx(360.0) and forecast.share() == before
    forecast.end("c")
    forecast.end("a")
    assert forecast.left_s() == 30.0
    forecast.begin("b")
    forecast.end("b")
    assert (forecast.left_s(), forecast.share()) == (0.0, 1.0)


def test_a_build_that_was_not_announced_is_estimated_by_its_steps() -> None:
    clock = Clock()
    forecast = Forecast([], clock=clock)
    forecast.begin("image")
    assert (forecast.left_s(), forecast.share()) == (None, None)
    clock.now += 10
    forecast.step("image", 1, 4)
    assert (forecast.left_s(), forecast.share()) == (30.0, 0.25)
    forecast.step("image", None, None)
    assert forecast.left_s() == 30.0


def test_durations_are_kept_and_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    record(path, "pulumi-1", 12.34)
    record(path, "kubectl-2", 5.0)
    assert recorded(path) == {"pulumi-1": 12.3, "kubectl-2": 5.0}
    path.write_text("[")
    assert recorded(path) == {}
    record(tmp_path / "missing" / "x.json", "pulumi-1", 1.0)
    assert [each.name for each in tmp_path.iterdir()] == ["durations.json"]


def test_the_last_build_on_this_machine_counts_before_the_table() -> None:
    tool = TOOLS["helm"]
    assert build._usual_s(tool, {}) == 60 * tool.build_minutes
    assert build._usual_s(tool, {"helm-0.1": 7.0}) == 7.0
    assert build._usual_s(tool, {tool.directory_name: 9.0, "helm-0.1": 7.0}) == 9.0


@pytest.mark.parametrize(("seconds", "text"), [(0, "1 s"), (7, "7 s"), (33, "35 s"), (89, "90 s"), (400, "7 min")])
def test_times_are_round(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_all_builds_share_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    with display(stream, [{"pulumi 1": 600.0}, {"llama-server 2": 300.0}]) as shown:
        first, second = shown.build("pulumi 1"), shown.build("llama-server 2")
        first.step("compiling")
        second.step("compiling", done=50, total=100)
        shown.draw()  # type: ignore[attr-defined] # the bar on a terminal
        second.finished("ready after 3 s")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "llama-server 2: ready after 3 s" in text
    last = text.replace("\r", "\n").splitlines()
    both = [line for line in last if "pulumi 1 (compiling)" in line]
    assert both and all(re.search(r"about \d+ min left", line) for line in both)
    # No line has a bar of one build alone beside it.
    assert not [line for line in last if line.strip().startswith("llama-server 2 (")]
