"""Hosts that joined as docs/how-to/hosts.md describes, each with an agent, and clients in pods.

The hosts are network namespaces in a network of the node. Clients reach a service by the ClusterIP of its Service. It
leads to a host, to another host when the first is lost, and to pods after an edit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import node as real
from tests.support.agent_rights import INSTALL
from tests.support.agents import AgentProcess, agent
from tests.support.client_pod import asking
from tests.support.endpoint_record import recorded
from tests.support.joining import identity, with_files
from tests.support.loop import await_condition, eventually, find, model, service
from tests.support.model_server import File, FileServer
from tests.support.netns import Network, NetworkHost, network
from tests.support.operator_pods import OperatorPods
from tests.support.sshd import sshd
from tools.localcluster import LocalCluster
from tools.node import lifecycle
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.node.node import Node
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

STARTED_S = 90.0
LOST_S = 90.0
_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1}
ENGINE: dict[str, Any] = {
    "image": LLAMA_SERVER_IMAGE,
    "contextSize": 256,
    "resources": {"cpu": "250m"},
    "extraArgs": ["--threads", "1"],
    "probeOverrides": {"startup": {**_HEALTH, "failureThreshold": 60}, "readiness": _HEALTH},
}
ANYWHERE = {"herdsman.dev/host-selector": "fleet=joined", "herdsman.dev/preferred-hosts": "desk"}


@dataclass(frozen=True)
class Machine:
    """A host and its agent."""

    network: NetworkHost
    agent: AgentProcess

    @property
    def address(self) -> str:
        return self.network.address

    def engines(self, namespace: str, name: str) -> list[psutil.Process]:
        """Return the processes of a service on this host."""
        marks = ((each, each.environ().get("HERDSMAN_PROCESS", "")) for each in self.agent.processes())
        return [each for each, mark in marks if f"{namespace}/{name}|" in mark]

    def die(self) -> None:
        """End all processes and cut the network, as a power cut does."""
        self.network.cut()
        running = self.agent.processes()
        self.agent.kill()
        for each in running:
            each.kill()
        psutil.wait_procs(running, timeout=10)

    def boot(self) -> None:
        """Connect the network and start the agent again."""
        self.network.heal()
        self.agent.start()


@pytest.fixture(scope="module")
def operator(operator_pods: OperatorPods) -> OperatorPods:
    """The operator's pod, which leads, and which moves services from a lost host after 2 s."""
    operator_pods.settings["host_move_after_s"] = "2"
    operator_pods.install()
    operator_pods.await_leading()
    return operator_pods


@pytest.fixture(scope="module")
def there(node: Node) -> Iterator[Network]:
    """The network of the hosts. The node is connected to it, and routes to its pods."""
    pid = lifecycle.first_pid(node.layout)
    assert pid is not None
    with network() as made:
        made.connect(pid, node.network.pods)
        yield made


@pytest.fixture(scope="module")
def machines(
    node_cluster: tuple[LocalCluster, Node],
    operator: OperatorPods,
    there: Network,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Machine]]:
    """Two hosts that have joined. One administrator's kubeconfig contains the credentials, the other names files."""
    cluster, node = node_cluster
    folder = tmp_path_factory.mktemp("machines")
    administrators = {"desk": cluster.kubeconfig, "attic": with_files(cluster.kubeconfig, folder / "administrator")}
    with ExitStack() as stack:
        made: dict[str, Machine] = {}
        for name, administrator in administrators.items():
            host = there.host(name)
            own = identity(name, administrator, folder / f"{name}-identity")
            kubeconfig = there.kubeconfig(own, own.with_name("kubeconfig.there"))
            options = ("--label", "fleet=joined", "--allowed-remote-hosts", node.network.link)
            running = stack.enter_context(
                agent(folder / name, "--kubeconfig", str(kubeconfig), *options, host=name, prefix=host.prefix)
            )
            running.start()
            made[name] = Machine(host, running)
        yield made


@pytest.fixture
def place(operator: OperatorPods, namespace: str, client: KubeClient, files: FileServer, tmp_path: Path) -> str:
    """A namespace with a Model."""
    weights = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    model(client, namespace, source=files.serve("/joined.gguf", File(weights)))
    return namespace


def host_of(client: KubeClient, namespace: str, name: str) -> str:
    return str(client.get(kinds.HOST_PROCESSES, namespace, name)["spec"]["host"])


def ready_reason(client: KubeClient, host: str) -> str:
    """Return the reason of a Host's condition Ready; empty while it has none."""
    conditions = client.get(kinds.HOSTS, None, host).get("status", {}).get("conditions", ())
    return next((str(each["reason"]) for each in conditions if each["type"] == "Ready"), "")


def test_a_service_on_a_host_that_dies_is_reached_on_another_by_the_same_address(
    client: KubeClient, node: Node, place: str, machines: dict[str, Machine]
) -> None:
    desk, attic = machines["desk"], machines["attic"]
    service(client, place, annotations=ANYWHERE, contextSize=256)
    await_condition(client, place, "svc", "Ready", "True", timeout_s=STARTED_S)
    assert host_of(client, place, "svc") == "desk"
    address = real.cluster_address(client, node, place)
    with recorded(client, place) as record, asking(client, place, f"http://{address.host}:{address.port}") as pod:
        eventually(lambda: record.now("svc") == {desk.address}, what="the endpoint on record")
        pod.await_answers()

        desk.die()
        eventually(lambda: not record.now("svc"), what="the endpoint to be out", timeout_s=LOST_S)
        eventually(lambda: record.now("svc") == {attic.address}, what="the other machine", timeout_s=STARTED_S)
        pod.await_answers()
        assert real.cluster_address(client, node, place) == address
        (moved,) = attic.engines(place, "svc")

        back_at = time.monotonic()
        desk.boot()
        eventually(lambda: ready_reason(client, "desk") == "AgentRunning", what="the first machine to be back")
        asked = len(pod.answers())
        pod.await_answers(10)
        assert not desk.engines(place, "svc"), "the machine that came back serves what went elsewhere"
        assert [each.pid for each in attic.engines(place, "svc")] == [moved.pid]
        assert not record.was_ready("svc", desk.address, since=back_at)
        assert set(pod.answers()[asked:]) == {200}


def test_a_service_of_a_dead_host_is_served_by_pods_after_an_edit_at_the_same_address(
    client: KubeClient, node: Node, place: str, machines: dict[str, Machine]
) -> None:
    desk = machines["desk"]
    service(client, place, annotations={"herdsman.dev/host": "desk"}, **ENGINE)
    await_condition(client, place, "svc", "Ready", "True", timeout_s=STARTED_S)
    address = real.cluster_address(client, node, place)
    with asking(client, place, f"http://{address.host}:{address.port}") as pod:
        pod.await_answers()
        desk.die()
        await_condition(client, place, "svc", "Ready", "False", saying="desk", timeout_s=LOST_S)
        client.patch(kinds.INFERENCE_SERVICES, place, "svc", {"metadata": {"annotations": {"herdsman.dev/host": None}}})
        await_condition(client, place, "svc", "Ready", "True", timeout_s=STARTED_S)
        assert real.cluster_address(client, node, place) == address
        pod.await_answers()

        desk.boot()
        eventually(lambda: ready_reason(client, "desk") == "AgentRunning", what="the machine to be back")
        asked = len(pod.answers())
        pod.await_answers(10)
        assert set(pod.answers()[asked:]) == {200}
        assert not desk.engines(place, "svc")
        assert find(client, kinds.HOST_PROCESSES, place, "svc") is None
        addresses = {
            each
            for found in client.list(kinds.ENDPOINT_SLICES, place)["items"]
            for endpoint in found["endpoints"]
            for each in endpoint["addresses"]
        }
        assert desk.address not in addresses


def test_a_service_on_a_host_sleeps_and_a_request_of_a_pod_wakes_it(
    client: KubeClient, node: Node, place: str, machines: dict[str, Machine]
) -> None:
    attic = machines["attic"]
    annotations = {"herdsman.dev/host": "attic", "herdsman.dev/idle-timeout": "2s"}
    service(client, place, annotations=annotations, contextSize=256)
    await_condition(client, place, "svc", "Ready", "True", saying="the next request", timeout_s=STARTED_S)
    assert not attic.engines(place, "svc")
    address = real.cluster_address(client, node, place)
    with asking(client, place, f"http://{address.host}:{address.port}", timeout_s=60) as pod:
        pod.await_answers(timeout_s=STARTED_S)
        assert len(attic.engines(place, "svc")) == 1
        assert set(pod.answers()) == {200}, "the first request waits until the engine runs"


def test_a_machine_without_an_agent_is_served_from_over_ssh(
    client: KubeClient,
    node: Node,
    place: str,
    operator: OperatorPods,
    there: Network,
    llama_server: Path,
    tmp_path: Path,
) -> None:
    """The loop's pod connects with a key from a Secret, which docs/install/secrets-reader.yaml allows it to read."""
    machine = there.host("shed")
    with sshd(tmp_path / "shed", address=machine.address, prefix=machine.prefix, binaries=[llama_server]) as server:
        key = {"ssh-privatekey": server.user_key.read_text()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shed-key"}, "stringData": key}
        client.create(kinds.SECRETS, SYSTEM_NAMESPACE, secret)
        for document in yaml.safe_load_all((INSTALL / "secrets-reader.yaml").read_text()):
            if document["kind"] == "Role":
                document["rules"][0]["resourceNames"] = ["shed-key"]
            kind = client.mapping(document["apiVersion"], document["kind"])
            client.apply(kind, SYSTEM_NAMESPACE, document, field_manager="tests", force=True)
        known = tmp_path / "known_hosts"
        known.write_text(f"[{machine.address}]:{server.port} {server.host_key}\n")
        added = operator.command(
            *("host", "add", "shed", "--address", machine.address, "--ssh-user", server.user, "--allow-root"),
            *("--ssh-port", str(server.port), "--identity-secret", "shed-key", "--known-hosts", str(known)),
        )
        assert added.returncode == 0, added.stderr
        client.patch(kinds.HOSTS, None, "shed", {"spec": {"ssh": {"store": str(server.store)}}})
        eventually(lambda: ready_reason(client, "shed") == "Reachable", what="the machine to be reached")
        service(client, place, annotations={"herdsman.dev/host": "shed"}, contextSize=256)
        try:
            await_condition(client, place, "svc", "Ready", "True", timeout_s=STARTED_S)
            address = real.cluster_address(client, node, place)
            with asking(client, place, f"http://{address.host}:{address.port}") as pod:
                pod.await_answers()
        finally:
            client.delete(kinds.INFERENCE_SERVICES, place, "svc")
            eventually(lambda: find(client, kinds.HOST_PROCESSES, place, "svc") is None, what="its process to go")
            client.delete(kinds.HOSTS, None, "shed")
