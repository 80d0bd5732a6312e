"""A process of the CLI that is started ahead of its run, with the real CLI and with programs that do not wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from automation.engine.cli_process import CliResult, run_cli
from automation.engine.waiting_cli import WaitingCli
from tests.support.loop import eventually
from tools import toolchain


@pytest.fixture
def make_waiting(tmp_path: Path) -> Iterator[Callable[[Path], WaitingCli]]:
    made: list[WaitingCli] = []

    def make(program: Path) -> WaitingCli:
        environment = {**os.environ, "PULUMI_HOME": str(tmp_path / "home"), "PULUMI_SKIP_UPDATE_CHECK": "true"}
        made.append(WaitingCli(program, tmp_path / "waiting", environment))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def own_build(pulumi_cli: Path) -> Path:
    """The CLI that Herdsman builds: only that one waits."""
    if toolchain.find(toolchain.tool_named("pulumi")).found_by != "cache":
        pytest.skip("the Pulumi CLI on PATH is used, which Herdsman did not build")
    return pulumi_cli


def run(directory: Path, argv: list[str], waiting: WaitingCli) -> CliResult:
    return run_cli(
        argv, cwd=directory, env=dict(os.environ), output=directory / "last-run.log", timeout_s=60.0, waiting=waiting
    )


def the_process(waiting: WaitingCli) -> psutil.Process:
    """The only child process that runs the CLI of `waiting`."""
    assert waiting._waiting is not None
    return psutil.Process(waiting._waiting.process.pid)


def test_a_run_uses_the_process_that_waits(
    tmp_path: Path, own_build: Path, make_waiting: Callable[[Path], WaitingCli]
) -> None:
    waiting = make_waiting(own_build)
    waiting.start()
    process = the_process(waiting)
    (tmp_path / "Pulumi.yaml").write_text("name: flock\nruntime: pretended\n")
    result = run(tmp_path, [str(own_build), "about", "--json"], waiting)
    assert result.code == 0
    # `about` read the project from the directory of the run, and looked for its language.
    assert "language plugin pretended" in result.stdout
    assert (tmp_path / "last-run.log").read_text() == result.stdout
    assert not process.is_running()
    assert list((tmp_path / "waiting").iterdir()) == []


def test_a_run_without_a_waiting_process_starts_one(
    tmp_path: Path, own_build: Path, make_waiting: Callable[[Path], WaitingCli]
) -> None:
    waiting = make_waiting(own_build)
    assert run(tmp_path, [str(own_build), "version"], waiting).code == 0
    waiting.start()
    assert run(tmp_path, [str(own_build), "version"], waiting).code == 0


def test_a_waiting_process_that_was_killed_is_replaced(
    tmp_path: Path, own_build: Path, make_waiting: Callable[[Path], WaitingCli]
) -> None:
    waiting = make_waiting(own_build)
    waiting.start()
    assert run(tmp_path, [str(own_build), "version"], waiting).code == 0
    waiting.start()
    assert waiting._waiting is not None
    waiting._waiting.process.kill()
    waiting._waiting.process.wait(30)
    assert run(tmp_path, [str(own_build), "version"], waiting).code == 0
    waiting.start()
    process = the_process(waiting)
    assert run(tmp_path, [str(own_build), "version"], waiting).code == 0
    assert not process.is_running()


def test_a_run_whose_output_cannot_be_written_leaves_no_process(
    tmp_path: Path, own_build: Path, make_waiting: Callable[[Path], WaitingCli]
) -> None:
    waiting = make_waiting(own_build)
    waiting.start()
    process = the_process(waiting)
    (tmp_path / "last-run.log").mkdir()
    with pytest.raises(IsADirectoryError):
        run(tmp_path, [str(own_build), "version"], waiting)
    assert not process.is_running()
    assert list((tmp_path / "waiting").iterdir()) == []


def test_a_program_that_does_not_wait_is_started_ahead_once(
    tmp_path: Path, make_waiting: Callable[[Path], WaitingCli]
) -> None:
    program = tmp_path / "pulumi"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/starts\n')
    program.chmod(0o755)
    waiting = make_waiting(program)
    for _ in range(3):
        waiting.start()
        assert run(tmp_path, [str(program), "up"], waiting).code == 0
    starts = [line.split()[1:] for line in (tmp_path / "starts").read_text().splitlines()]
    assert starts == [[], ["up"], ["up"], ["up"]]


def test_the_waiting_process_ends_with_the_process_that_started_it(tmp_path: Path, own_build: Path) -> None:
    script = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from automation.engine.waiting_cli import WaitingCli\n"
        "waiting = WaitingCli(Path(sys.argv[1]), Path(sys.argv[2]), dict(os.environ))\nwaiting.start()\n"
        "assert waiting._waiting.is_ready()\n"
        "print(waiting._waiting.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(own_build), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    process = psutil.Process(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, what="its end")
