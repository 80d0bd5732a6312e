"""The agent's upkeep of its machine: a Mac stays awake while it serves, and the log stays within its size.

caffeinate is replaced by a program that waits for a pid, as the real one does; launchd by a file opened for the output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agent.client.ssh.scripts import script
from agent.server.processes import process_log
from agent.server.upkeep import PowerAssertion
from agent.steps.service import MARK
from tests.support.controlplane import eventually

ROOT = Path(__file__).resolve().parents[3]
WRITES = """
import os, sys, time
from agent.server.upkeep import rotate_own_log
sys.stderr.write("x" * (17 << 20)); sys.stderr.flush()
print(rotate_own_log(os.environ), file=sys.stdout, flush=True)
sys.stderr.write("last\\n")
"""


@pytest.fixture
def caffeinate(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "caffeinate"
    # Through `exec -a` the command line is that of the real program.
    wait = "import os, sys, time\nwhile os.path.exists('/proc/' + sys.argv[-1]): time.sleep(0.05)"
    program.write_text(f'#!/bin/bash\nexec -a caffeinate {sys.executable} -c "{wait}" "$@"\n')
    program.chmod(0o755)
    return program


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_machine_is_kept_awake_while_it_serves_and_not_longer(caffeinate: Path) -> None:
    assertion = PowerAssertion(str(caffeinate))
    assert not assertion.is_held
    assertion.hold(True)
    assert assertion.is_held
    assert assertion._child is not None
    first = assertion._child.pid
    told = psutil.Process(first)
    asked = ["-i", "-w", str(os.getpid())]
    # While a process becomes another program, its command line may be empty.
    eventually(lambda: told.cmdline()[-3:] == asked, what="the command line", timeout_s=60)
    assertion.hold(True)
    assert assertion._child.pid == first, "one is enough"

    psutil.Process(first).kill()
    eventually(lambda: not assertion.is_held or None, what="its end to be seen", timeout_s=60)
    assertion.hold(True)
    assert assertion.is_held, "a new child replaces the killed one"
    second = assertion._child.pid
    assertion.hold(False)
    assert not assertion.is_held
    assert not alive(second)


def test_a_machine_without_caffeinate_is_left_alone(tmp_path: Path) -> None:
    for program in (None, str(tmp_path / "nothing")):
        assertion = PowerAssertion(program)
        assertion.hold(True)
        assert not assertion.is_held
        assertion.hold(False)


def test_over_ssh_a_mac_is_kept_awake_once_for_each_process(tmp_path: Path) -> None:
    tools, calls = tmp_path / "bin", tmp_path / "calls"
    tools.mkdir()
    (tools / "caffeinate").write_text(f'#!/bin/sh\necho "$@" >>{calls}\n')
    (tools / "pgrep").write_text(f'#!/bin/sh\ngrep -qxe "${{2#caffeinate }}" {calls} 2>/dev/null\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    for pid in ("41", "41", "42"):
        path = f"{tools}:{os.environ['PATH']}"
        subprocess.run(["sh", "-c", script("keep_awake"), "sh", pid], env={"PATH": path}, check=True)
        # The script does not wait for the program that it starts.
        eventually(lambda pid=pid: _called(calls, pid), what=f"the call for {pid}", timeout_s=60)  # type: ignore[misc]
    assert sorted(calls.read_text().split("\n")[:-1]) == ["-i -w 41", "-i -w 42"]
    assert subprocess.run(["sh", "-c", script("keep_awake"), "sh", "1"], env={"PATH": "/usr/bin:/bin"}).returncode == 0


def _called(calls: Path, pid: str) -> bool:
    return calls.exists() and f"-i -w {pid}\n" in calls.read_text()


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_the_log_that_launchd_writes_is_rotated_without_root(tmp_path: Path, mode: str) -> None:
    log = tmp_path / "agent.log"
    with log.open(mode) as file:
        environment = {**os.environ, MARK: "m"}
        command = [sys.executable, "-c", WRITES]
        subprocess.run(command, stdout=file, stderr=file, env=environment, cwd=ROOT, check=True)
    assert log.read_text() == "True\nlast\n", "what follows comes to the start of the emptied file"
    assert process_log.copy_of(log, 1).stat().st_size == 17 << 20


def test_a_file_of_a_person_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    with log.open("ab") as file:
        subprocess.run([sys.executable, "-c", WRITES], stdout=file, stderr=file, env=environment, cwd=ROOT, check=True)
    assert log.stat().st_size > 17 << 20
    assert list(tmp_path.iterdir()) == [log]
