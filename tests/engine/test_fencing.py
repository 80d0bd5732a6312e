"""An engine whose loop may not or cannot continue is ended by the fence, by the guard or by the next leader; and when a
lock that was left behind may be broken.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.server.boottime import boottime_s
from automation.engine import recovery
from automation.engine.cli_process import LEASE_LOST, CliResult, run_cli
from automation.engine.port import EngineFailed, StackLocked
from automation.leadership.election import LeaseTimes
from automation.leadership.fencing import Fence, end_engines_of
from automation.leadership.guard import VARIABLE
from automation.leadership.lease_observations import FormerLoop
from automation.leadership.process_mark import mark
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotLeading

TRUST_S = 3.0
"""Long enough for a test on a busy machine to freeze a loop whose engine runs."""

LOOP = """
import pathlib, sys, threading, time
from agent.server.boottime import boottime_s
from automation.engine.cli_process import run_cli
from automation.leadership.fencing import Fence
from automation.leadership.process_mark import mark
fence = Fence(trust_s=float(sys.argv[2]), kill_s=float(sys.argv[3]))
fence.start()
fence.renewed(boottime_s())
folder = pathlib.Path(sys.argv[1])
import os
def run():
    script = "setsid sleep 300 & echo $$ $! > " + str(folder / "pids") + "; trap '' TERM; wait; sleep 300"
    argv = ["/bin/sh", "-c", script]
    run_cli(argv, cwd=folder, env=dict(os.environ), output=folder / "out", timeout_s=300, fence=fence)
def act():
    with (folder / "acts").open("a") as acts:
        while True:
            if fence.holds_lease():
                print(boottime_s(), file=acts, flush=True)
            time.sleep(0.005)
threading.Thread(target=run, daemon=True).start()
threading.Thread(target=act, daemon=True).start()
print(mark(), fence._guard.pid, flush=True)
while not (folder / "pids").exists():
    fence.renewed(boottime_s())  # its times count from the start of its engine
    time.sleep(0.02)
while not (folder / "leave").exists():
    time.sleep(0.02)
fence.close()
"""


def run(directory: Path, script: str, fence: Fence) -> CliResult:
    output = directory / "out"
    return run_cli(
        ["/bin/sh", "-c", script], cwd=directory, env=dict(os.environ), output=output, timeout_s=30, fence=fence
    )


def until(look: object, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not look():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


class ALoop:
    """A process with a fence, a guard, and an engine that ignores SIGTERM and has a child in another process group."""

    def __init__(self, folder: Path, trust_s: float, kill_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP, str(folder), str(trust_s), str(kill_s)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.mark, guard = self.process.stdout.readline().split()
        self._folder = folder
        self.guard = psutil.Process(int(guard))
        pids = folder / "pids"
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        self.engine = [psutil.Process(int(pid)) for pid in pids.read_text().split()]

    @property
    def engine_lives(self) -> bool:
        return any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in self.engine)

    def acts_since(self, moment: float) -> list[float]:
        """The times at which it considered itself the leader and acted."""
        acts = self._folder / "acts"
        return [at for at in map(float, acts.read_text().split() if acts.exists() else ()) if at >= moment]

    def leave(self) -> None:
        """Let it close its fence and end, as a loop does that has lost its lease."""
        (self._folder / "leave").touch()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        for process in (*self.engine, self.guard):
            if process.is_running():
                process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def loops() -> Iterator[list[ALoop]]:
    made: list[ALoop] = []
    yield made
    for loop in made:
        loop.end()


def test_a_killed_loop_leaves_no_engine_and_no_guard(folder: Path, loops: list[ALoop]) -> None:
    loops.append(loop := ALoop(folder, 300, 300))
    assert loop.engine_lives
    loop.process.kill()
    until(lambda: not loop.engine_lives)
    until(lambda: not loop.guard.is_running())


def test_a_stopped_loop_is_ended_with_its_engine_when_its_time_is_over(folder: Path, loops: list[ALoop]) -> None:
    began = time.monotonic()
    loops.append(loop := ALoop(folder, 60, 5))
    loop.process.send_signal(signal.SIGSTOP)
    assert loop.process.wait(60) == -signal.SIGKILL
    assert time.monotonic() - began >= 4.0, "not before"
    until(lambda: not loop.engine_lives)


def test_a_loop_that_lives_on_past_its_trust_ends_its_engine_itself(folder: Path, loops: list[ALoop]) -> None:
    loops.append(loop := ALoop(folder, 3, 60))
    until(lambda: not loop.engine[0].is_running())
    assert loop.process.poll() is None


def test_an_engine_is_found_by_its_mark_where_loop_and_guard_were_killed_together(
    folder: Path, loops: list[ALoop]
) -> None:
    loops.append(loop := ALoop(folder, 300, 300))
    loop.guard.suspend()
    loop.guard.kill()
    loop.process.kill()
    loop.process.wait()
    time.sleep(0.2)
    assert loop.engine_lives
    assert end_engines_of(loop.mark)
    assert not loop.engine_lives


@pytest.mark.parametrize("first", ["guard", "both", "loop"])
def test_a_loop_that_was_frozen_with_its_guard_does_nothing_when_it_goes_on(
    folder: Path, loops: list[ALoop], first: str
) -> None:
    loops.append(loop := ALoop(folder, TRUST_S, TRUST_S + 1))
    until(lambda: loop.acts_since(0.0))
    loop.guard.suspend()
    loop.process.send_signal(signal.SIGSTOP)
    frozen = boottime_s()
    until(lambda: boottime_s() > frozen + TRUST_S + 1.5)
    assert loop.engine_lives, "no process of this loop can end it meanwhile"
    if first != "loop":
        loop.guard.resume()
    if first != "guard":
        loop.process.send_signal(signal.SIGCONT)
    if first == "loop":
        # Its guard is still stopped. It ends its engine itself, or a new guard ends both.
        loop.leave()
        assert loop.process.wait(60.0) in (0, -signal.SIGKILL)
    else:
        assert loop.process.wait(60.0) == -signal.SIGKILL
    until(lambda: not loop.engine_lives)
    # If the loop freezes between its check and its act, that one act comes late.
    assert len(loop.acts_since(frozen + TRUST_S)) <= (0 if first == "guard" else 1)


def test_what_a_loop_that_is_frozen_with_its_guard_left_running_is_ended_by_the_next_on_its_machine(
    folder: Path, loops: list[ALoop]
) -> None:
    loops.append(loop := ALoop(folder, 300, 300))
    loop.guard.suspend()
    loop.process.send_signal(signal.SIGSTOP)
    assert loop.engine_lives
    assert end_engines_of(loop.mark)
    assert not loop.engine_lives


def test_a_guard_that_is_frozen_is_replaced_and_the_new_one_knows_what_runs(folder: Path) -> None:
    fence = Fence(trust_s=60, kill_s=60)
    fence.start()
    try:
        assert fence._guard is not None
        fence.renewed(boottime_s())
        first = psutil.Process(fence._guard.pid)
        runner = threading.Thread(target=run, args=(folder, "echo up > up; sleep 60", fence), daemon=True)
        runner.start()
        until((folder / "up").exists)
        first.suspend()
        began = time.monotonic()
        while fence._guard.pid == first.pid:
            assert time.monotonic() - began < 12.0, "it is replaced before a lease of 13 s is over"
            time.sleep(1.0)
            fence.renewed(boottime_s())
        assert not first.is_running()
        fence.lose()
        runner.join(30.0)
        assert not runner.is_alive(), "the engine was ended"
    finally:
        fence.close()


def test_a_guard_that_listens_is_kept(folder: Path) -> None:
    fence = Fence(trust_s=60, kill_s=60)
    fence.start()
    try:
        assert fence._guard is not None
        first = fence._guard.pid
        for _ in range(6):
            fence.renewed(boottime_s())
            time.sleep(1.0)
        assert fence._guard.pid == first
    finally:
        fence.close()


def test_a_guard_that_was_killed_is_replaced_and_knows_what_runs(folder: Path) -> None:
    fence = Fence(trust_s=60, kill_s=60)
    fence.start()
    try:
        fence.renewed(boottime_s())
        assert fence._guard is not None
        first = fence._guard.pid
        runner = threading.Thread(target=run, args=(folder, "echo up > up; sleep 60", fence), daemon=True)
        runner.start()
        until((folder / "up").exists)
        os.kill(first, signal.SIGKILL)
        fence._guard.wait(30)  # when it has ended, its pipe has no reader
        fence.renewed(boottime_s())
        fence.renewed(boottime_s())
        assert fence._guard.pid != first
        fence.lose()
        runner.join(30.0)
        assert not runner.is_alive(), "the engine was ended"
    finally:
        fence.close()


def test_no_engine_is_started_and_no_write_is_sent_once_the_lease_may_be_anothers(
    folder: Path, client: KubeClient, kubeconfig: Path
) -> None:
    now = [1000.0]
    fence = Fence(trust_s=10.0, kill_s=11.0, clock=lambda: now[0])
    writer = KubeClient.from_kubeconfig(str(kubeconfig))
    writer.may_write = fence.holds_lease
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "fence-"}, "data": {}}
    with pytest.raises(NotLeading):
        writer.create(kinds.NAMESPACES, None, body)  # before the first renewal
    fence.renewed(1000.0)
    now[0] = 1009.9
    assert run(folder, "exit 0", fence).code == 0
    writer.patch(kinds.NAMESPACES, None, "default", {"metadata": {"labels": {"fence": "held"}}})
    now[0] = 1010.0
    with pytest.raises(EngineFailed) as refused:
        run(folder, "exit 0", fence)
    assert refused.value.reason == LEASE_LOST
    with pytest.raises(NotLeading, match="PATCH"):
        writer.patch(kinds.NAMESPACES, None, "default", {"metadata": {"labels": {"fence": "lost"}}})
    assert writer.get(kinds.NAMESPACES, None, "default")["metadata"]["labels"]["fence"] == "held", "reads go on"
    writer.close()


def test_the_times_of_a_lease_are_in_an_order_that_lets_nobody_meet() -> None:
    for duration_s in (3.0, 13.0, 60.0):
        times = LeaseTimes.of(duration_s)
        assert times.retry_s < times.deadline_s < times.trust_s < times.kill_s < times.duration_s
        assert times.kill_s + times.give_up_s == pytest.approx(times.duration_s)


def unread(pipe: int) -> int:
    """The number of unread bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_guard_is_small(folder: Path) -> None:
    fence = Fence()
    fence.start()
    try:
        assert fence._guard is not None
        guard = psutil.Process(fence._guard.pid)
        assert fence._guard.stdin is not None
        pipe = fence._guard.stdin.fileno()
        fence.engine_started(guard.pid)
        until(lambda: unread(pipe) == 0)
        fence.engine_ended(guard.pid)
        until(lambda: unread(pipe) == 0)
        assert guard.memory_info().rss < 16e6
        before = guard.num_ctx_switches().voluntary
        time.sleep(1.0)
        # On a busy machine the guard may begin to wait for its next input only now, which is one switch.
        assert guard.num_ctx_switches().voluntary <= before + 1, "it costs nothing while nothing happens"
        assert VARIABLE not in guard.environ()
    finally:
        fence.close()


def lock_by(host: str, pid: int) -> str:
    return (
        "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the "
        f"lock file.\n  /state: created by root@{host} (pid {pid}) at 2026-11-22T01:00:00Z"
    )


def test_a_lock_of_a_former_leader_elsewhere_is_broken_only_by_the_sole_leader(folder: Path) -> None:
    record = folder / "runs.json"
    former = (FormerLoop("pod-a", "another-boot/1/77/100.00"),)
    words = lock_by("pod-a", 4242)
    assert [each.pid for each in recovery.check_lock(words, record, stack="s", sole=True, former=former)] == [4242]
    with pytest.raises(StackLocked):
        recovery.check_lock(words, record, stack="s", sole=False, former=former)
    with pytest.raises(StackLocked):
        recovery.check_lock(lock_by("laptop", 4242), record, stack="s", sole=True, former=former)


def test_a_lock_on_our_own_machine_is_broken_only_where_its_process_is_gone(folder: Path) -> None:
    record = folder / "runs.json"
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    place = mark().rpartition("/")[0].rpartition("/")[0]
    dead = (FormerLoop("here", f"{place}/{ended.pid}/1.00"),)
    free = max(psutil.pids()) + 5000
    assert recovery.check_lock(lock_by("here", free), record, stack="s", sole=True, former=dead)
    with pytest.raises(StackLocked):
        recovery.check_lock(lock_by("here", os.getpid()), record, stack="s", sole=True, former=dead)
    with pytest.raises(StackLocked):
        recovery.check_lock(lock_by("here", free), record, stack="s", sole=True, former=(FormerLoop("here", mark()),))
