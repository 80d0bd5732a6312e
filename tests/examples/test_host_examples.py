"""The examples for hosts, with real agents or a real sshd in network namespaces, and with real llama-servers.

A tiny model replaces the large ones, and the addresses and keys of the test's network are filled in. The rest of an
example is unchanged.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support.agents import agent
from tests.support.loop import (
    LoopProcess,
    await_condition,
    deployed,
    eventually,
    find,
    forget_hosts,
    grant_loop_rights,
    install_crds,
    loop_process,
)
from tests.support.netns import Network, network
from tests.support.sshd import sshd
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.hosts, pytest.mark.soak]

StartAgent = Callable[..., None]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def client(control_plane: LocalCluster) -> Iterator[KubeClient]:
    administrator = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(administrator)
    forget_hosts(administrator)
    yield administrator
    administrator.close()


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture(scope="module")
def loop(
    client: KubeClient,
    control_plane: LocalCluster,
    tiny: Path,
    net: Network,
    pulumi_cli: Path,
    llama_server: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LoopProcess]:
    """A loop with the rights of docs/install only."""
    directory = tmp_path_factory.mktemp("loop")
    kubeconfig = grant_loop_rights(client, control_plane, directory / "kubeconfig")
    with loop_process(kubeconfig, directory, f"--allowed-host-path-roots={tiny.parent}") as running:
        yield running


@pytest.fixture
def start_agent(net: Network, control_plane: LocalCluster, tiny: Path, tmp_path: Path) -> Iterator[StartAgent]:
    """Start the agent of a host that an example names, on a separate machine."""
    with ExitStack() as stack:

        def start(host: str, *arguments: str) -> None:
            machine = net.host(host)
            kubeconfig = net.kubeconfig(control_plane.kubeconfig, tmp_path / f"{host}.kubeconfig")
            options = (
                *("--kubeconfig", str(kubeconfig), "--address", machine.address),
                *("--allowed-host-path-roots", str(tiny.parent)),
            )
            made = agent(tmp_path / host, *options, *arguments, host=host, prefix=machine.prefix)
            running = stack.enter_context(made)
            running.run_in_background()

        yield start


@pytest.fixture
def apply(client: KubeClient, namespace: str, tiny: Path) -> Iterator[Callable[..., None]]:
    """A function that applies an example with the tiny model; its Hosts are deleted after the test."""
    forget_hosts(client)
    hosts: list[str] = []

    def applied(example: str, **ssh: Any) -> None:
        for path in sorted((ROOT / "examples" / example).glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                if document["kind"] == "Model":
                    document["spec"]["source"] = f"file://{tiny}"
                if document["kind"] == "Host":
                    hosts.append(document["metadata"]["name"])
                    if document["metadata"]["name"].startswith("mac-"):
                        # This machine is no Mac, so the test sets the label that an agent on a Mac would set.
                        document["metadata"].setdefault("labels", {})["herdsman.dev/accelerator"] = "metal"
                    if ssh:
                        document["spec"]["address"] = ssh["address"]
                        document["spec"]["ssh"].update(ssh["ssh"])
                kind = client.mapping(document["apiVersion"], document["kind"])
                client.apply(kind, namespace if kind.namespaced else None, document, field_manager="kubectl")

    yield applied
    for service in client.list(kinds.INFERENCE_SERVICES, namespace)["items"]:
        client.delete(kinds.INFERENCE_SERVICES, namespace, service["metadata"]["name"])
    eventually(lambda: not client.list(kinds.HOST_PROCESSES, namespace)["items"], what="the processes to go")
    for host in hosts:
        client.delete(kinds.HOSTS, None, host)


def ready(client: KubeClient, namespace: str, name: str) -> None:
    await_condition(client, namespace, name, "Ready", "True", timeout_s=90)


def endpoints(client: KubeClient, namespace: str, service: str) -> list[str]:
    """Return the ready addresses of a Service, each with its port."""
    slices = client.list(kinds.ENDPOINT_SLICES, namespace, label_selector=f"kubernetes.io/service-name={service}")
    return sorted(
        f"{endpoint['addresses'][0]}:{each['ports'][0]['port']}"
        for each in slices["items"]
        for endpoint in each["endpoints"]
        if endpoint["conditions"]["ready"]
    )


def post(address: str, path: str, **body: Any) -> Json:
    request = urllib.request.Request(
        f"http://{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        told: Json = json.load(answer)
    return told


def chat(address: str) -> Json:
    told = post(address, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    return dict(told["usage"])


def herdsman(control_plane: LocalCluster, *arguments: str) -> str:
    command = [sys.executable, "-m", "automation.cli", *arguments, "--kubeconfig", str(control_plane.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def host_of(client: KubeClient, namespace: str, name: str) -> str:
    return str(client.get(kinds.HOST_PROCESSES, namespace, name)["spec"]["host"])


def test_a_mac_serves_by_its_gpus_rules(
    client: KubeClient,
    namespace: str,
    loop: LoopProcess,
    start_agent: StartAgent,
    apply: Callable[..., None],
) -> None:
    start_agent("mac-studio")
    apply("05-mac-host")
    for name in ("assistant", "night-shift"):
        ready(client, namespace, name)
        assert host_of(client, namespace, name) == "mac-studio"
        (address,) = endpoints(client, namespace, name)
        assert chat(address)["completion_tokens"] > 0
    plan = client.get(kinds.HOST_PROCESSES, namespace, "assistant")["spec"]
    assert plan["evictionProtection"] is True
    assert "--mlock" in plan["argv"]


def test_a_workstations_group_takes_turns_by_demand(
    client: KubeClient,
    namespace: str,
    loop: LoopProcess,
    start_agent: StartAgent,
    apply: Callable[..., None],
) -> None:
    start_agent("workstation")
    apply("06-linux-host")
    for name in ("chat", "coder"):
        (address,) = eventually(
            lambda name=name: endpoints(client, namespace, name), what=f"an endpoint of {name}", timeout_s=90
        )
        assert chat(address)["completion_tokens"] > 0
        assert host_of(client, namespace, name) == "workstation"
        assert client.get(kinds.HOST_PROCESSES, namespace, name)["spec"]["group"] == "lab"


def test_a_machine_without_an_agent_serves_over_ssh(
    client: KubeClient,
    namespace: str,
    loop: LoopProcess,
    net: Network,
    apply: Callable[..., None],
    llama_server: Path,
    tmp_path: Path,
    control_plane: LocalCluster,
) -> None:
    machine = net.host("old-server")
    with sshd(
        tmp_path / "old-server", address=machine.address, prefix=machine.prefix, binaries=[llama_server]
    ) as server:
        there = {
            "user": server.user,
            "allowRoot": server.user == "root",
            "port": server.port,
            "identityFile": str(server.user_key),
            "knownHosts": [server.host_key],
            "store": str(server.store),
        }
        apply("07-ssh-host", address=machine.address, ssh=there)
        ready(client, namespace, "embeddings")
        (address,) = endpoints(client, namespace, "embeddings")
        assert post(address, "/v1/embeddings", input="Hi")["data"]

        def listed() -> tuple[str, ...]:
            rows = json.loads(herdsman(control_plane, "host", "list", "-o", "json"))
            (row,) = [row for row in rows if row["name"] == "old-server"]
            return row["transport"], row["state"], row["processes"]

        # The loop writes the status of the Host after the status of the process.
        eventually(lambda: listed() == ("ssh", "Ready", "1/1"), what="the Host to name its process")


def test_a_mixed_fleet_is_one_fleet(
    client: KubeClient,
    namespace: str,
    loop: LoopProcess,
    start_agent: StartAgent,
    apply: Callable[..., None],
    control_plane: LocalCluster,
) -> None:
    start_agent("mac-mini")
    start_agent("rack-1")
    start_agent("rack-2")
    apply("08-mixed-fleet")
    ready(client, namespace, "writer")
    assert host_of(client, namespace, "writer") == "mac-mini"
    ready(client, namespace, "classifier")
    addresses = endpoints(client, namespace, "classifier")
    assert len({address.partition(":")[0] for address in addresses}) == 2, addresses
    for address in addresses:
        assert chat(address)["completion_tokens"] > 0
    deployed(client, namespace, "summaries", timeout_s=60)
    assert find(client, kinds.HOST_PROCESSES, namespace, "summaries") is None
    rows = {row["name"]: row for row in json.loads(herdsman(control_plane, "host", "list", "-o", "json"))}
    assert {rows[name]["state"] for name in ("mac-mini", "rack-1", "rack-2")} == {"Ready"}
