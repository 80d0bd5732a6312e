"""The parts of hosts over SSH that need no host: keys, facts, ports, records, statuses, messages."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest

from agent.client.port import HostRefused
from agent.client.ssh.connection import redacted
from agent.client.ssh.facts import FactsIncomplete, read_facts
from agent.client.ssh.fetch import read_state
from agent.client.ssh.keys import KnownHostsInvalid, fingerprint, keys_in_file, own_keys
from agent.client.ssh.layout import Layout, LayoutInvalid, Record, local_path, read_record, unit_name
from agent.client.ssh.observed import ObservedProcess, observe_unit, phase_of, read_processes, status_of_start
from agent.client.ssh.preparation import FIRST_PORT, PORTS, NoPortFree, choose_port, read_ports
from agent.client.ssh.processes import POLICY
from agent.client.ssh.scripts import script
from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason
from agent.processes import lifecycle
from agent.processes.decision import Action, Desired
from agent.processes.lifecycle import ProcessStatus, drain_answered
from agent.sources.errors import Reason
from automation.hosts.ssh_target import connection_spec, target_of

A = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0VSuE0nGHYnZ0vTTGzZrXhEnHbDmJBVzYJ5mYhVQ0d"
B = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEG0TLFJ9AmRWKNqLVM0GPA3s5VywZLRqXQZc0y2TZDI"


# --- host keys ----------------------------------------------------------------------------------------------------


def test_keys_written_down_for_a_host_count_whatever_name_they_have() -> None:
    for line in (A, f"host,10.0.0.1 {A} comment", f"[host]:2222 {A}", f"|1|c2FsdA==|aGFzaA== {A}"):
        assert own_keys(["# comment", "", line]).keys == own_keys([A]).keys
    assert own_keys([A, f"@revoked * {B}"]).revoked == own_keys([B]).keys


@pytest.mark.parametrize(
    "line",
    [
        "host",
        "host ssh-dss AAAA",
        "ssh-ed25519 not-base64!",
        f"@cert-authority * {A}",
        A.replace("ssh-ed25519", "ssh-rsa"),
    ],
)
def test_a_line_that_is_no_key_is_refused(line: str) -> None:
    with pytest.raises(KnownHostsInvalid):
        own_keys([line])
    with pytest.raises(KnownHostsInvalid, match="no host key"):
        own_keys(["# nothing"])


def test_a_file_of_known_hosts_is_searched_by_name() -> None:
    digest = base64.b64encode(hmac.new(b"salt", b"[hashed]:2022", hashlib.sha1).digest()).decode()
    text = f"plain,10.0.0.1 {A}\n*.lan,!bad.lan {B}\n|1|c2FsdA==|{digest} {A}\n[other]:2022 {B}\nbroken line\n"
    key_a, key_b = own_keys([A]).keys, own_keys([B]).keys
    assert keys_in_file(text, "PLAIN", 22).keys == keys_in_file(text, "10.0.0.1", 22).keys == key_a
    assert keys_in_file(text, "a.lan", 22).keys == key_b
    assert keys_in_file(text, "hashed", 2022).keys == key_a
    assert keys_in_file(text, "other", 2022).keys == key_b
    for name, port in (("bad.lan", 22), ("plain", 2022), ("hashed", 22), ("o", 2022)):
        with pytest.raises(KnownHostsInvalid):
            keys_in_file(text, name, port)


def test_a_fingerprint_is_openssh_s() -> None:
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"


# --- facts --------------------------------------------------------------------------------------------------------

LINUX = """os Linux
arch x86_64
user llm
uid 1000
home /home/llm
cpus 16
memory_kib 65536000
address 10.1.2.3
init systemd
tool curl
binary llama-server /usr/local/bin/llama-server
version llama-server ggml: found 1 device version: 6543 (abc) built with gcc
cuda 24564 NVIDIA RTX 4090
cuda 24564 NVIDIA RTX 4090
"""
MAC = """os Darwin
arch arm64
user me
uid 501
home /Users/me
cpus 12
memory 68719476736
address ::ffff:10.1.2.4
init launchd
metal 0 Apple M2 Max
"""


def test_facts_are_read_from_what_was_said() -> None:
    linux, mac = read_facts(LINUX), read_facts(MAC)
    assert (linux.memory_bytes, linux.cpus, linux.init) == (65536000 * 1024, 16, "systemd")
    assert linux.versions == {"llama-server": "6543"}
    (gpu,) = linux.accelerators
    assert (gpu.type, gpu.name, gpu.count, gpu.memory_bytes) == ("cuda", "NVIDIA RTX 4090", 2, 2 * 24564 << 20)
    assert (mac.os, mac.address, mac.memory_bytes) == ("darwin", "10.1.2.4", 64 << 30)
    assert mac.accelerators[0].type == "metal" and mac.accelerators[0].memory_bytes is None
    told = linux.of_host("h", "192.0.2.1", "1.0")
    assert (told.host, told.address, told.agent_version) == ("h", "192.0.2.1", "1.0")


@pytest.mark.parametrize("text", ["", "os Linux\n", LINUX.replace("Linux", "FreeBSD"), "Welcome to fish\n"])
def test_a_host_that_does_not_say_what_it_is_is_refused(text: str) -> None:
    with pytest.raises(FactsIncomplete):
        read_facts(text)


# --- the store ----------------------------------------------------------------------------------------------------


def test_names_cannot_leave_their_directories() -> None:
    assert unit_name("prod/a.b-c") == "herdsman-process-prod.a.b-c"
    assert len(unit_name(f"prod/{'a' * 250}")) <= 200
    assert unit_name(f"prod/{'a' * 250}") != unit_name(f"prod/{'a' * 249}b")
    for key in ("prod", "prod/", "/a", "prod/../a", "prod/A", "prod/a b", "prod/$(x)"):
        with pytest.raises(LayoutInvalid):
            unit_name(key)
    layout = Layout.of("~/store/", "/home/me")
    assert layout.root == "/home/me/store"
    with pytest.raises(LayoutInvalid):
        Layout.of("relative", "/home/me")
    for part in ("..", "a/b", ".hidden", ""):
        with pytest.raises(LayoutInvalid):
            layout.model(FilePlan(source="http://x/y", cache_key=part, file_name="m.gguf"))
    assert layout.model(FilePlan(source="file:///m.gguf", cache_key="k", file_name="m")) == "/m.gguf"
    for source in ("ftp://x", "relative", "http://x/a b"):
        with pytest.raises(LayoutInvalid):
            local_path(source)


def test_a_port_is_kept_and_never_shared() -> None:
    first = choose_port("a/b", set())
    assert FIRST_PORT <= first < FIRST_PORT + PORTS
    assert choose_port("a/b", {first}) != first
    assert choose_port("a/b", set(), preferred=18005) == 18005
    assert choose_port("a/b", {18005}, preferred=18005) != 18005
    with pytest.raises(NoPortFree):
        choose_port("a/b", range(FIRST_PORT, FIRST_PORT + PORTS))
    assert read_ports("hex 4650\nhex zz\ndec 8080\nnonsense\n") == {18000, 8080}


def plan(**changes: Any) -> ProcessPlan:
    return ProcessPlan(**{"host": "h", "service": "s", "argv": ("llama-server",), "service_name": "s", **changes})


def test_a_look_reads_each_process_and_passes_over_what_it_cannot_read() -> None:
    tricky = plan(env={"A": "x\nprocess herdsman-process-prod.other\nMainPID=7"})
    record = Record(key="prod/a", plan=tricky, generation=3, port=18000)
    assert read_record(record.model_dump_json(by_alias=True)) == record
    encoded = base64.b64encode(record.model_dump_json(by_alias=True).encode()).decode()
    text = (
        f"process herdsman-process-prod.a\nrecord64 {encoded}\ninstalled cafe\nstart 3f2a/5\n"
        "ActiveState=active\nMainPID=42\nResult=success\nNRestarts=2\nlaunch cafe\nstarted Sat Nov  1 10:00:00 2026\n"
        "process herdsman-process-prod.b\nrecord64 {not json\nActiveState=failed\n"
    )
    seen, unread = read_processes(text)
    assert unread == ("herdsman-process-prod.b",)
    (each,) = seen.values()
    assert each.record == record and each.runs
    assert (each.pid, each.restarts, each.launch, each.installed) == (42, 2, "cafe", "cafe")
    assert each.start == "42 cafe 3f2a/5" and each.former_start == "42 cafe Sat Nov 1 10:00:00 2026"


def test_a_start_keeps_its_name_when_the_clock_is_set() -> None:
    before = replace(RUNS, started="Sat Nov 1 10:00:00 2026", started_in_boot="3f2a/5")
    after = replace(before, started="Sat Nov 1 11:30:00 2026")
    assert after.start == before.start
    assert replace(after, proved=before.start).is_proved
    assert replace(before, proved=before.former_start).is_proved, "written down by an earlier version"
    assert not replace(before, started_in_boot="3f2a/6", started="later", proved=before.start).is_proved
    assert not replace(before, proved="").is_proved


def test_a_download_tells_how_far_it_is() -> None:
    going = read_state("running\npart 10\ntotal 40\nfailed SourceUnreachable old\n", "/m", None)
    assert (going.running, going.done_bytes, going.total_bytes, going.failure) == (True, 10, 40, None)
    failed = read_state("part 10\nfailed NoSpace 5 bytes are free\n", "/m", None)
    assert failed.failure == (Reason.NO_SPACE, "5 bytes are free")
    assert read_state("there 40\n", "/m", None).there
    assert not read_state("there 40\nsum other\n", "/m", "cafe").there, "another sum than the plan's"
    assert read_state("failed Nonsense words\n", "/m", None).failure == (Reason.STORE_FAILED, "words")
    assert script("fetch").startswith("# Brings one file")


# --- records of processes -----------------------------------------------------------------------------------------

RECORD = Record(key="prod/a", plan=plan(completion_path="/c"), generation=1, port=18000)
DESIRED = Desired(RECORD.plan, "new")
RUNS = ObservedProcess(RECORD, active="active", pid=7, launch="new", installed="new", started="now")


def adopted(seen: ObservedProcess = RUNS, **changes: Any) -> ProcessStatus:
    return replace(status_of_start(ProcessStatus(), seen, now=0.0), **changes)


def since(status: ProcessStatus, at: float) -> ProcessStatus:
    assert status.running is not None
    return replace(status, running=replace(status.running, since=at))


FAILING = adopted(phase=ProcessPhase.READY, ready_since=0.0, failed_checks=8)


@pytest.mark.parametrize(
    ("seen", "status", "expected"),
    [
        (None, ProcessStatus(), Action.START),
        (None, ProcessStatus(retry_at=10.0), Action.WAIT),
        (ObservedProcess(RECORD), ProcessStatus(), Action.START),
        (RUNS, ProcessStatus(), Action.CHECK_HEALTH),
        (RUNS, adopted(check_at=10.0), Action.WATCH),
        (replace(RUNS, launch="old"), ProcessStatus(), Action.STOP),
        (replace(RUNS, launch="old"), ProcessStatus(retry_at=10.0), Action.WAIT),
        (replace(RUNS, active="activating", pid=0), ProcessStatus(), Action.WAIT),
        (replace(RUNS, active="failed", pid=0), ProcessStatus(), Action.WAIT),
        (replace(RUNS, active="failed", pid=0, installed="old"), ProcessStatus(), Action.START),
        (RUNS, FAILING, Action.RESTART),
        (RUNS, since(adopted(), -5000.0), Action.RESTART),
        (replace(RUNS, pid=8), FAILING, Action.CHECK_HEALTH),
    ],
)
def test_the_next_step_follows_from_what_is_seen(
    seen: ObservedProcess | None, status: ProcessStatus, expected: Action
) -> None:
    observed = observe_unit(seen, status, "new", now=1.0)
    assert lifecycle.next_step(status, DESIRED, observed, now=1.0, policy=POLICY).action is expected


def test_a_start_is_ready_once_it_has_answered_and_stays_so_for_who_comes_later() -> None:
    status = lifecycle.health_checked(adopted(), RECORD.plan, failure=None, now=1.0, policy=POLICY)
    assert status.ready_since is None and phase_of(RUNS, status, "new")[0] is ProcessPhase.STARTING
    status = lifecycle.completion_checked(status, failure="no content", now=1.0, policy=POLICY)
    assert phase_of(RUNS, status, "new")[:2] == (ProcessPhase.STARTING, ProcessReason.COMPLETION_FAILED)
    status = lifecycle.completion_checked(status, failure=None, now=2.0, policy=POLICY)
    assert phase_of(RUNS, status, "new")[0] is ProcessPhase.READY
    later = adopted(replace(RUNS, proved=RUNS.start))
    assert phase_of(RUNS, later, "new")[0] is ProcessPhase.READY
    again = status_of_start(status, replace(RUNS, pid=8), now=3.0)
    assert again.ready_since is None, "another start has to prove itself"
    for _ in range(3):
        status = lifecycle.health_checked(status, RECORD.plan, failure="refused", now=4.0, policy=POLICY)
    assert phase_of(RUNS, status, "new")[:2] == (ProcessPhase.UNHEALTHY, ProcessReason.NOT_RESPONDING)


def test_the_exit_code_that_launchd_tells_is_in_the_report() -> None:
    ended = replace(RUNS, active="activating", pid=0, result="exit code 78: EX_CONFIG")
    phase, reason, message = phase_of(ended, ProcessStatus(), "new")
    assert (phase, reason) == (ProcessPhase.BACKING_OFF, ProcessReason.EXITED)
    assert "exit code 78: EX_CONFIG" in message


def test_failures_wait_longer_each_time_and_are_forgotten_with_their_plan() -> None:
    status, waits = lifecycle.plan_changed(ProcessStatus(), DESIRED), []
    for _ in range(12):
        status = lifecycle.attempt_failed(status, reason="NoSpace", message="full", now=0.0, policy=POLICY)
        waits.append(status.retry_at)
    assert waits[0] == 2.0 and waits == sorted(waits) and waits[-1] == 300.0
    assert phase_of(None, status, "new") == (ProcessPhase.BACKING_OFF, "NoSpace", "full")
    assert lifecycle.plan_changed(status, DESIRED).attempts == 12
    assert lifecycle.plan_changed(status, replace(DESIRED, launch_hash="other")).attempts == 0
    removed = lifecycle.plan_changed(status, None)
    assert (removed.attempts, removed.retry_at) == (0, 0.0), "a removal does not wait for a download's back-off"
    failed = lifecycle.attempt_failed(removed, reason="LaunchFailed", message="", now=0.0, policy=POLICY)
    assert lifecycle.plan_changed(failed, None).retry_at == 2.0
    gave_up = replace(RUNS, active="failed", pid=0)
    assert phase_of(gave_up, status, "new", last_words="oops")[:2] == (
        ProcessPhase.FAILED, ProcessReason.CRASH_LOOP,
    )  # fmt: skip


def test_a_plan_that_returns_while_the_process_drains_leaves_it_ready() -> None:
    old = replace(DESIRED, launch_hash="old")
    status = since(adopted(replace(RUNS, proved=RUNS.start)), -5000.0)
    status, is_over = drain_answered(lifecycle.plan_changed(status, old), True, 30.0, now=0.0)
    assert not is_over and phase_of(RUNS, status, "old")[0] is ProcessPhase.STOPPING
    status = lifecycle.plan_changed(status, DESIRED)
    observed = observe_unit(RUNS, status, "new", now=1.0)
    assert lifecycle.next_step(status, DESIRED, observed, now=1.0, policy=POLICY).action is Action.CHECK_HEALTH
    assert phase_of(RUNS, status, "new")[0] is ProcessPhase.READY and status.drain is None


def test_a_drain_waits_for_silence_and_not_for_ever() -> None:
    status, is_over = drain_answered(adopted(phase=ProcessPhase.READY, ready_since=0.0), True, 30.0, now=0.0)
    assert not is_over and status.phase is ProcessPhase.STOPPING
    status, is_over = drain_answered(status, False, 30.0, now=5.0)
    assert not is_over, "one silence may lie between two requests"
    assert drain_answered(status, False, 30.0, now=5.5)[1]
    assert drain_answered(status, True, 30.0, now=30.0)[1]
    assert drain_answered(ProcessStatus(), None, 0.0, now=0.0)[1]


# --- messages and values ------------------------------------------------------------------------------------------


def test_errors_repeat_no_secret() -> None:
    shown = redacted(["llama-server", "--api-key", "s3cret", "--hf-token=s3cret", "PASSWORD=s3cret", "-c", "256"])
    assert "s3cret" not in shown
    assert shown == "`llama-server --api-key … --hf-token=… PASSWORD=… -c 256`"


def host(**ssh: Any) -> dict[str, Any]:
    way = {"user": "llm", "knownHosts": [A], "identityFile": "/key", **ssh}
    return {"metadata": {"name": "h"}, "spec": {"transport": "ssh", "address": "192.0.2.1", "ssh": way}}


def test_a_host_object_says_how_it_is_reached() -> None:
    target = target_of(host(bastion={"address": "b", "knownHosts": [B]}, sudo=True, port=2222), "")
    assert target.server.name == "llm@192.0.2.1:2222" and target.sudo
    assert target.bastion is not None and target.bastion.name == "llm@b:22"
    assert target.bastion.known_hosts == own_keys([B])
    assert target_of(host(), "text").identity_file == "" and "text" not in repr(target_of(host(), "text"))
    assert connection_spec(host()) == connection_spec({**host(), "status": {"os": "linux"}})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"knownHosts": ["nonsense"]}, "spec.ssh.knownHosts"),
        ({"user": ""}, "spec.ssh.user"),
        ({"identityFile": None}, "identityFile"),
        ({"bastion": {"address": "b", "knownHosts": []}}, "spec.ssh.bastion.knownHosts"),
    ],
)
def test_what_is_wrong_with_a_host_object_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(HostRefused, match=field) as caught:
        target_of(host(**changes), "")
    assert caught.value.reason == "SpecInvalid"
