"""Records of processes over SSH, read back through real shells: each argument arrives with all its characters."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.client.port import ProcessNotFound
from agent.client.ssh import observed
from agent.client.ssh.host import SshHost
from agent.client.ssh.layout import LAUNCH, Layout, Record, unit_name
from agent.client.ssh.observed import ObservedProcess
from agent.client.ssh.scripts import script
from agent.steps import launchd, systemd
from agent.steps.service import Service
from tests.hosts.test_ssh_host import KEY, ready
from tests.support.agents import HOST, gone, llama_plan
from tests.support.controlplane import eventually
from tests.support.sshd import FAKES, Sshd, sshd

AWKWARD = (
    r"\.ffn_.*_exps\.=CPU",
    "tab\there",
    "two\nlines",
    r"\t\n\0101\c\e",
    "$HOME ${PATH} $(id) `id`",
    "\"double\" 'single'",
    "Grüße 漢字 🐑",
    # Python splits lines at these characters, and JSON does not escape them.
    "next\u0085line\u2028separator\u2029paragraph",
    "  spaces  ",
    "-n",
)
SHELLS = {
    "dash": 'exec dash "$@"',
    "bash": 'exec bash "$@"',
    # /bin/sh on macOS is a bash whose echo interprets escapes.
    "bash as on macOS": 'exec bash --posix -O xpg_echo "$@"',
    "busybox": 'exec busybox sh "$@"',
}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program `sh` that is the shell of a host."""
    made = tmp_path / "sh"
    made.write_text(f"#!/bin/bash\n{SHELLS[request.param]}\n")
    made.chmod(0o755)
    return made


@pytest.fixture
def server(tmp_path: Path, llama_server: Path, shell: Path) -> Iterator[Sshd]:
    """A host with this shell."""
    with sshd(tmp_path / "host", binaries=[llama_server, shell]) as made:
        yield made


def record_with(*arguments: str) -> Record:
    plan = llama_plan("/m.gguf")
    return Record(key=KEY, plan=plan.model_copy(update={"argv": (*plan.argv, *arguments)}), generation=2, port=18000)


def look(
    shell: Path, store: Path, units: Path, manager: str, tools: Path
) -> tuple[dict[str, ObservedProcess], tuple[str, ...]]:
    text, arguments = script("look"), [str(store), manager, "system", str(units)]
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(store.parent), "LC_ALL": "C"}
    told = subprocess.run([shell, "-c", text, "sh", *arguments], env=environment, capture_output=True, check=True)
    return observed.read_processes(told.stdout.decode())


def written(record: Record, tmp_path: Path) -> Path:
    """Write a record into a store as Herdsman does; return the store."""
    store = tmp_path / "store"
    layout = Layout(str(store))
    Path(layout.processes).mkdir(parents=True)
    Path(layout.record(record.key)).write_text(record.model_dump_json(by_alias=True))
    return store


def with_tool(tmp_path: Path, name: str) -> Path:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / name).symlink_to(FAKES / name)
    return tools


@pytest.mark.parametrize("shell", ["dash", pytest.param("bash as on macOS", marks=pytest.mark.soak)], indirect=True)
def test_a_process_with_awkward_arguments_is_started_once_and_can_be_removed(server: Sshd, tiny_model: Path) -> None:
    plan = llama_plan(tiny_model)
    plan = plan.model_copy(update={"argv": (*plan.argv, "--alias", "".join(AWKWARD))})
    host = SshHost(server.target(), host=HOST)
    try:
        host.put(KEY, plan)
        first = ready(host)
        assert first.plan == plan
        calls = server.changing_calls
        time.sleep(1.5)
        assert ready(host).report.pid == first.report.pid
        assert host.put(KEY, plan).generation == first.generation
        assert server.changing_calls == calls, "nothing is started again"

        host.delete(KEY)
        assert first.report.pid is not None
        eventually(lambda: _is_gone(host) or None, what="the process to be gone", timeout_s=60)
        assert gone(first.report.pid, timeout_s=5)
    finally:
        host.close()


@pytest.mark.parametrize("argument", AWKWARD)
def test_a_record_arrives_as_it_was_written(shell: Path, tmp_path: Path, argument: str) -> None:
    record = record_with(argument)
    store = written(record, tmp_path)
    seen, unread = look(shell, store, tmp_path, "systemd", with_tool(tmp_path, "systemctl"))
    assert seen[KEY].record == record
    assert unread == ()


def test_a_record_that_has_several_lines_is_read(shell: Path, tmp_path: Path) -> None:
    record = record_with(*AWKWARD)
    store = written(record, tmp_path)
    Path(Layout(str(store)).record(KEY)).write_text(record.model_dump_json(by_alias=True, indent=2) + "\n")
    seen, _ = look(shell, store, tmp_path, "systemd", with_tool(tmp_path, "systemctl"))
    assert seen[KEY].record == record


@pytest.mark.parametrize("manager", ["systemd", "launchd"])
def test_a_look_finds_by_which_plan_a_unit_was_installed(shell: Path, tmp_path: Path, manager: str) -> None:
    """If the plan of a launchd job were not found, each pass would restart the job."""
    store = written(record_with(), tmp_path)
    tools = with_tool(tmp_path, "systemctl" if manager == "systemd" else "launchctl")
    environment = {LAUNCH: "0123456789abcdef", "AAA": "HERDSMAN_LAUNCH=x\n<key>", "ZZZ": "z"}
    service = Service(
        name=unit_name(KEY), description="", argv=("/bin/sleep", "60", *AWKWARD[:2]), environment=environment
    )
    if manager == "systemd":
        (tmp_path / f"{service.name}.service").write_text(systemd.unit_text(service))
    else:
        (tmp_path / f"{service.label}.plist").write_bytes(launchd.plist(service))
    seen, _ = look(shell, store, tmp_path, manager, tools)
    assert seen[KEY].installed == "0123456789abcdef"
    assert seen[KEY].unit


def _is_gone(host: SshHost) -> bool:
    try:
        host.get(KEY)
    except ProcessNotFound:
        return True
    return False
