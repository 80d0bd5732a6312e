"""Real small processes under a supervisor: drains, holds, admission, faults of the host, and what a restart keeps."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.contract import IdleQuestion, ProcessPhase, ProcessPlan
from agent.processes.lifecycle import Hold
from agent.server.processes import drain
from agent.server.processes.identity import start_mark
from tests.support.agents import gone, kill
from tests.support.controlplane import eventually
from tests.support.supervising import SERVER, Supervised, server_plan, supervised

KEY = "prod/a"
HOLD = Hold(ProcessPhase.PENDING, "Evicted", "the host is short of memory")
SLOTS = IdleQuestion(path="/slots", kind="slots")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Supervised]:
    with supervised(tmp_path) as made:
        yield made


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """A file; while it exists, the server counts as busy."""
    path = tmp_path / "busy"
    path.touch()
    return path


def plan_of(busy: Path, *more: str, **changes: Any) -> ProcessPlan:
    return server_plan(str(busy), *more, **{"idle": SLOTS, **changes})


def pid_of(host: Supervised, key: str = KEY) -> int:
    pid = host.until(key, "Ready").pid
    assert pid is not None
    return pid


# --- drain ------------------------------------------------------------------------------------------------------------


def test_a_changed_plan_waits_for_requests_and_one_more_change_waits_no_longer(host: Supervised, busy: Path) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy), 1)
    first = pid_of(host)
    supervisor.put(KEY, plan_of(busy, "second"), 2)
    report = host.until(KEY, "Stopping")
    assert (report.ready, report.reason, report.pid) == (False, "Replacing", first)
    supervisor.put(KEY, plan_of(busy, "third"), 3)
    time.sleep(0.5)
    assert start_mark(first), "it was stopped with a request under way"
    busy.unlink()
    second = pid_of(host)
    assert gone(first, timeout_s=1)
    assert "third" in Path(f"/proc/{second}/cmdline").read_text()
    assert host.until(KEY, "Ready").restarts == 0
    assert host.phases(KEY).count("Stopping") == 1


def test_a_request_that_never_ends_holds_a_removal_up_for_no_longer_than_planned(host: Supervised, busy: Path) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy, drain_timeout_s=0.6))
    pid = pid_of(host)
    asked = time.monotonic()
    supervisor.remove(KEY)
    assert gone(pid, timeout_s=10), "the request itself never ends"
    assert time.monotonic() - asked > 0.5


def test_a_newer_plan_that_needs_no_other_start_says_how_long_requests_have(host: Supervised, busy: Path) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy))
    pid = pid_of(host)
    supervisor.put(KEY, plan_of(busy, drain_timeout_s=0.2))
    supervisor.remove(KEY)
    assert gone(pid, timeout_s=15)


def test_no_drain_where_none_is_wanted(host: Supervised, busy: Path) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy, drain_timeout_s=0))
    pid = pid_of(host)
    supervisor.remove(KEY)
    assert gone(pid, timeout_s=15)


def test_a_plan_that_comes_back_while_requests_end_keeps_the_process(host: Supervised, busy: Path) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy))
    pid = pid_of(host)
    supervisor.put(KEY, plan_of(busy, "other"))
    host.until(KEY, "Stopping")
    supervisor.put(KEY, plan_of(busy))
    assert host.until(KEY, "Ready").pid == pid


def test_endpoints_go_before_anything_else_and_their_word_is_not_waited_for_without_end(
    host: Supervised, busy: Path
) -> None:
    busy.unlink()
    seen: set[str] = set()

    def withdrawn(key: str) -> bool:
        seen.add(host.phases(key)[-1])
        return False

    supervisor = host.start(withdrawn=withdrawn)
    supervisor.put(KEY, plan_of(busy))
    pid = pid_of(host)
    asked = time.monotonic()
    supervisor.remove(KEY)
    assert gone(pid, timeout_s=10), "the word itself never comes"
    assert time.monotonic() - asked > 2.5
    assert seen == {"Stopping"}, "clients are sent elsewhere before the engine is asked"


def test_a_server_that_cannot_be_asked_is_judged_by_its_connections(host: Supervised) -> None:
    supervisor = host.start()
    supervisor.put(KEY, server_plan())
    report = host.until(KEY, "Ready")
    assert report.port is not None
    assert report.pid is not None
    pid, port = report.pid, report.port
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually(lambda: drain.connected(pid, port), what="the connection")
        supervisor.remove(KEY)
        time.sleep(1)
        assert start_mark(pid), "it was stopped with a request under way"
    assert gone(pid, timeout_s=5)


def test_an_agent_that_is_killed_while_it_drains_a_removed_process_leaves_the_rest_to_the_next(
    host: Supervised, busy: Path
) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy))
    pid = pid_of(host)
    supervisor.remove(KEY)
    host.until(KEY, "Stopping")
    host.crash()
    assert start_mark(pid)
    host.start()
    assert host.until(KEY, "Stopping").pid == pid
    time.sleep(0.6)
    assert start_mark(pid), "the drain was lost"
    busy.unlink()
    assert gone(pid, timeout_s=5)
    host.gone(KEY)


def test_an_agent_that_is_killed_while_it_replaces_asks_the_old_process_by_its_own_plan(
    host: Supervised, busy: Path
) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy))
    pid = pid_of(host)
    # The idle check of the new plan would report an idle engine at once, wrongly.
    supervisor.put(KEY, plan_of(busy, "new", idle=IdleQuestion(path="/", kind="status"), drain_timeout_s=0.0))
    host.until(KEY, "Stopping")
    host.crash()
    host.start()
    time.sleep(0.6)
    assert start_mark(pid)
    busy.unlink()
    assert pid_of(host) != pid


# --- holds and admission ----------------------------------------------------------------------------------------------


def test_a_held_process_is_drained_stopped_and_back_when_the_last_hold_is_gone(host: Supervised, busy: Path) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy))
    pid = pid_of(host)
    supervisor.hold(KEY, "memory", HOLD)
    assert host.until(KEY, "Stopping").reason == "Evicted"
    supervisor.hold(KEY, "idle", Hold(ProcessPhase.ASLEEP, "Idle", ""))
    busy.unlink()
    report = host.until(KEY, "Pending")
    assert (report.reason, report.message, report.pid) == ("Evicted", HOLD.message, None)
    assert gone(pid, timeout_s=1)
    supervisor.release(KEY, "memory")
    assert host.until(KEY, "Asleep").reason == "Idle"
    supervisor.release(KEY, "idle")
    assert pid_of(host) != pid
    assert host.until(KEY, "Ready").restarts == 0


def test_a_hold_may_cut_the_drain_short(host: Supervised, busy: Path) -> None:
    supervisor = host.start()
    supervisor.put(KEY, plan_of(busy))
    pid = pid_of(host)
    supervisor.hold(KEY, "memory", Hold(HOLD.phase, HOLD.reason, HOLD.message, drain_timeout_s=0.3))
    assert gone(pid, timeout_s=15)


def test_a_process_that_is_not_admitted_waits_and_starts_when_it_is_woken(host: Supervised) -> None:
    room: list[bool] = []
    full = Hold(ProcessPhase.PENDING, "InsufficientMemory", "needs 8 GiB and 2 GiB are free")
    quick = host.start(admit=lambda _key, _goal, _paths: None if room else full)
    quick.put(KEY, server_plan())
    report = host.because(KEY, full.reason)
    assert (report.message, report.pid) == (full.message, None)
    room.append(True)
    quick.wake(KEY)
    host.until(KEY, "Ready")


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_killed_process_comes_back_on_its_port_and_an_unchanged_one_is_left_alone(host: Supervised) -> None:
    supervisor = host.start()
    supervisor.put(KEY, server_plan(), 1)
    before = host.until(KEY, "Ready")
    supervisor.put(KEY, server_plan(priority=5), 2)
    host.when(KEY, lambda r: r.observed_generation == 2, what="to know the plan")
    assert host.until(KEY, "Ready").pid == before.pid
    assert before.pid is not None
    kill(before.pid)
    eventually(lambda: pid_of(host) != before.pid, what="the next process")
    after = host.until(KEY, "Ready")
    assert (after.port, after.restarts) == (before.port, 1)


def test_a_port_that_somebody_took_meanwhile_is_left_to_him_and_the_next_agent_keeps_the_new_one(
    host: Supervised,
) -> None:
    supervisor = host.start()
    supervisor.put(KEY, server_plan())
    first = host.until(KEY, "Ready")
    assert first.port is not None
    assert first.pid is not None
    supervisor.hold(KEY, "test", HOLD)
    host.until(KEY, "Pending")
    with socket.create_server(("0.0.0.0", first.port)):
        supervisor.release(KEY, "test")
        second = host.until(KEY, "Ready")
        assert second.port != first.port
    host.crash()
    host.start()
    third = host.until(KEY, "Ready")
    assert (third.pid, third.port) == (second.pid, second.port)
    host.supervisor.hold(KEY, "test", HOLD)
    host.until(KEY, "Pending")
    host.supervisor.release(KEY, "test")
    assert host.until(KEY, "Ready").port == second.port


def llama_server(path: Path, version: int, *flags: str) -> None:
    """Install a fake llama-server of a release: its help lists these flags, and it serves like SERVER."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"if '--version' in sys.argv: sys.exit('version: {version} (abcdef)')\n"
        f"if '--help' in sys.argv: print({' '.join(flags)!r}); sys.exit()\n"
        "at = sys.argv.index\n"
        "sys.argv = ['s', sys.argv[at('--host') + 1], sys.argv[at('--port') + 1]]\n" + SERVER
    )
    draft.chmod(0o755)
    draft.replace(path)


def test_a_binary_that_is_missing_or_too_old_is_named_and_a_better_one_is_noticed(
    host: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.server.processes.launching.INSTALL_RETRY_S", (0.1, 0.2))
    monkeypatch.setattr("agent.server.host_facts.USUAL_DIRECTORIES", ())
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if "llama" not in p))
    argv = ("llama-server", "--host", "{host}", "--port", "{port}", "--mlock", "--spec-type", "ngram-mod", "--jinja")
    supervisor = host.start()
    supervisor.put(KEY, server_plan(runtime="llamacpp", argv=argv, health_path="/"))
    assert host.until(KEY, "BackingOff").reason == "RuntimeMissing"
    binary = host.binaries / "llama-server"
    llama_server(binary, 4000, "--help", "--version", "--host", "--port", "--mlock")
    old = host.because(KEY, "RuntimeTooOld")
    assert "4000" in old.message
    assert "--spec-type, --jinja" in old.message
    assert "--mlock" not in old.message.replace("--mlock,", "")
    assert (old.pid, old.restarts) == (None, 0)
    llama_server(binary, 9999, "--host", "--port", "--load-mode", "--spec-type", "--jinja")
    report = host.until(KEY, "Ready")
    command = Path(f"/proc/{report.pid}/cmdline").read_text().split("\0")
    assert command[command.index("--load-mode") + 1] == "mmap+mlock"


def test_a_users_own_command_is_started_with_whatever_flags_it_has(host: Supervised) -> None:
    supervisor = host.start()
    supervisor.put(KEY, server_plan("--no-such-flag"))
    host.until(KEY, "Ready")


def test_a_process_that_never_becomes_ready_ends_as_failed_with_its_last_words(host: Supervised) -> None:
    script = "import time; print('cannot find the GPU', flush=True); time.sleep(60)"
    supervisor = host.start()
    supervisor.put(KEY, server_plan(argv=(sys.executable, "-c", script), startup_timeout_s=2.0))
    supervisor.put("prod/good", server_plan())
    report = host.until(KEY, "Failed")
    assert report.reason == "CrashLoop"
    assert "not ready after 2 s" in report.message
    assert "cannot find the GPU" in report.message
    assert report.restarts == 2
    host.until("prod/good", "Ready")
    supervisor.put(KEY, server_plan("changed"))
    host.until(KEY, "Ready")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    tool = shutil.which("mount")
    made = tool and subprocess.run([tool, "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True)
    if not made or made.returncode:
        pytest.skip("a file system of its own can be mounted by root only")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_stops_nobody_and_loses_nothing_that_runs(small_disk: Path, host: Supervised) -> None:
    host.root = small_disk / "store"
    # Like llama-server, it continues when its output is not read.
    script = SERVER.replace('print("serving", flush=True)', "")
    silent = server_plan(argv=(sys.executable, "-c", script, "{host}", "{port}"))
    supervisor = host.start()
    supervisor.put(KEY, silent)
    pid = pid_of(host)
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    supervisor.put("prod/later", silent)
    later = pid_of(host, "prod/later")
    kill(pid)
    eventually(lambda: pid_of(host) != pid, what="the next process on a full disk")
    host.crash()
    host.start()
    host.supervisor.put("prod/later", silent)
    assert pid_of(host, "prod/later") == later, "a process that could not be written down was doubled"
    (small_disk / "filler").unlink()
    host.supervisor.put("prod/more", server_plan())
    host.until("prod/more", "Ready")
    assert "prod/more" in (host.root / "agent-state.json").read_text()


def test_logs_are_read_from_the_end_and_on_from_there(host: Supervised) -> None:
    supervisor = host.start()
    supervisor.put(KEY, server_plan())
    host.until(KEY, "Ready")
    piece = supervisor.log(KEY, tail=1)
    assert piece is not None
    assert piece.text == "serving\n"
    with host.store.log_file(KEY).open("a") as log:
        log.write("more\n")
    following = supervisor.log(KEY, offset=piece.offset)
    assert following is not None
    assert following.text == "more\n"
    assert supervisor.log("prod/nobody") is None
    supervisor.remove(KEY)
    host.gone(KEY)
    assert supervisor.log(KEY) is not None, "the log of what is gone can still be read"
