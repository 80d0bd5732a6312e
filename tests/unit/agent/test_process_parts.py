"""The small parts for running processes: ports, logs, markers, identity, the store."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from agent.contract import ProcessPlan
from agent.server.processes import process_log
from agent.server.processes.identity import start_mark
from agent.server.processes.ports import NoPortFree, Ports
from agent.server.processes.process import Handle, LaunchFailed, Marker, inherited_environment, launch
from agent.server.processes.records import found_processes
from agent.server.store import ProcessRecord, RunningRecord, Store, StoreInUse

PLAN = ProcessPlan(host="h", service="s", argv=("x",), service_name="s")


def test_a_port_is_kept_and_never_given_twice() -> None:
    ports = Ports("127.0.0.1", first=21000, count=50)
    first = ports.claim("ns/a")
    assert ports.claim("ns/a") == first
    assert ports.claim("ns/b", preferred=first) != first
    ports.release("ns/a")
    assert ports.claim("ns/c", preferred=first) == first


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    ports = Ports("127.0.0.1", first=21100, count=50)
    wanted = ports.claim("ns/a")
    ports.release("ns/a")
    with socket.create_server(("127.0.0.1", wanted)):
        assert ports.claim("ns/a") != wanted


def test_a_range_without_a_free_port_is_an_error_with_the_range() -> None:
    ports = Ports("127.0.0.1", first=21200, count=1)
    ports.claim("ns/a")
    with pytest.raises(NoPortFree, match="21200"):
        ports.claim("ns/b")


def test_a_log_is_rotated_in_place_so_that_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab") as writer:
        for number in range(5):
            writer.write(b"%d" % number * 100)
            writer.flush()
            assert process_log.rotate(log, max_bytes=50, kept=3)
        writer.write(b"last")
    assert log.read_bytes() == b"last"
    assert [(tmp_path / f"a.log.{n}").read_bytes()[:1] for n in (1, 2, 3)] == [b"4", b"3", b"2"]
    assert not (tmp_path / "a.log.4").exists()
    assert not process_log.rotate(log, max_bytes=50)


def test_the_last_lines_are_those_of_the_last_start(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("old error\n")
    start = process_log.size_of(log)
    with log.open("a") as writer:
        writer.write("\n".join(f"line {n}" for n in range(9)) + "\n\n")
    assert process_log.last_lines(log, since_byte=start, lines=2) == "line 7\nline 8"
    assert "old" not in process_log.last_lines(log, since_byte=start, lines=99)
    assert process_log.last_lines(log, since_byte=10_000, lines=1) == "line 8", "rotated meanwhile"
    assert process_log.last_lines(tmp_path / "none") == ""


def test_a_marker_survives_the_environment() -> None:
    marker = Marker("id", "ns/name", "abc", 18000)
    assert Marker.decode(marker.encode()) == marker
    assert Marker.decode("some|thing|else") is None
    assert Marker.decode("a|b|c|notaport") is None


def test_children_see_neither_kubeconfig_nor_our_own_settings() -> None:
    own = {"PATH": "/bin", "KUBECONFIG": "/k", "PULUMI_CONFIG_PASSPHRASE": "x", "HERDSMAN_STATE": "y"}
    assert inherited_environment(own) == {"PATH": "/bin"}


def test_a_process_is_known_by_more_than_its_pid(tmp_path: Path) -> None:
    marker = Marker("id", "ns/a", "h", 1)
    handle = launch([sys.executable, "-c", "input()"], env={}, log=tmp_path / "a.log", marker=marker)
    # The process ends by itself, because its standard input is empty. A later process with its pid has another mark.
    assert not Handle(os.getpid(), "another mark").alive()
    assert Handle(os.getpid(), start_mark(os.getpid()) or "").alive()
    handle.terminate(grace_s=5.0)
    assert not handle.alive()
    assert start_mark(handle.pid) is None


def test_a_handle_of_a_recycled_pid_harms_nobody() -> None:
    assert Handle(os.getpid(), "a process that is long gone").terminate(grace_s=0.1)


def test_a_binary_that_cannot_start_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="nothing-here"):
        launch(["/nothing-here"], env={}, log=tmp_path / "a.log", marker=Marker("i", "k", "h", 1))


def test_a_store_lets_one_agent_in_and_remembers_its_identity(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    identity = store.open()
    with pytest.raises(StoreInUse):
        Store(tmp_path / "store").open()
    assert (tmp_path / "store" / "agent-id").stat().st_mode & 0o777 == 0o600
    store.close()
    assert Store(tmp_path / "store").open() == identity


def test_what_was_remembered_is_read_by_the_next_agent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    record = ProcessRecord(plan=PLAN, generation=3, restarts=2, port=18000)
    store.write_record("ns/a", record)
    store.write_record("ns/b", record)
    store.remove_record("ns/b")
    store.close()
    again = Store(tmp_path)
    again.open()
    assert dict(again.load()) == {"ns/a": record}


def test_a_torn_state_file_counts_as_empty(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    (tmp_path / "agent-state.json").write_text('{"version": 1, "proc')
    assert store.load() == {}


def test_logs_of_names_that_only_differ_by_where_the_dash_is_stay_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.log_file("a-b/c") != store.log_file("a/b-c")


def own_record(mark: str | None = None) -> ProcessRecord:
    pid = os.getpid()
    noted = RunningRecord(
        pid=pid, mark=mark or start_mark(pid) or "", port=18000, launch_hash="h", started_at="", proved=True
    )
    return ProcessRecord(plan=PLAN, running=noted)


def test_a_noted_process_that_lives_is_adopted_with_all_that_is_known_of_it() -> None:
    chosen, surplus = found_processes({"ns/a": own_record()}, {}, now=5.0)
    assert chosen["ns/a"].running.proved
    assert chosen["ns/a"].running.since == 5.0
    assert surplus == []


def test_a_pid_that_another_process_has_now_is_not_adopted() -> None:
    assert found_processes({"ns/a": own_record(mark="earlier")}, {}, now=0.0) == ({}, [])


def test_of_several_processes_of_one_key_the_noted_one_wins_and_the_others_are_surplus() -> None:
    noted = own_record()
    marker = Marker("id", "ns/a", "h", 18000)
    other, same = Handle(1, "m"), Handle(os.getpid(), start_mark(os.getpid()) or "")
    chosen, surplus = found_processes({"ns/a": noted}, {"ns/a": [(marker, other), (marker, same)]}, now=0.0)
    assert chosen["ns/a"].running.pid == os.getpid()
    assert surplus == [other]


def test_a_process_nobody_noted_is_known_by_its_marker() -> None:
    handle = Handle(1, "m")
    chosen, _ = found_processes({}, {"ns/a": [(Marker("id", "ns/a", "h", 18007), handle)]}, now=0.0)
    assert (chosen["ns/a"].running.port, chosen["ns/a"].running.proved) == (18007, False)
