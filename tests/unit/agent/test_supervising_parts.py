"""The parts of the supervisor, each alone: idle checks, flags, logs, addresses of daemons, reports."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.contract import IdleQuestion, ProcessPhase, ProcessPlan
from agent.processes import engines, lifecycle
from agent.processes.command_line import launch_hash
from agent.processes.decision import Action, Desired
from agent.processes.draining import Drained, drain_timeout_of, is_busy_by
from agent.processes.flags import KnownFlags, unknown_flags, version_of
from agent.processes.lifecycle import Hold, Policy, ProcessStatus, Running, Step
from agent.server.daemons import plans
from agent.server.processes import process_log
from agent.server.processes.drain import Draining, drain, is_busy, unsent
from agent.server.processes.ports import Ports, is_free
from tests.support.supervising import free_port

POLICY = Policy()
SLOTS = IdleQuestion(path="/slots", kind="slots")
GAUGE = IdleQuestion(path="/metrics", kind="gauge", gauge="vllm:num_requests_running")
STATUS = IdleQuestion(path="/idle", kind="status")


def plan(**changes: Any) -> ProcessPlan:
    values: dict[str, Any] = {"host": "h", "service": "s", "argv": ("x",), "service_name": "s"}
    return ProcessPlan(**{**values, **changes})


def desired(**changes: Any) -> Desired:
    made = plan(**changes)
    return Desired(made, launch_hash(made, "10.0.0.1"))


def running(wanted: Desired) -> ProcessStatus:
    at = Running(pid=7, mark="m", port=18000, launch_hash=wanted.launch_hash, since=0.0, started_at="", proved=True)
    status = lifecycle.process_started(lifecycle.plan_changed(ProcessStatus(), wanted), at)
    return lifecycle.health_checked(status, wanted.plan, failure=None, now=0.0, policy=POLICY)


def next_step(status: ProcessStatus, wanted: Desired, *, alive: bool, now: float, hold: Hold | None = None) -> Step:
    observed = lifecycle.observe(status, wanted.plan, is_alive=alive, now=now)
    return lifecycle.next_step(status, wanted, observed, now=now, policy=POLICY, is_held=hold is not None)


# --- lifecycle: holds, admission, failures that are not the process's -------------------------------------------------

EVICTED = Hold(ProcessPhase.PENDING, "Evicted", "too little memory")
ASLEEP = Hold(ProcessPhase.ASLEEP, "Idle", "")


def test_a_held_process_is_stopped_and_neither_fetched_nor_started() -> None:
    wanted = desired()
    step = next_step(running(wanted), wanted, alive=True, now=1.0, hold=EVICTED)
    assert step.action is Action.STOP
    assert lifecycle.stop_cause(running(wanted), wanted, EVICTED) == (None, EVICTED.message), "that is no crash"
    idle = lifecycle.plan_changed(ProcessStatus(), wanted)
    step = next_step(idle, wanted, alive=False, now=1.0, hold=EVICTED)
    assert (step.action, step.until) == (Action.WAIT, None)


def test_a_hold_is_told_only_of_what_does_not_run_and_has_not_failed() -> None:
    wanted = desired()
    assert lifecycle.hold_changed(running(wanted), wanted, EVICTED) == running(wanted)
    failed = replace(ProcessStatus(), phase=ProcessPhase.FAILED, reason="CrashLoop")
    assert lifecycle.hold_changed(failed, wanted, EVICTED) == failed
    held = lifecycle.hold_changed(ProcessStatus(), wanted, ASLEEP)
    assert (held.phase, held.reason, held.is_held) == (ProcessPhase.ASLEEP, "Idle", True)
    assert lifecycle.hold_changed(held, None, None) == held, "what is not wanted has no turn to come"
    back = lifecycle.hold_changed(replace(held, retry_at=99.0), wanted, None)
    assert (back.phase, back.reason, back.is_held, back.retry_at) == (ProcessPhase.PENDING, "", False, 0.0)


def test_a_changed_plan_is_still_held() -> None:
    held = lifecycle.hold_changed(ProcessStatus(), desired(), ASLEEP)
    changed = desired(argv=("y",))
    status = lifecycle.hold_changed(lifecycle.plan_changed(held, changed), changed, ASLEEP)
    assert status.phase is ProcessPhase.ASLEEP
    assert next_step(status, changed, alive=False, now=0.0, hold=ASLEEP).action is Action.WAIT


def test_a_refusal_keeps_the_files_and_asks_again() -> None:
    wanted = desired()
    status = lifecycle.files_fetched(lifecycle.plan_changed(ProcessStatus(), wanted), "/m.gguf", {"mmproj": "/p.gguf"})
    status = lifecycle.start_refused(status, EVICTED, now=10.0, policy=POLICY)
    assert (status.model_path, status.file_paths) == ("/m.gguf", (("mmproj", "/p.gguf"),))
    assert status.retry_at == 10.0 + POLICY.admission_retry_s
    assert lifecycle.start_refused(status, EVICTED, now=10.0, policy=POLICY, retry_s=0.5).retry_at == 10.5
    assert lifecycle.admission_retried(status).retry_at == 0.0
    failing = lifecycle.attempt_failed(status, reason="LaunchFailed", message="", now=10.0, policy=POLICY)
    assert lifecycle.admission_retried(failing) == failing, "no request shortens a back-off"
    assert lifecycle.admission_retried(running(wanted)) == running(wanted)


def test_a_daemons_death_is_no_crash_and_a_drain_that_is_called_off_no_stop() -> None:
    status = running(desired())
    lost = lifecycle.daemon_lost(status, reason="DaemonUnreachable", message="gone", now=5.0, policy=POLICY)
    assert (lost.phase, lost.crashes, lost.restarts, lost.running) == (ProcessPhase.BACKING_OFF, 0, 1, None)
    back = lifecycle.stop_cancelled(lifecycle.stop_started(status, reason="Replacing"))
    assert (back.phase, back.reason, back.running) == (ProcessPhase.READY, "", status.running)


def test_a_model_that_ollama_fetches_is_fetched_before_it_is_loaded() -> None:
    wanted = desired(runtime="ollama", daemon_model="tiny")
    status = lifecycle.plan_changed(ProcessStatus(), wanted)
    assert next_step(status, wanted, alive=False, now=0.0).action is Action.FETCH
    status = lifecycle.files_fetched(status, "tiny", {})
    assert next_step(status, wanted, alive=False, now=0.0).action is Action.START


def test_waits_can_be_shorter_than_usual_where_a_look_costs_little() -> None:
    status = ProcessStatus(attempts=20)
    wait = lifecycle.attempt_failed(
        status, reason="r", message="", now=0.0, policy=POLICY, base_s=5.0, cap_s=30.0
    ).retry_at
    assert wait == 30.0


# --- drain ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "status", "body", "busy"),
    [
        (SLOTS, 200, b'[{"id": 0, "is_processing": false}, {"id": 1, "is_processing": true}]', True),
        (SLOTS, 200, b'[{"id": 0, "is_processing": false}]', False),
        (SLOTS, 200, b"[]", False),
        (SLOTS, 200, b'{"error": 1}', None),
        (SLOTS, 200, b"<html>", None),
        (SLOTS, 401, b"", None),
        (SLOTS, 501, b"", None),
        (GAUGE, 200, b'vllm:num_requests_running{model="a"} 0.0\nvllm:num_requests_running{model="b"} 2 1700\n', True),
        (GAUGE, 200, b"vllm:num_requests_running 0\n", False),
        (GAUGE, 200, b"vllm:num_requests_running_total 3\n", None),
        (GAUGE, 200, b"# HELP vllm:num_requests_running x\nvllm:num_requests_running nonsense\n", None),
        (STATUS, 204, b"", False),
        (STATUS, 503, b"", True),
    ],
)
def test_an_answer_says_busy_idle_or_nothing(question: IdleQuestion, status: int, body: bytes, busy: object) -> None:
    assert is_busy_by(question, status, body) is busy


def work(**changes: Any) -> Draining:
    values: dict[str, Any] = {
        "plan": plan(),
        "address": "127.0.0.1",
        "port": free_port(),
        "pid": os.getpid(),
        "timeout_s": 5.0,
        "withdrawn": lambda: None,
        "called_off": lambda: False,
        "alive": lambda: True,
    }
    return Draining(**{**values, **changes})


def test_a_port_that_nobody_listens_on_has_no_requests() -> None:
    asked = work(plan=plan(runtime="llamacpp"))
    assert is_busy(asked, timeout_s=1.0) is False
    assert drain(asked, sleep=lambda _s: None) is Drained.IDLE


def test_a_server_that_accepts_and_does_not_answer_is_busy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = work(plan=plan(runtime="llamacpp"), port=server.getsockname()[1], timeout_s=0.6)
        began = time.monotonic()
        assert drain(asked) is Drained.TIMED_OUT
        assert time.monotonic() - began > 0.5


def test_a_drain_ends_with_its_process_and_when_it_is_called_off() -> None:
    assert drain(work(alive=lambda: False)) is Drained.IDLE
    assert drain(work(called_off=lambda: True)) is Drained.CALLED_OFF
    assert drain(work(withdrawn=lambda: False, called_off=lambda: True)) is Drained.CALLED_OFF
    daemon = plan(runtime="ollama", daemon_model="tiny")
    assert drain(work(plan=daemon)) is Drained.IDLE, "others' requests are under way there too"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it in a file")
def test_what_a_slow_client_has_not_taken_counts_as_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as slow, listening.accept()[0] as serving:
            assert not unsent(os.getpid(), port)
            serving.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    serving.send(b"x" * 65536)
            assert unsent(os.getpid(), port)
            serving.shutdown(socket.SHUT_WR)
            while slow.recv(1 << 20):
                pass
        assert not unsent(os.getpid(), port)


def test_how_long_a_drain_takes_at_most() -> None:
    assert drain_timeout_of(plan()) == 30.0
    assert drain_timeout_of(plan(drain_timeout_s=0.0)) == 0.0
    assert drain_timeout_of(plan(drain_timeout_s=60.0), cap_s=5.0) == 5.0
    assert drain_timeout_of(plan(drain_timeout_s=1.0), cap_s=5.0) == 1.0


# --- engines, flags, ports, logs --------------------------------------------------------------------------------------


def test_engines_are_asked_in_their_own_words() -> None:
    assert [q.path for q in engines.idle_questions(plan(runtime="llamacpp"))] == ["/slots", "/metrics"]
    assert [q.gauge for q in engines.idle_questions(plan(runtime="vllm"))] == ["vllm:num_requests_running"]
    assert engines.idle_questions(plan(runtime="generic")) == ()
    assert engines.idle_questions(plan(runtime="generic", idle=STATUS)) == (STATUS,)
    assert engines.metrics_path(plan(runtime="llamacpp")) == "/metrics"
    assert engines.metrics_path(plan(runtime="generic", metrics_path="/m")) == "/m"
    assert engines.metrics_path(plan(runtime="ollama")) is None


def test_a_mac_computes_on_its_fast_cores_unless_it_is_told_otherwise() -> None:
    assert engines.with_threads(["--port", "1"], 8) == ["--port", "1", "--threads", "8"]
    for chosen in (["-t", "4"], ["--threads", "4"], ["--threads=4"]):
        assert engines.with_threads(chosen, 8) == chosen
    assert engines.with_threads([], None) == []
    assert sys.platform == "darwin" or engines.performance_cores() is None


def test_flags_that_a_binary_does_not_know_are_named_once_each() -> None:
    known = frozenset({"--port", "--ctx-size"})
    arguments = ["--port", "1", "--jinja", "-c", "5", "--ctx-size=7", "--spec-type=x", "--jinja", "--- a b", "--"]
    assert unknown_flags(arguments, known) == ("--jinja", "--spec-type")
    assert unknown_flags(arguments, frozenset()) == (), "a binary that could not be asked is believed"


def test_a_binary_that_is_replaced_is_asked_again(tmp_path: Path) -> None:
    binary = tmp_path / "engine"

    def install(flags: str) -> None:
        draft = tmp_path / "draft"
        draft.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "version: 7 (x)" || echo "$* {flags}"\n')
        draft.chmod(0o755)
        draft.replace(binary)

    known_flags = KnownFlags()
    install("--old, -o N")
    assert known_flags.of(str(binary)) == {"--help", "--old"}
    install("--new N")
    assert known_flags.of(str(binary)) == {"--help", "--new"}
    assert known_flags.of(str(binary), "serve") == {"--help", "--new"}
    assert known_flags.of(str(tmp_path / "none")) == frozenset()
    assert version_of(str(binary)) == "7"


def test_a_port_is_free_only_where_it_is_to_be_listened_on_and_nobody_listens_everywhere() -> None:
    ports = Ports("127.0.0.1", first=free_port(), count=200)
    port = ports.claim("ns/a", address="127.0.0.2")
    with socket.create_server(("127.0.0.2", port)):
        assert not is_free("127.0.0.2", port)
        assert ports.claim("ns/a", preferred=port, address="127.0.0.2") != port
    with socket.create_server(("0.0.0.0", port)):
        assert not is_free("127.0.0.1", port)


def test_a_log_is_read_from_its_end_and_then_on(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert process_log.read(log) is None
    log.write_text("one\ntwo\nthré")
    piece = process_log.read(log, tail=2)
    assert piece is not None
    assert piece.text == "two\nthré"
    with log.open("a") as more:
        more.write("e\n")
    following = process_log.read(log, offset=piece.offset)
    assert following is not None
    assert following.text == "e\n"
    assert process_log.read(log, offset=following.offset).text == ""  # type: ignore[union-attr]
    log.write_text("after a rotation\n")
    again = process_log.read(log, offset=following.offset + 99)
    assert again is not None
    assert again.text == "after a rotation\n"
    short = process_log.read(log, max_bytes=10)
    assert short is not None
    assert short.text == "", "a torn line is left out"


def test_a_rotation_on_a_full_disk_frees_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 100)
    process_log.copy_of(log, 1).write_bytes(b"y")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space"):
        process_log.rotate(log, max_bytes=50)
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]
    assert log.read_bytes() == b""


def test_logs_of_nobody_go_after_a_while(tmp_path: Path) -> None:
    for name, age_s in (("old.log", 100.0), ("old.log.1", 100.0), ("young.log", 0.0), ("kept.log", 100.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age_s, time.time() - age_s))
    process_log.prune(tmp_path, kept=[tmp_path / "kept.log"], older_than_s=50.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.log", "young.log"]


# --- the address of a shared daemon -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("", 11434),
        ("0.0.0.0", 11434),
        ("127.0.0.1:11435", 11435),
        (":9", 9),
        ("http://mac.local:80/", 80),
        ("[::]:7", 7),
        ("[::1]", 11434),
        ("x:99999", 11434),
    ],
)
def test_the_port_in_ollama_host(text: str, port: int) -> None:
    assert plans.port_in(text) == port


def daemon(address: str = "10.0.0.1", environment: dict[str, str] | None = None, **changes: Any) -> plans.DaemonPlan:
    values: dict[str, Any] = {"runtime": "ollama", "argv": ("ollama", "serve"), "daemon_model": "tiny", **changes}
    return plans.daemon_of(plan(**values), store=Path("/store"), address=address, environment=environment or {})


def test_services_share_a_daemon_unless_they_want_it_otherwise() -> None:
    usual = daemon()
    assert (usual.key, usual.port, usual.may_be_foreign) == ("_daemons/ollama", 11434, True)
    assert usual.plan.env == {"OLLAMA_HOST": "10.0.0.1:{port}"}
    assert usual == daemon(daemon_model="other", service="other", priority=7)
    assert daemon(environment={"OLLAMA_HOST": ":7"}).port == 7
    own = daemon(env={"OLLAMA_FLASH_ATTENTION": "1"}, environment={"OLLAMA_HOST": ":7"})
    assert own.key not in (usual.key, daemon(env={"OLLAMA_FLASH_ATTENTION": "0"}).key)
    assert (own.port, own.may_be_foreign) == (None, False)
    assert daemon("fd00::1").plan.env == {"OLLAMA_HOST": "[fd00::1]:{port}"}
    assert daemon("127.0.0.1").plan.env == {"OLLAMA_HOST": "127.0.0.1:{port}"}


def test_an_omlx_daemon_looks_where_the_agent_puts_the_models() -> None:
    argv = ("omlx", "serve", "--model-dir", "{models}", "--port", "{port}", "--host", "{host}")
    usual = daemon(runtime="omlx", argv=argv)
    assert usual.key == "_daemons/omlx"
    assert usual.plan.argv == ("omlx", "serve", "--model-dir", "/store/omlx", "--port", "{port}", "--host", "10.0.0.1")
    for more in (("--hot-cache-max-size", "8GB"), ("--max-concurrent-requests", "16")):
        assert daemon(runtime="omlx", argv=(*argv, *more)).key != usual.key
    assert plans.is_daemon_key(usual.key)
    assert not plans.is_daemon_key("prod/omlx")
