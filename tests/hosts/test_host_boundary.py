"""HostProcesses that other clients create are checked by the same rules: real API server, sshd and agent.

The attacks: a shell by runtime generic, tools by an argument, a library by a variable, another namespace, and processes
as root over SSH. None of them may start unless the host's owner allows it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.client.ssh.connection import SshConnection
from agent.client.ssh.processes import SshProcesses
from agent.contract import ProcessPlan
from agent.sources.source_policy import SourcePolicy
from automation.hosts.ssh_hosts import SshHosts
from kubeapi.client import KubeClient
from kubeapi.kinds import HOST_PROCESSES, HOSTS
from program.runtimes.host_rules import DEFAULT, refusal
from tests.hosts.test_agent_kubernetes import host_process, unique_host
from tests.hosts.test_ssh_loop import ssh_host
from tests.support.agents import TINY, agent, command_plan, llama_plan
from tests.support.controlplane import Api, eventually
from tests.support.definitions import install_crds
from tests.support.sshd import sshd
from tests.support.supervising import SERVER
from tools.localcluster import LocalCluster

KEY = TINY


@pytest.fixture(scope="session")
def hosts_api(api: Api) -> Api:
    install_crds(api)
    return api


def report(api: Api, namespace: str, name: str) -> Any:
    return (api.get(HOST_PROCESSES.path(namespace, name)) or {}).get("status") or {}


def serves(api: Api, namespace: str, name: str) -> bool:
    """Return whether the process has a port and is Starting or Ready. Without a loop, no endpoint is published here."""
    said = report(api, namespace, name)
    return bool(said.get("port")) and said.get("phase") in ("Ready", "Starting")


def refused(api: Api, namespace: str, name: str, what: str) -> None:
    def told() -> bool:
        said = report(api, namespace, name)
        return said.get("reason") == "NotAllowed" and what in said.get("message", "")

    try:
        eventually(lambda: told() or None, what=f"{name} to be refused for {what}", timeout_s=90)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {report(api, namespace, name)}") from None


def allow(api: Api, host: str, said: Any) -> None:
    """Patch what the host allows, and wait until the agent has read it.

    The agent writes its host only after its API answers, so wait for the host, too.
    """
    body = {"spec": {"allow": said}}
    path = HOSTS.path(None, host)
    eventually(lambda: api.get(path), what="the host's object")
    status, answer = api.request("PATCH", path, body, content_type="application/merge-patch+json")
    assert status == 200, answer
    wanted = answer["metadata"]["generation"]
    eventually(
        lambda: ((api.get(path) or {}).get("status") or {}).get("observedGeneration", 0) >= wanted,
        what="the agent to know what is allowed",
    )


@pytest.fixture
def attacked(hosts_api: Api, namespace: str, tmp_path: Path) -> Iterator[dict[str, ProcessPlan]]:
    """The plans of the attacks. The fixture asserts at its end that none of their commands has created a file."""
    yield {
        "shell": command_plan("/bin/sh", "-c", f"touch {tmp_path}/shell; sleep 60"),
        "tools": llama_plan("/none", argv=("llama-server", "--tools", "all"), file=None),
        "disguised": llama_plan("/none", argv=("/bin/sh", "-c", f"touch {tmp_path}/disguised"), file=None),
        "library": llama_plan("/none", argv=("llama-server",), file=None, env={"LD_PRELOAD": "/tmp/x.so"}),
    }
    assert not (tmp_path / "shell").exists()
    assert not (tmp_path / "disguised").exists()


def test_an_agent_starts_nothing_that_its_host_does_not_allow(
    hosts_api: Api, control_plane: LocalCluster, namespace: str, attacked: dict[str, ProcessPlan], tmp_path: Path
) -> None:
    api, host = hosts_api, unique_host(namespace)
    with ExitStack() as stack:
        stack.callback(api.request, "DELETE", HOSTS.path(None, host))
        started = stack.enter_context(
            agent(tmp_path / "store", "--kubeconfig", str(control_plane.kubeconfig), host=host)
        )
        started.start()
        for name, plan in attacked.items():
            host_process(api, namespace, host, plan.model_copy(update={"service": name, "service_name": name}))
        refused(api, namespace, "shell", "runtime `generic`")
        refused(api, namespace, "tools", "flag `--tools`")
        refused(api, namespace, "disguised", "command `/bin/sh`")
        refused(api, namespace, "library", "variable `LD_PRELOAD`")

        # The host's owner allows a command, and it serves. Then the owner allows only another namespace.
        mine = command_plan(sys.executable, "-c", SERVER, "{host}", "{port}", service="mine", service_name="mine")
        allow(api, host, {"runtimes": ["generic"], "commands": [sys.executable]})
        host_process(api, namespace, host, mine)
        eventually(lambda: serves(api, namespace, "mine") or None, what="what is allowed", timeout_s=90)
        refused(api, namespace, "shell", "command `/bin/sh`")
        allow(api, host, {"namespaces": ["another"], "runtimes": ["generic"], "commands": [sys.executable]})
        late = mine.model_copy(update={"service": "late", "service_name": "late"})
        host_process(api, namespace, host, late)
        refused(api, namespace, "late", f"namespace `{namespace}`")
        assert serves(api, namespace, "mine"), "what runs goes on"
        for name in (*attacked, "mine", "late"):
            api.request("DELETE", HOST_PROCESSES.path(namespace, name))
        eventually(lambda: not started.processes() or None, what="all to end", timeout_s=60)
        started.stop()


def test_the_machines_owner_narrows_what_the_cluster_allows(
    hosts_api: Api, control_plane: LocalCluster, namespace: str, attacked: dict[str, ProcessPlan], tmp_path: Path
) -> None:
    api, host = hosts_api, unique_host(namespace)
    (tmp_path / "allow.yaml").write_text("flags: [--slot-save-path]\n")
    with ExitStack() as stack:
        stack.callback(api.request, "DELETE", HOSTS.path(None, host))
        started = stack.enter_context(
            agent(
                tmp_path / "store",
                *("--kubeconfig", str(control_plane.kubeconfig), "--allow", str(tmp_path / "allow.yaml")),
                host=host,
            )
        )
        started.start()
        allow(api, host, {"runtimes": ["*"], "commands": ["*"]})
        name, plan = "shell", attacked["shell"]
        host_process(api, namespace, host, plan.model_copy(update={"service": name, "service_name": name}))
        refused(api, namespace, name, "runtime `generic`")
        started.stop()


def test_over_ssh_the_loop_starts_nothing_that_the_host_does_not_allow(
    hosts_api: Api, control_plane: LocalCluster, namespace: str, attacked: dict[str, ProcessPlan], tmp_path: Path
) -> None:
    api, host = hosts_api, unique_host(namespace)
    client = KubeClient.default(str(control_plane.kubeconfig))
    speaker = SshHosts(client, policy=SourcePolicy(), parallel=1, namespaces=(namespace,), system_namespace=namespace)
    with ExitStack() as stack:
        stack.callback(client.close)
        stack.callback(api.request, "DELETE", HOSTS.path(None, host))
        server = stack.enter_context(sshd(tmp_path / "host"))
        stack.callback(speaker.stop)
        ssh_host(api, host, server)
        for name, plan in attacked.items():
            host_process(api, namespace, host, plan.model_copy(update={"service": name, "service_name": name}))
        speaker.start()
        refused(api, namespace, "shell", "runtime `generic`")
        refused(api, namespace, "tools", "flag `--tools`")
        refused(api, namespace, "library", "variable `LD_PRELOAD`")
        assert not list(server.store.glob("processes/*.json")), "not even the plan is written there"
        assert not server.changing_calls
        for name in attacked:
            api.request("DELETE", HOST_PROCESSES.path(namespace, name))


def test_no_process_runs_as_root_over_ssh_unless_its_owner_allows_it(tmp_path: Path) -> None:
    with sshd(tmp_path / "host") as server:
        if server.user != "root":
            pytest.skip("the tests do not run as root, and so neither does their SSH server")
        plan = llama_plan("/none", argv=("llama-server",), file=None)
        for allowed, reason in ((False, "NotAllowed"), (True, "RuntimeMissing")):
            connection = SshConnection(server.target(allow_root=allowed))
            processes = SshProcesses(
                connection, host="box", refusal=lambda _key, plan: refusal(plan, DEFAULT, namespace="prod")
            )
            told = processes.advance(KEY, plan, 1, processes.list_processes())
            connection.close()
            assert told.reason == reason
            assert ("spec.ssh.allowRoot" in told.message) is not allowed
