"""Plain Pulumi over SSH: the real CLI, a real sshd, a real llama-server.

Covered: a preview that names the steps and changes nothing, create, no change, repair after a change outside of Pulumi,
another host, destroy; an unknown host key; a start that only the host's owner can allow.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi.automation as auto
import pytest

from agent.client.port import ProcessNotFound
from agent.client.ssh.host import SshHost
from agent.contract import ProcessPlan
from components.providers.host_provider import READY_TIMEOUT_S
from tests.hosts.test_host_plugin import HostProcess, Program
from tests.hosts.test_ssh_host import ready
from tests.support.agents import HOST, TINY, TINY_NAME, gone, llama_plan
from tests.support.sshd import Sshd, sshd


@pytest.fixture
def server(tmp_path: Path, llama_server: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "host", binaries=[llama_server]) as made:
        yield made


@pytest.fixture
def stack(tmp_path: Path, pulumi_cli: Path) -> auto.Stack:
    for part in ("state", "work"):
        (tmp_path / part).mkdir()
    return auto.create_or_select_stack(
        stack_name="hosts",
        project_name="herdsman",
        program=lambda: None,
        opts=auto.LocalWorkspaceOptions(
            work_dir=str(tmp_path / "work"),
            pulumi_home=str(tmp_path / "home"),
            pulumi_command=auto.PulumiCommand(root=str(pulumi_cli.parent.parent), skip_version_check=True),
            env_vars={
                "PULUMI_BACKEND_URL": f"file://{tmp_path / 'state'}",
                "PULUMI_CONFIG_PASSPHRASE": "correct horse",
                "PULUMI_SKIP_UPDATE_CHECK": "true",
                "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
        ),
    )


def program(server: Sshd, planned: ProcessPlan, **ssh: Any) -> Program:
    known = server.directory / "known_hosts"
    known.write_text(f"# hosts of the test\n[{server.address}]:{server.port} {server.host_key}\n")
    inputs = {
        "transport": "ssh",
        "ssh": {
            "address": server.address,
            "port": server.port,
            "user": server.user,
            "allowRoot": server.user == "root",
            "identityFile": str(server.user_key),
            "knownHosts": str(known),
            "store": str(server.store),
            **ssh,
        },
        "namespace": "prod",
        "name": TINY_NAME,
        "plan": planned.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    return lambda: HostProcess("tiny", inputs) and None


def up(stack: auto.Stack, run: Program) -> auto.UpResult:
    stack.workspace.program = run
    return stack.up(color="never")


def changes(result: Any) -> dict[str, int]:
    counted = result.summary.resource_changes or {}
    return {str(operation): count for operation, count in counted.items() if operation != "same"}


@pytest.mark.soak
def test_a_process_over_ssh_is_previewed_created_kept_repaired_and_destroyed(
    server: Sshd, stack: auto.Stack, tiny_model: Path
) -> None:
    wanted = llama_plan(tiny_model)
    stack.workspace.program = program(server, wanted)
    said: list[str] = []
    stack.preview(color="never", on_output=said.append)
    shown = "\n".join(said)
    assert f"On the host of {TINY}" in shown and "starts it" in shown
    assert not server.store.exists() and server.changing_calls == []

    up(stack, program(server, wanted))
    host = SshHost(server.target(), host=HOST)
    report = host.get(TINY).report
    assert report.ready, "up returns when the process serves"
    calls = server.changing_calls
    assert changes(up(stack, program(server, wanted))) == {}
    assert server.changing_calls == calls

    host.put(TINY, llama_plan(tiny_model, extra=("--alias", "by-hand")))
    ready(host, TINY, but=report.pid)  # until then this client continues its own plan
    assert changes(stack.refresh(color="never")) == {"update": 1}
    assert changes(up(stack, program(server, wanted))) == {"update": 1}
    repaired = host.get(TINY)
    assert repaired.plan == wanted and repaired.report.ready

    # The state contains paths and no secret.
    assert "PRIVATE KEY" not in str(stack.export_stack().deployment)

    unknown = server.directory / "none"
    unknown.write_text("elsewhere ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0VSuE0nGHYnZ0vTTGzZrXhEnHbDmJBVzYJ5mYhVQ0d\n")
    longer = llama_plan(tiny_model, extra=("--alias", "longer"))
    with pytest.raises(auto.CommandError, match="HostKeyUnknown"):
        up(stack, program(server, longer, knownHosts=str(unknown)))
    assert host.get(TINY).plan == wanted

    stack.destroy(color="never")
    with pytest.raises(ProcessNotFound):
        host.get(TINY)
    assert repaired.report.pid is not None and gone(repaired.report.pid, timeout_s=1)
    host.close()


def test_a_start_that_only_the_owner_can_allow_ends_the_update_at_once(
    server: Sshd, stack: auto.Stack, tiny_model: Path
) -> None:
    if server.user != "root":
        pytest.skip("sshd of the tests runs as another user than root here; run the tests as root")
    began = time.monotonic()
    with pytest.raises(auto.CommandError, match="allowRoot"):
        up(stack, program(server, llama_plan(tiny_model), allowRoot=False))
    assert time.monotonic() - began < READY_TIMEOUT_S / 4, "the update does not wait for a process that never starts"
    stack.destroy(color="never")
