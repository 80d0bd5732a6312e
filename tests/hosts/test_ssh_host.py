"""A host without an agent: real sshd, and a real llama-server under a fake service manager that behaves as documented.

Covered: the life cycle of a process, unchanged plans, previews that change nothing; each cause of a refused connection
with its message; a bastion; faults on the way: killed processes, cut connections, an interrupted download, sudo.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.client.port import HostError, ProcessNotFound, ProcessState
from agent.client.ssh import observed
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.errors import AuthenticationFailed, CommandRefused, HostKeyRefused, SshUnreachable, SudoRefused
from agent.client.ssh.host import SshHost
from agent.client.ssh.keys import own_keys
from agent.client.ssh.layout import LAUNCH, Layout, Record, unit_name
from agent.client.ssh.machine import SshMachine
from agent.client.ssh.observed import ObservedProcess
from agent.client.ssh.processes import SshProcesses
from agent.client.ssh.scripts import script
from agent.client.ssh.target import SshServer, SshTarget
from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason
from agent.sources.source_policy import SourcePolicy
from agent.steps import launchd
from agent.steps.machine import MachineError, NotPermitted
from agent.steps.service import Service
from agent.steps.step import State
from tests.hosts.test_agent_drain import TOKENS, LongAnswer
from tests.hosts.test_agent_drain import plan as long_plan
from tests.support.agents import HOST, TINY, gone, kill, llama_plan
from tests.support.booted_systemd import booted
from tests.support.controlplane import eventually
from tests.support.model_server import File, FileServer
from tests.support.netns import network
from tests.support.sshd import FAKES, QUICK, Sshd, make_key, sshd

KEY = TINY
NAMED = KEY.replace("/", ".")
UNIT = f"herdsman-process-{NAMED}"


@pytest.fixture
def server(tmp_path: Path, llama_server: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "host", binaries=[llama_server]) as made:
        yield made


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server for tests of the connection alone."""
    with sshd(tmp_path_factory.mktemp("ssh") / "host") as made:
        yield made


@pytest.fixture
def host(server: Sshd) -> Iterator[SshHost]:
    made = SshHost(server.target(), host=HOST)
    yield made
    made.close()


def ready(host: SshHost, key: str = KEY, *, but: int | None = None, timeout_s: float = 60) -> ProcessState:
    """Wait until a process serves, with another pid than `but`; return its state."""
    seen: list[Any] = []

    def look() -> ProcessState | None:
        try:
            state = host.get(key)
        except HostError as error:
            seen[:] = [error]
            return None
        seen[:] = [state.report]
        assert state.report.phase is not ProcessPhase.FAILED, state.report
        report = state.report
        return state if report.ready and report.phase is ProcessPhase.READY and report.pid != but else None

    try:
        return eventually(look, what=f"{key} to serve", timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last: {seen}") from None


def restarts(server: Sshd) -> int:
    return sum(call.startswith("restart") or " restart " in call for call in server.calls)


def answers(state: ProcessState) -> bool:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode()
    url = f"http://{state.report.address}:{state.report.port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bool(json.load(answer)["choices"])


def everything(directory: Path) -> list[str]:
    return sorted(str(each) for part in ("home", "systemd") for each in (directory / part).rglob("*"))


def test_a_process_from_nothing_to_nothing(host: SshHost, server: Sshd, tiny_model: Path) -> None:
    plan = llama_plan(tiny_model, env={"SOME": "words with $ and %"})
    before = everything(server.directory)
    steps = host.changes(KEY, plan)
    assert {step.state for step in steps} == {State.OK, State.WOULD_CHANGE}
    assert steps[2].title.startswith("model file") and steps[2].state is State.OK, "a file of the host's own"
    assert everything(server.directory) == before, "a preview touches nothing"
    assert server.changing_calls == []

    host.put(KEY, plan)
    first = ready(host)
    assert answers(first)
    assert psutil.Process(first.report.pid).environ()["SOME"] == "words with $ and %"

    # The same plan again: nothing is changed, and no second completion is requested.
    calls = server.changing_calls
    assert {step.state for step in host.changes(KEY, plan)} == {State.OK}
    assert host.put(KEY, plan).generation == first.generation
    time.sleep(1.0)
    assert ready(host).report.pid == first.report.pid
    assert server.changing_calls == calls

    # Another client that connects later sees the same state and changes nothing.
    other = SshHost(server.target(), host=HOST)
    told = other.report()
    other.close()
    assert told.processes[KEY].ready and told.processes[KEY].pid == first.report.pid
    assert told.facts.runtimes["llama-server"]
    assert told.facts.memory_bytes == psutil.virtual_memory().total

    # Killed: the service manager starts it again, on its port.
    assert first.report.pid is not None
    kill(first.report.pid)
    again = ready(host, but=first.report.pid)
    assert again.report.port == first.report.port and again.report.restarts > first.report.restarts

    # Another plan: replaced once, on the same port.
    longer = llama_plan(tiny_model, extra=("--alias", "renamed"))
    would = [step for step in host.changes(KEY, longer) if step.state is State.WOULD_CHANGE]
    assert any("--alias renamed" in step.diff for step in would)
    # A killed process may be started by its service manager, or before that by Herdsman.
    before = restarts(server)
    host.put(KEY, longer)
    changed = ready(host, but=again.report.pid)
    assert changed.plan == longer and changed.report.port == first.report.port
    assert restarts(server) == before + 1

    host.delete(KEY)
    host.delete(KEY)
    eventually(lambda: _is_gone(host) or None, what="the process to be gone", timeout_s=60)
    assert changed.report.pid is not None and gone(changed.report.pid, timeout_s=1)
    left = [each for each in everything(server.directory) if NAMED in each]
    assert left == []
    assert host.plan().processes == {}


def _is_gone(host: SshHost, key: str = KEY) -> bool:
    try:
        host.get(key)
    except ProcessNotFound:
        return True
    return False


def test_a_request_under_way_ends_before_its_process_is_replaced(host: SshHost, server: Sshd, tiny_model: Path) -> None:
    # Without a shifting context the model's own context, 2048 tokens, ends the longer answers.
    longer = ("-c", "32768", "--context-shift")
    host.put(KEY, long_plan(tiny_model, *longer))
    first = ready(host)
    for tokens in (TOKENS, 4 * TOKENS):
        answer = LongAnswer(first.report, tokens=tokens)
        host.put(KEY, long_plan(tiny_model, *longer, "--alias", f"renamed-{tokens}"))

        def stopping(answer: LongAnswer = answer) -> ProcessState | None:
            state = host.get(KEY)
            answered = not answer.thread.is_alive()
            return state if state.report.phase is ProcessPhase.STOPPING or answered else None

        told = eventually(stopping, what="the drain").report
        if told.phase is ProcessPhase.STOPPING and answer.thread.is_alive():
            break
        # On a busy machine the answer may end before the drain is seen. The next one is longer.
        first = ready(host, but=first.report.pid)
    assert answer.thread.is_alive(), "the longest answer is too short for this test"
    assert (told.reason, told.ready) == (ProcessReason.REPLACING, False)
    assert answer.whole(), answer.error or answer.pieces[-1]
    assert answer.pieces[-1]["tokens_predicted"] == tokens
    assert ready(host, but=first.report.pid).report.pid != first.report.pid


def test_a_process_that_cannot_start_says_why(host: SshHost, server: Sshd, tiny_model: Path) -> None:
    broken = server.directory / "home" / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing")

    def told(plan: ProcessPlan, reason: str, words: str) -> None:
        host.put(KEY, plan)

        def look() -> bool | None:
            report = host.get(KEY).report
            return (report.reason == reason and words in report.message and not report.ready) or None

        eventually(look, what=f"{reason} with {words}", timeout_s=60)

    told(llama_plan(tiny_model, extra=("--no-such-flag",)), ProcessReason.RUNTIME_TOO_OLD, "--no-such-flag")
    nothing = ("no-such-engine", "--port", "{port}")
    told(llama_plan(tiny_model, argv=nothing), ProcessReason.RUNTIME_MISSING, "no-such-engine")
    told(llama_plan("/nowhere.gguf"), "SourceNotFound", "/nowhere.gguf")
    told(llama_plan("ftp://x/y"), "FilePlanInvalid", "ftp://x/y")
    told(llama_plan(broken), ProcessReason.EXITED, "its last lines")
    host.put(KEY, llama_plan(tiny_model))
    assert answers(ready(host))


@pytest.mark.soak
def test_a_file_is_fetched_on_through_a_broken_connection(tmp_path: Path, llama_server: Path, tiny_model: Path) -> None:
    content = tiny_model.read_bytes()
    with network() as net, FileServer(address=net.gateway) as files:
        there = net.host("d")
        url = files.serve(
            "/tiny.gguf", File(content, bytes_per_s=len(content) / 16, cut_after=len(content) // 3, cuts=1)
        )
        right = FilePlan(source=url, cache_key="k1", file_name="tiny.gguf", sha256=hashlib.sha256(content).hexdigest())
        with sshd(tmp_path / "host", address=there.address, prefix=there.prefix, binaries=[llama_server]) as server:
            refused = SshHost(server.target(), host=HOST, policy=SourcePolicy())
            refused.put(KEY, llama_plan(url, file=right))
            told = eventually(lambda: refused.get(KEY).report.reason or None, what="a refusal", timeout_s=60)
            assert told == "SourceRefused", "a private address that nobody allowed"
            refused.close()

            host = SshHost(server.target(), host=HOST)
            host.put(KEY, llama_plan(url, file=right))
            report = eventually(lambda: ((r := host.get(KEY).report).downloaded_bytes and r) or None, what="progress")
            assert report.phase is ProcessPhase.DOWNLOADING and report.total_bytes == len(content)
            server.stop()
            with pytest.raises(SshUnreachable):
                eventually(lambda: host.get(KEY) and None, what="the cut to be noticed")
            server.start()
            assert ready(host).report.address == there.address
            assert (server.store / "models/k1/tiny.gguf").read_bytes() == content
            assert files.sent("/tiny.gguf") < 2 * len(content), "it went on where it was cut"

            wrong = right.model_copy(update={"cache_key": "k2", "sha256": "0" * 64})
            host.put("prod/other", llama_plan(url, file=wrong))
            told = eventually(lambda: host.get("prod/other").report.reason or None, what="a sum", timeout_s=60)
            assert told == "ChecksumMismatch"
            assert not (server.store / "models/k2/tiny.gguf").exists()
            host.close()


def test_a_real_systemd_keeps_the_process(tmp_path: Path, llama_server: Path, tiny_model: Path) -> None:
    with (
        booted(tmp_path / "boot") as systemd,
        sshd(tmp_path / "h", prefix=tuple(systemd.command()), binaries=[llama_server], manager=None) as server,
    ):
        host = SshHost(server.target(), host=HOST)
        host.put(KEY, llama_plan(tiny_model, env={"SOME": 'a "quoted" $word with 100%'}))
        first = ready(host)
        assert answers(first)
        shown = systemd.run("systemctl", "show", f"{UNIT}.service", "--property=MainPID,NRestarts")
        assert f"MainPID={first.report.pid}" in shown.stdout
        assert {step.state for step in host.changes(KEY, host.get(KEY).plan)} == {State.OK}
        systemd.run("kill", "-9", str(first.report.pid))
        assert ready(host, but=first.report.pid).report.restarts == first.report.restarts + 1
        host.delete(KEY)
        eventually(lambda: _is_gone(host) or None, what="the process to be gone", timeout_s=60)
        assert "not-found" in systemd.run("systemctl", "show", UNIT, "-pLoadState").stdout
        host.close()


def test_the_jobs_of_a_mac_are_read(tmp_path: Path) -> None:
    """The script that lists processes, with a fake launchctl that behaves as documented and runs its jobs."""
    tools, store = tmp_path / "bin", tmp_path / "store"
    tools.mkdir()
    (tools / "launchctl").symlink_to(FAKES / "launchctl")
    layout = Layout(str(store))
    Path(layout.processes).mkdir(parents=True)
    record = Record(key=KEY, plan=llama_plan("/m.gguf"), generation=2, port=18000)
    Path(layout.record(KEY)).write_text(record.model_dump_json(by_alias=True))
    service = Service(name=unit_name(KEY), description="", argv=("/bin/sleep", "60"), environment={LAUNCH: "cafe"})
    job = tmp_path / "job.plist"
    job.write_bytes(launchd.plist(service))
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def look() -> ObservedProcess:
        command = ["sh", "-c", script("look"), "sh", str(store), "launchd", "system", str(tmp_path)]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return observed.read_processes(told)[0][KEY]

    assert not look().runs
    subprocess.run(["launchctl", "bootstrap", "system", str(job)], env=environment, check=True)
    try:
        seen = eventually(lambda: s if (s := look()).runs else None, what="the job", timeout_s=60)
        assert seen.launch == "cafe" and seen.record == record
        assert psutil.Process(seen.pid).name() == "sleep"
    finally:
        subprocess.run(["launchctl", "bootout", f"system/{service.label}"], env=environment, check=False)
    eventually(lambda: not look().runs or None, what="the job to be gone", timeout_s=60)


# --- connecting ---------------------------------------------------------------------------------------------------


def test_a_host_key_is_never_learnt(plain_server: Sshd, tmp_path: Path) -> None:
    same_type, other_type = make_key(tmp_path / "a"), make_key(tmp_path / "b", kind="ecdsa")
    shown = own_keys([plain_server.host_key]).keys[0].fingerprint
    for known, reason in ((same_type, "HostKeyChanged"), (other_type, "HostKeyUnknown")):
        server = dataclasses.replace(plain_server.target().server, known_hosts=own_keys([known]))
        with pytest.raises(HostKeyRefused) as caught:
            SshConnection(plain_server.target(server=server)).run(["true"])
        assert caught.value.reason == reason
        assert shown in caught.value.message and caught.value.fingerprint == shown
    revoked = own_keys([f"@revoked * {plain_server.host_key}", same_type])
    server = dataclasses.replace(plain_server.target().server, known_hosts=revoked)
    with pytest.raises(HostKeyRefused, match="revoked"):
        SshConnection(plain_server.target(server=server)).run(["true"])
    # One matching key of several is enough, whatever key type the server prefers.
    both = own_keys([other_type, same_type, f"old-name,10.0.0.1 {plain_server.host_key} by hand"])
    server = dataclasses.replace(plain_server.target().server, known_hosts=both)
    assert SshConnection(plain_server.target(server=server)).run(["true"]).code == 0


def test_only_the_given_key_opens_the_door(plain_server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    # The files of the user's ~/.ssh would open the connection, or redirect it.
    (home / ".ssh" / "id_ed25519").write_bytes(plain_server.user_key.read_bytes())
    (home / ".ssh" / "config").write_text("Host *\n  User nobody\n  Port 1\n")
    monkeypatch.setenv("HOME", str(home))
    make_key(tmp_path / "stranger")
    with pytest.raises(AuthenticationFailed, match="authorized_keys") as caught:
        SshConnection(plain_server.target(identity_file=str(tmp_path / "stranger"))).run(["true"])
    assert caught.value.reason == "AuthenticationFailed"
    text = plain_server.user_key.read_text()
    from_memory = plain_server.target(identity_file="", identity=text)
    assert text not in repr(from_memory)
    assert SshConnection(from_memory).run(["true"]).code == 0


def test_a_key_that_cannot_be_used_is_named(plain_server: Sshd, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    rubbish, open_to_all = tmp_path / "rubbish", tmp_path / "open"
    for each, mode in ((rubbish, 0o600), (open_to_all, 0o644)):
        each.write_text("no key")
        each.chmod(mode)
    for path, words in (
        (locked, "passphrase"),
        (tmp_path / "none", "cannot read"),
        (rubbish, "no private key"),
        (open_to_all, "chmod 600"),
    ):
        with pytest.raises(AuthenticationFailed, match=words) as caught:
            SshConnection(plain_server.target(identity_file=str(path))).run(["true"])
        assert caught.value.reason == "IdentityUnusable"
        assert str(path) in caught.value.message


def test_who_does_not_answer_is_unreachable_in_time(plain_server: Sshd) -> None:
    nobody = dataclasses.replace(plain_server.target().server, port=1)
    with pytest.raises(SshUnreachable, match=r"127\.0\.0\.1:1"):
        SshConnection(plain_server.target(server=nobody)).run(["true"])
    connection = SshConnection(plain_server.target(timeouts=QUICK))
    assert connection.run(["true"]).code == 0
    plain_server.freeze()
    try:
        began = time.monotonic()
        with pytest.raises((SshUnreachable, CommandRefused)):
            connection.run(["true"], timeout_s=2.0)
        with pytest.raises(SshUnreachable):
            SshConnection(plain_server.target(timeouts=QUICK)).run(["true"])
        assert time.monotonic() - began < 15
    finally:
        plain_server.thaw()
    assert eventually(lambda: _runs(connection) or None, what="the connection to be made again", timeout_s=60)


def _runs(connection: SshConnection) -> bool:
    try:
        return connection.run(["true"]).code == 0
    except HostError:
        return False


def test_one_connection_serves_many_commands_and_is_made_again(plain_server: Sshd) -> None:
    connection = SshConnection(plain_server.target())
    said = connection.run(["sh", "-c", "cat; echo err >&2; exit 7"], stdin=b"x" * 300_000)
    assert (said.code, len(said.stdout), said.stderr) == (7, 300_000, b"err\n")
    assert connection.run(["printf", "%s", "it's $HOME; `true`"]).stdout == b"it's $HOME; `true`"
    with pytest.raises(CommandRefused) as caught:
        connection.shell("echo last words >&2; exit 3", what="a script")
    assert "a script" in caught.value.message and "ended with 3: last words" in caught.value.message
    unread = connection.run(["sh", "-c", "echo enough >&2; exit 3"], stdin=b"x" * 8_000_000)
    assert (unread.code, unread.stderr) == (3, b"enough\n"), "a command may end before it has read its input"
    with pytest.raises(CommandRefused, match=r"had not ended after 0\.5 s"):
        connection.run(["sh", "-c", "sleep 5", "sh", "--password=hush"], timeout_s=0.5)
    assert connection.opened == 1
    plain_server.cut_connections()
    eventually(lambda: _runs(connection) or None, what="another connection", timeout_s=60)
    assert connection.opened == 2
    connection.close()


def test_sudo_is_asked_only_where_it_may_and_its_no_is_told(plain_server: Sshd) -> None:
    connection = SshConnection(plain_server.target(sudo=True))
    plain_server.sudo('echo "sudo: a password is required" >&2; exit 1')
    with pytest.raises(SudoRefused, match="NOPASSWD"):
        connection.run(["id"], sudo=True)
    plain_server.sudo('[ "$1 $2" = "-n --" ] || exit 9; shift 2; exec "$@"')
    assert connection.run(["id", "-u"], sudo=True).code == 0
    assert connection.run(["false"], sudo=True).code == 1, "a command's own no is not sudo's"
    machine = SshMachine(SshConnection(plain_server.target()))
    if not machine.facts.is_root:
        with pytest.raises(NotPermitted, match="only root may"):
            machine.write("/etc/herdsman-test", b"", mode=0o600, sudo=True)


def test_a_machine_over_ssh_has_files(plain_server: Sshd) -> None:
    machine = SshMachine(SshConnection(plain_server.target()))
    path = str(plain_server.directory / "home" / "it's a file")
    assert machine.read(path) is None and machine.stat(path) is None
    content = bytes(range(256)) * 100
    machine.write(path, content, mode=0o640)
    there = machine.stat(path)
    assert there is not None and (there.kind, there.mode, there.size) == ("file", 0o640, len(content))
    assert machine.read(path) == content
    machine.make_directory(path + "s/below", mode=0o700)
    made = machine.stat(path + "s/below")
    assert made is not None and (made.kind, made.mode) == ("directory", 0o700)
    machine.remove(path)
    machine.remove(path)
    assert machine.stat(path) is None
    assert machine.run(["no-such-command"]).code == 127
    assert [p.name for p in (plain_server.directory / "home").iterdir() if "herdsman-new" in p.name] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away; run the tests as root")
def test_root_over_ssh_follows_no_link_that_another_user_made(plain_server: Sshd, tmp_path: Path) -> None:
    connection = SshConnection(plain_server.target())
    machine = SshMachine(connection)
    home, precious = tmp_path / "u", tmp_path / "precious"
    precious.mkdir(mode=0o755)
    (precious / "kept").write_text("kept")
    home.mkdir()
    (home / "store").symlink_to(precious)
    (home / "up").symlink_to("..")
    for path in (home, home / "store", home / "up"):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    for path in ("store", "store/models", "up/precious", "up/made"):
        with pytest.raises(MachineError, match="symbolic link"):
            machine.make_directory(str(home / path), mode=0o700, owner="nobody")
    for name in ("store/new", "up/precious/new"):
        with pytest.raises(MachineError, match="symbolic link"):
            machine.write(str(home / name), b"x", mode=0o644)
    with pytest.raises(MachineError, match="symbolic link"):
        machine.remove(str(home / "store/kept"))
    with pytest.raises(MachineError, match="others may change"):
        machine.write(str(home / "given"), b"x", mode=0o644, owner="root")
    assert (precious.stat().st_uid, precious.stat().st_mode & 0o777) == (0, 0o755)
    assert sorted(path.name for path in precious.iterdir()) == ["kept"]

    machine.make_directory(str(home / "real/models"), mode=0o750, owner="nobody")
    assert ((home / "real/models").stat().st_uid, (home / "real/models").stat().st_mode & 0o777) == (65534, 0o750)
    assert (home / "real").stat().st_uid == 0
    machine.write(str(home / "file"), b"x", mode=0o640)
    assert ((home / "file").read_bytes(), (home / "file").stat().st_mode & 0o777) == (b"x", 0o640)
    (home / "link").symlink_to(precious)
    machine.write(str(home / "link"), b"y", mode=0o644)
    assert not (home / "link").is_symlink() and (home / "link").read_bytes() == b"y"
    machine.remove(str(home / "link"))
    machine.remove(str(home / "none/at/all"))
    # Links that root created are followed, as /var is on macOS.
    (tmp_path / "short").symlink_to("u")
    machine.make_directory(str(tmp_path / "short/more"), mode=0o755, owner="nobody")
    assert (home / "more").stat().st_uid == 65534
    connection.close()


def test_a_bastion_is_checked_like_a_host(tmp_path: Path) -> None:
    with network() as net:
        outer, inner = net.host("e"), net.host("f")
        with (
            sshd(tmp_path / "bastion", address=outer.address, prefix=outer.prefix) as bastion,
            sshd(tmp_path / "host", address=inner.address, prefix=inner.prefix) as server,
        ):
            # One key for both, as users have it.
            (bastion.directory / "authorized_keys").write_text((server.directory / "authorized_keys").read_text())
            through = bastion.target().server
            connection = SshConnection(server.target(bastion=through))
            assert connection.run(["true"]).code == 0
            assert f"from {outer.address}" in server.log, "it came by way of the bastion"
            stranger = dataclasses.replace(through, known_hosts=own_keys([make_key(tmp_path / "k")]))
            with pytest.raises(HostKeyRefused, match=outer.address.replace(".", r"\.")):
                SshConnection(server.target(bastion=stranger)).run(["true"])
            beyond: SshTarget = server.target(
                bastion=through, server=SshServer(inner.address, "root", server.target().server.known_hosts, 9)
            )
            with pytest.raises(SshUnreachable):
                SshConnection(beyond).run(["true"])
            connection.close()


def test_the_owner_of_a_record_is_not_asked_twice(server: Sshd, tiny_model: Path) -> None:
    """A step that was interrupted between the unit and its start is completed by the next run of any client."""
    # The port follows from the key, and tests in other processes use hosts on this machine, too.
    key = f"{KEY}-{os.getpid()}"
    plan: ProcessPlan = llama_plan(tiny_model)
    connection = SshConnection(server.target())
    processes = SshProcesses(connection, host=HOST)
    processes.write(key, plan, 1, processes.list_processes())
    assert processes.list_processes()[key].record.plan == plan and not processes.list_processes()[key].runs
    port = processes.list_processes()[key].record.port
    connection.close()
    later = SshHost(server.target(), host=HOST)
    later.put(key, plan)
    assert ready(later, key).report.port == port
    later.close()
