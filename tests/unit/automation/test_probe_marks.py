"""Inspections that were under way when the loop's process ended: they are recorded, and repeated only after a wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from automation.models.model_probe import ModelProbe, SourcePolicy
from automation.models.probe_marks import Interrupted, ProbeMarks
from program.desired.facts import ProbeFacts
from program.dialects.llmkube.parse.source import parse_source
from tests.support.controlplane import eventually
from tests.support.model_server import File, FileServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PLAIN = (ROOT / "tests" / "conformance" / "llmkube" / "fixtures" / "plain-7b.Q4_K_M.gguf").read_bytes()

LOOKING = """
import sys, time
from pathlib import Path
from automation.models.probe_marks import ProbeMarks
from automation.models.model_probe import ModelProbe, SourcePolicy
from program.dialects.llmkube.parse.source import parse_source

probe = ModelProbe(SourcePolicy(allowed_remote_hosts=("127.0.0.1",)), marks=ProbeMarks(Path(sys.argv[1])))
probe.latest(parse_source(sys.argv[2]), sha256=None, model_format="gguf", who="ns/m", changed=lambda: None)
time.sleep(60)
"""


class Clock:
    """A clock that is moved by hand, for the time of day and for the probe."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def ask(probe: ModelProbe, url: str) -> ProbeFacts | None:
    return probe.latest(parse_source(url), sha256=None, model_format="gguf", who="ns/m", changed=lambda: None)


def probe_in(folder: Path, clock: Clock) -> ModelProbe:
    policy = SourcePolicy(allowed_remote_hosts=("127.0.0.1",))
    return ModelProbe(policy, marks=ProbeMarks(folder, now=clock), clock=clock, dice=lambda: 0.0)


def test_a_look_that_killed_the_loop_is_not_repeated_at_once(tmp_path: Path) -> None:
    with FileServer() as server:
        held = File(PLAIN, bytes_per_s=1.0)
        url = server.serve("/x.gguf", held)
        for times in (1, 2):
            looking = subprocess.Popen([sys.executable, "-c", LOOKING, str(tmp_path), url], cwd=ROOT)
            eventually(lambda times=times: len(server.requests) == times, what="a look")  # type: ignore[misc]
            looking.kill()
            assert looking.wait() == -signal.SIGKILL
            # The next process reads the record, and may inspect the source only after a while.
            clock = Clock(time.time())
            probe = probe_in(tmp_path, clock)
            facts = ask(probe, url)
            assert facts is not None
            assert (facts.outcome, facts.reason) == ("unreachable", "LookInterrupted")
            assert "ended while it read this source" in facts.message
            assert ("2 times" in facts.message) == (times == 2)
            assert len(server.requests) == times
            assert 50 * times < probe.due_in_s(parse_source(url), sha256=None, model_format="gguf") <= 60 * times
            probe.close()
            # Make the records older, as if the wait were over.
            for mark in tmp_path.iterdir():
                age_mark(mark, 3600)
        held.bytes_per_s = None
        clock = Clock(time.time() + 3600)
        probe = probe_in(tmp_path, clock)
        clock.now += 7200
        ask(probe, url)
        eventually(probe.idle, what="the look's end")
        facts = ask(probe, url)
        assert facts is not None
        assert facts.outcome == "read"
        assert list(tmp_path.iterdir()) == []
        probe.close()


def age_mark(mark: Path, seconds: float) -> None:
    said = json.loads(mark.read_text())
    mark.write_text(json.dumps({**said, "at": said["at"] - seconds}))


def test_a_probe_that_is_closed_leaves_no_mark(tmp_path: Path) -> None:
    with FileServer() as server:
        url = server.serve("/x.gguf", File(PLAIN, bytes_per_s=1.0))
        probe = probe_in(tmp_path, Clock(time.time()))
        ask(probe, url)
        eventually(lambda: bool(server.requests), what="a look")
        assert len(list(tmp_path.iterdir())) == 1
        probe.close()
        assert list(tmp_path.iterdir()) == []


def test_a_mark_holds_nothing_of_the_address(tmp_path: Path) -> None:
    marks = ProbeMarks(tmp_path)
    marks.begin("https://u.example/x.gguf?token=hidden")
    (mark,) = tmp_path.iterdir()
    assert "hidden" not in mark.read_text() + mark.name
    assert os.stat(mark).st_mode & 0o077 == 0


def test_looks_that_were_interrupted_together_are_repeated_one_after_the_other(tmp_path: Path) -> None:
    marks = ProbeMarks(tmp_path, now=Clock(1000.0))
    for subject in "abc":
        marks.begin(subject)
    after = ProbeMarks(tmp_path, now=Clock(1000.0), apart_s=15.0)
    found = [after.interrupted(subject) for subject in "abc"]
    waits = sorted(each.wait_s for each in found if each is not None)
    assert waits == [60.0, 75.0, 90.0]


def test_each_interruption_doubles_the_wait_and_a_finished_look_ends_it(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    for times, wait_s in ((1, 60.0), (2, 120.0), (3, 240.0)):
        ProbeMarks(tmp_path, now=clock).begin("a")
        assert ProbeMarks(tmp_path, now=clock).interrupted("a") == Interrupted(times, wait_s)
    for _ in range(20):
        ProbeMarks(tmp_path, now=clock).begin("a")
    longest = ProbeMarks(tmp_path, now=clock).interrupted("a")
    assert longest is not None
    assert longest.wait_s == 6 * 3600.0
    # A restart without an inspection changes nothing, and the wait runs on.
    clock.now += 3600
    waiting = ProbeMarks(tmp_path, now=clock)
    assert waiting.interrupted("a") == Interrupted(23, 5 * 3600.0)
    waiting.begin("a")
    waiting.end("a")
    assert ProbeMarks(tmp_path, now=clock).interrupted("a") is None


def test_marks_that_make_no_sense_or_are_old_are_dropped(tmp_path: Path) -> None:
    ProbeMarks(tmp_path, now=Clock(1000.0)).begin("a")
    for name, text in (("b" * 32, "{"), ("c" * 32, '{"times": "x", "at": 1}'), ("d" * 32, "[1e999]")):
        (tmp_path / name).write_text(text)
    later = ProbeMarks(tmp_path, now=Clock(1000.0 + 8 * 86400))
    assert later.interrupted("a") is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_stops_no_look(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    marks = ProbeMarks(blocked / "looks")
    marks.begin("a")
    marks.end("a")
    marks.close()
    assert marks.interrupted("a") is None
