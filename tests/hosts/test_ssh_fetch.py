"""The script that fetches files on a host over SSH: the addresses that it connects to, what other users can see, that
only one runs, and how much it may fetch.
"""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.fetch import Fetcher, FileState, job_text
from agent.client.ssh.layout import Layout
from agent.client.ssh.scripts import script
from agent.contract import FilePlan
from agent.sources.errors import Reason
from agent.sources.source_policy import NOT_PUBLIC, SourcePolicy
from tests.support.controlplane import eventually
from tests.support.model_server import File, FileServer
from tests.support.sshd import Sshd, sshd

CONTENT = b"GGUF" + bytes(200_000)
NAMED = SourcePolicy(allowed_remote_hosts=("files.example",))
_EDGES = [
    str(type(network[0])(number))
    for network in NOT_PUBLIC
    for number in (int(network[0]) - 1, int(network[0]), int(network[-1]), int(network[-1]) + 1)
    if 0 <= number < 1 << network.max_prefixlen
]
_ADDRESSES = st.one_of(
    st.sampled_from([*_EDGES, "10.1.2.3", "fd00:1::5", "127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8"]),
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda address: address.exploded),
    st.ip_addresses(v=4).map(lambda address: f"::ffff:{address}"),
)
LOCKF = """#!/usr/bin/env python3
# lockf(1) of macOS and FreeBSD, as far as -k, -s and -t go: the lock is held until the command ends.
import fcntl, subprocess, sys, time
words = sys.argv[1:]
wait_s = 1e9
while words[0].startswith("-"):
    if words[0] == "-t":
        wait_s = float(words[1])
        del words[0]
    del words[0]
end = time.monotonic() + wait_s
with open(words[0], "a") as file:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= end:
                sys.exit(75)
            time.sleep(0.1)
    sys.exit(subprocess.call(words[1:]))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "host") as made:
        yield made


@pytest.fixture
def files() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


def resolves(server: Sshd, *answers: str) -> None:
    """Make the host's resolver return these answers for every name in turn, and then always the last one."""
    state = server.directory / "answers"
    state.write_text("\n".join(answers) + "\n")
    tool = server.directory / "bin" / "getent"
    tool.write_text(
        f'#!/bin/sh\nfor a in $(sed -n 1p "{state}"); do echo "$a STREAM name"; done\n'
        f'[ "$(wc -l <"{state}")" -le 1 ] || sed -i 1d "{state}"\n'
    )
    tool.chmod(0o755)


def with_lockf(server: Sshd) -> None:
    tool = server.directory / "bin" / "lockf"
    tool.write_text(LOCKF.replace("/usr/bin/env python3", str(server.directory / "bin" / "python3")))
    tool.chmod(0o755)


class Fetching:
    """One file of one host."""

    def __init__(self, server: Sshd, source: str, policy: SourcePolicy | None, **more: object) -> None:
        self.connection = SshConnection(server.target())
        self.fetcher = Fetcher(self.connection, Layout(str(server.store)), policy)
        self.plan = FilePlan.model_validate({"source": source, "cache_key": "k", "file_name": "m.gguf", **more})
        self.path = server.store / "models/k/m.gguf"
        self.job = server.store / "models/k/.m.gguf.fetch"

    def state(self) -> FileState:
        return self.fetcher.state(self.plan)

    def ended(self) -> FileState:
        self.fetcher.start(self.plan)

        def over() -> FileState | None:
            state = self.state()
            return state if state.there or (state.failure and not state.running) else None

        return eventually(over, what="the end of a fetch", timeout_s=60)


def fetching(server: Sshd, source: str, policy: SourcePolicy | None = None, **more: object) -> Fetching:
    return Fetching(server, source, policy, **more)


# --- allowed addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "64:ff9b::7f00:1"])
def test_nothing_is_sent_to_an_address_that_is_not_public(server: Sshd, files: FileServer, address: str) -> None:
    resolves(server, address)
    ended = fetching(server, files.serve("/m.gguf", File(CONTENT), host="evil.example"), SourcePolicy()).ended()
    assert ended.failure is not None and ended.failure[0] is Reason.REFUSED
    assert address in ended.failure[1] and "evil.example" in ended.failure[1]
    assert files.requests == []


def test_a_name_is_resolved_once_and_that_address_is_dialled(server: Sshd, files: FileServer) -> None:
    # The second resolution of the name gives an address without a server. Only the fake resolver knows the name.
    resolves(server, "127.0.0.1", "127.0.0.9")
    fetched = fetching(server, files.serve("/m.gguf", File(CONTENT), host="files.example"), NAMED)
    assert fetched.ended().there
    assert fetched.path.read_bytes() == CONTENT
    assert {request.headers["Host"] for request in files.requests} == {f"files.example:{files.port}"}


def test_each_redirect_is_judged_before_it_is_followed(server: Sshd, files: FileServer) -> None:
    resolves(server, "127.0.0.1")
    files.serve("/secret", File(CONTENT))
    for host in ("other.example", "127.0.0.1", "[::ffff:127.0.0.1]"):
        url = files.serve("/m.gguf", File(redirect=files.url("/secret", host=host)), host="files.example")
        ended = fetching(server, url, NAMED).ended()
        assert ended.failure is not None and ended.failure[0] is Reason.REFUSED, ended
    assert {request.path for request in files.requests} == {"/m.gguf"}


@pytest.mark.parametrize("location", ["http://me:pw@files.example:{p}/x", "http://127.0.0.1:{p}\\@files.example:{p}/x"])
def test_a_redirect_with_two_readings_is_not_followed(server: Sshd, files: FileServer, location: str) -> None:
    resolves(server, "127.0.0.1")
    files.serve("/x", File(CONTENT))
    url = files.serve("/m.gguf", File(redirect=location.format(p=files.port)), host="files.example")
    ended = fetching(server, url, NAMED).ended()
    assert ended.failure is not None and ended.failure[0] is Reason.REFUSED
    assert "pw" not in ended.failure[1]
    assert {request.path for request in files.requests} == {"/m.gguf"}


def test_networks_that_an_operator_allows_are_asked(server: Sshd, files: FileServer) -> None:
    resolves(server, "10.1.2.3 127.0.0.1")
    policy = SourcePolicy(allowed_remote_hosts=("127.0.0.0/8", "fd00::/8"))
    fetched = fetching(server, files.serve("/m.gguf", File(CONTENT), host="any.example"), policy)
    assert fetched.ended().there


def test_a_proxy_of_the_host_does_not_dial_for_it(server: Sshd, files: FileServer) -> None:
    resolves(server, "127.0.0.1")
    (server.directory / "home" / ".curlrc").write_text('proxy = "http://127.0.0.9:1"\nlocation\n')
    assert fetching(server, files.serve("/m.gguf", File(CONTENT), host="files.example"), NAMED).ended().there


# --- what others see ----------------------------------------------------------------------------------------------


def test_a_signed_address_stands_on_no_command_line_and_in_no_file_that_others_read(
    server: Sshd, files: FileServer
) -> None:
    resolves(server, "127.0.0.1")
    url = files.serve("/m.gguf", File(CONTENT, bytes_per_s=100_000), host="files.example")
    fetched = fetching(server, f"{url}?X-Signature=s3cret", NAMED)
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for process in psutil.process_iter():
                try:
                    seen.add(" ".join(process.cmdline()))
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert fetched.ended().there
    finally:
        done.set()
        watcher.join()
    assert any(line.startswith("curl ") for line in seen)
    assert not [line for line in seen if "s3cret" in line]
    eventually(lambda: not list(fetched.job.glob("run.*")), what="the script to be removed")
    keeping = [path for path in server.store.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert keeping == []


def test_the_job_is_readable_by_its_owner_alone_while_it_runs(server: Sshd, files: FileServer) -> None:
    files.serve("/m.gguf", File(CONTENT, stall=threading.Event()))
    fetched = fetching(server, files.url("/m.gguf"))
    fetched.fetcher.start(fetched.plan)
    (job,) = eventually(lambda: list(fetched.job.glob("run.*")) or None, what="a job", timeout_s=60)
    assert (job.stat().st_mode & 0o777, fetched.job.stat().st_mode & 0o777) == (0o600, 0o700)


# --- only one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("macos", [False, True])
def test_a_fetch_that_died_with_its_machine_is_begun_again(server: Sshd, files: FileServer, macos: bool) -> None:
    if macos:
        with_lockf(server)
    fetched = fetching(server, files.serve("/m.gguf", File(CONTENT)))
    fetched.job.mkdir(parents=True)
    # After a power loss the files exist, and the pid in them belongs to another process.
    (fetched.job / "pid").write_text(f"{psutil.Process().pid}\n")
    (fetched.job / "lock").touch()
    (fetched.job / "run.abandoned").write_text("source='https://x/?sig=old'")
    assert not fetched.state().running
    assert fetched.ended().there
    eventually(lambda: not list(fetched.job.glob("run.*")), what="the script to be removed")


@pytest.mark.parametrize("macos", [False, True])
def test_of_many_that_start_one_fetches_and_its_death_frees_the_lock(
    server: Sshd, files: FileServer, macos: bool
) -> None:
    if macos:
        with_lockf(server)
    files.serve("/m.gguf", File(CONTENT, bytes_per_s=5_000))
    fetched = fetching(server, files.url("/m.gguf"))
    for _ in range(4):
        fetched.fetcher.start(fetched.plan)
    state = eventually(lambda: ((s := fetched.state()).done_bytes and s) or None, what="progress", timeout_s=60)
    assert state.running
    assert len([r for r in files.requests if r.range != "bytes=0-0"]) == 1
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(fetched.job) in " ".join(each.cmdline()):
                each.send_signal(signal.SIGKILL)
    eventually(lambda: not fetched.state().running, what="the lock to be free", timeout_s=60)
    files.files["/m.gguf"].bytes_per_s = None
    assert fetched.ended().there
    assert fetched.path.read_bytes() == CONTENT


# --- how much it takes --------------------------------------------------------------------------------------------


def test_a_body_that_is_longer_than_it_was_said_to_be_is_cut_off(server: Sshd, files: FileServer) -> None:
    url = files.serve("/m.gguf", File(CONTENT, ranges=False, says_length=False))
    fetched = fetching(server, url, size_bytes=50_000)
    ended = fetched.ended()
    assert ended.failure is not None and ended.failure[0] is Reason.SIZE_MISMATCH
    assert not (fetched.job / "part").exists()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_ADDRESSES, min_size=1, max_size=40))
def test_the_script_judges_addresses_as_the_loop_does(addresses: list[str]) -> None:
    policy = SourcePolicy(allowed_remote_hosts=("10.1.0.0/16", "[fd00:1::/32]", "127.0.0.1"))
    function = script("fetch").partition("judged() {")[2].partition("\n}\n")[0]
    plan = FilePlan(source="https://x/y", cache_key="k", file_name="m")
    text = f"{job_text('/m', plan, policy)}host=any.example\njudged() {{{function}\n}}\njudged\n"
    said = subprocess.run(
        ["sh", "-c", text], input="\n".join(addresses) + "\n", capture_output=True, text=True, check=True, timeout=20
    )
    expected = []
    for each in addresses:
        address = ipaddress.ip_address(each)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        if policy.allows("any.example", mapped or address):
            expected.append(each)
    assert said.stdout.split() == expected
