"""Placement of services on Host objects without an agent, by a real loop and its engine on a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.server.cluster.host_lease import lease_name
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from program.desired.keys import ServiceKey
from program.desired.request_report import REPORTS_NAMESPACE, Counts, Report
from tests.support.loop import (
    LoopProcess,
    await_condition,
    edit,
    eventually,
    find,
    forget_hosts,
    http_folder,
    model,
    service,
    status,
)
from tools.tiny_model import Shape, write_tiny_model

GIB = 1 << 30
SELECTED = {"herdsman.dev/host-selector": "fleet=placement"}


@pytest.fixture(scope="module")
def loop(
    client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopProcess]:
    """One loop that moves the services of a lost host after 2 s."""
    forget_hosts(client)
    running = LoopProcess(
        loop_kubeconfig,
        tmp_path_factory.mktemp("placement"),
        environment={"HERDSMAN_HOST_MOVE_AFTER_S": "2"},
    )
    try:
        yield running.start()
    finally:
        if running._process is not None and running.poll() is None:
            running.stop()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a tiny model whose header the loop reads."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / "tiny.gguf")
    with http_folder(folder) as url:
        yield f"{url}/tiny.gguf"


class Hosts:
    """Hosts that are alive because of a Lease of one hour, until a test ends the Lease."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.names: list[str] = []

    def add(self, name: str, *, memory: int = 8 * GIB, **spec: Any) -> None:
        host = {
            "apiVersion": kinds.HOSTS.api_version,
            "kind": "Host",
            "metadata": {"name": name, "labels": {"fleet": "placement"}},
            "spec": spec,
        }
        self.client.create(kinds.HOSTS, None, host)
        self.names.append(name)
        told = {"os": "linux", "allocatable": {"memory": memory}, "runtimes": {"llama-server": "b1"}}
        self.client.patch(kinds.HOSTS, None, name, {"status": told}, subresource="status")
        self._lease(name, alive_s=3600)

    def _lease(self, name: str, *, alive_s: int) -> None:
        lease = {
            "apiVersion": kinds.LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": lease_name(name), "labels": {naming.LABEL_HOST: name}},
            "spec": {
                "holderIdentity": f"agent-of-{name}",
                "leaseDurationSeconds": alive_s,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        self.client.create(kinds.LEASES, SYSTEM_NAMESPACE, lease)

    def fall_silent(self, name: str) -> None:
        """Replace the host's Lease by one that ends after 1 s."""
        self.client.delete(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name))
        self._lease(name, alive_s=1)

    def edit(self, name: str, **spec: Any) -> None:
        self.client.patch(kinds.HOSTS, None, name, {"spec": spec})

    def remove(self, name: str) -> None:
        self.names.remove(name)
        for kind, namespace, each in (
            (kinds.HOSTS, None, name),
            (kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name)),
        ):
            try:
                self.client.delete(kind, namespace, each)
            except NotFound:
                continue


@pytest.fixture
def hosts(client: KubeClient, namespace: str) -> Iterator[Hosts]:
    fleet = Hosts(client)
    # A stopped agent leaves its Host object, so there may be Hosts of other tests.
    fleet.names = [host["metadata"]["name"] for host in client.list(kinds.HOSTS)["items"]]
    for name in list(fleet.names):
        fleet.remove(name)
    yield fleet
    # A deleted namespace keeps its services for five seconds, and a service of a lost host moves after two. It would
    # take a host of the next test.
    for cr in client.list(kinds.INFERENCE_SERVICES, namespace)["items"]:
        client.delete(kinds.INFERENCE_SERVICES, namespace, cr["metadata"]["name"])
    for name in list(fleet.names):
        fleet.remove(name)


def placed(client: KubeClient, namespace: str, name: str = "svc", replica: int = 0) -> str:
    found = find(client, kinds.HOST_PROCESSES, namespace, naming.host_process_name(name, replica))
    return str(found["spec"]["host"]) if found is not None else ""


def on(client: KubeClient, namespace: str, host: str, name: str = "svc", replica: int = 0) -> None:
    eventually(
        lambda: placed(client, namespace, name, replica) == host, what=f"replica {replica} of {name} to be on {host}"
    )


def test_a_service_waits_for_room_and_gets_it_and_a_deletion_makes_room(
    loop: LoopProcess, client: KubeClient, namespace: str, hosts: Hosts, source: str
) -> None:
    model(client, namespace, source=source, hardware={"accelerator": "metal"})
    service(client, namespace, annotations=SELECTED)
    await_condition(client, namespace, "svc", "Ready", "False", saying="No live host for metal")
    hosts.add("p-linux")
    await_condition(client, namespace, "svc", "Ready", "False", saying="0/1 hosts fit: 1 has no metal")
    told = status(client, namespace)
    assert (told["schedulingStatus"], told["schedulingMessage"]) == ("NoHostFits", "0/1 hosts fit: 1 has no metal")

    model(client, namespace, "any", source=source)
    service(client, namespace, "other", annotations=SELECTED, modelRef="any", contextSize=128)
    on(client, namespace, "p-linux", "other")
    hosts.add("p-small", memory=1 << 20)
    edit(client, namespace, "svc", modelRef="any", contextSize=128, nodeSelector={"room": "own"})
    await_condition(client, namespace, "svc", "Ready", "False", saying="2 lack the labels")
    label = {"metadata": {"labels": {"room": "own"}}}
    client.patch(kinds.HOSTS, None, "p-small", label)
    await_condition(client, namespace, "svc", "Ready", "False", saying="of memory")
    # Enough memory for one of these services, and not for two.
    client.patch(kinds.HOSTS, None, "p-small", {"status": {"allocatable": {"memory": 2 << 20}}}, subresource="status")
    on(client, namespace, "p-small")
    service(
        client, namespace, "next", annotations=SELECTED, modelRef="any", contextSize=128, nodeSelector={"room": "own"}
    )
    await_condition(client, namespace, "next", "Ready", "False", saying="of memory")
    client.delete(kinds.INFERENCE_SERVICES, namespace, "svc")
    on(client, namespace, "p-small", "next")
    assert placed(client, namespace, "other") == "p-linux"


def test_replicas_have_hosts_of_their_own_and_leave_drained_and_lost_ones(
    loop: LoopProcess, client: KubeClient, namespace: str, hosts: Hosts, source: str
) -> None:
    model(client, namespace, source=source)
    for name in ("p-a", "p-b"):
        hosts.add(name)
    service(client, namespace, annotations=SELECTED, replicas=3, contextSize=128)
    on(client, namespace, "p-a")
    on(client, namespace, "p-b", replica=1)
    await_condition(client, namespace, "svc", "Ready", "False", saying="0/2 hosts fit: 2 run another replica")
    second = client.get(kinds.HOST_PROCESSES, namespace, naming.host_process_name("svc", 1))
    assert second["spec"]["replica"] == 1
    assert second["spec"]["endpointSlice"] == naming.endpoint_slice_name("svc", 1)
    assert second["spec"]["serviceName"] == "svc"
    first = client.get(kinds.HOST_PROCESSES, namespace, "svc")
    assert "replica" not in first["spec"]

    edit(client, namespace, replicas=2)
    hosts.add("p-c")
    hosts.edit("p-a", drain=True)
    on(client, namespace, "p-c")
    assert client.get(kinds.HOST_PROCESSES, namespace, "svc")["metadata"]["uid"] == first["metadata"]["uid"]
    assert placed(client, namespace, replica=1) == "p-b"
    # No agent renews the Lease of p-c: the host is lost, and two seconds later its replica moves. p-a takes it only
    # when it is no longer drained.
    hosts.fall_silent("p-c")
    await_condition(client, namespace, "svc", "Ready", "False", saying="is lost")
    hosts.edit("p-a", drain=False)
    on(client, namespace, "p-a")
    assert placed(client, namespace, replica=1) == "p-b"

    # In one write, so that the loop has seen the annotation when the second replica goes.
    once = {"metadata": {"annotations": {"herdsman.dev/moves": "false"}}, "spec": {"replicas": 1}}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", once)
    eventually(lambda: not placed(client, namespace, replica=1), what="the second replica to go")
    assert placed(client, namespace) == "p-a"
    hosts.edit("p-a", taints=[{"key": "repair", "effect": "NoExecute"}])
    hosts.add("p-d")
    service(client, namespace, "other", annotations=SELECTED, contextSize=128)
    # p-b is free once the pass that stopped the second replica has ended, and p-d at once.
    eventually(lambda: placed(client, namespace, "other") in ("p-b", "p-d"), what="other to be on an untainted host")
    assert placed(client, namespace) == "p-a"


def test_replicas_on_hosts_follow_the_requests_at_the_gateways(
    loop: LoopProcess, client: KubeClient, namespace: str, hosts: Hosts, source: str
) -> None:
    def report(active: int) -> None:
        """Write the requests as a gateway does."""
        counts = {str(ServiceKey("llmkube", namespace, "svc")): Counts(active, 0, active)}
        written = Report("gateway of a test", counts, frozenset({namespace}))
        lease = written.lease(f"gateway-{namespace}", renewed=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        client.apply(kinds.LEASES, REPORTS_NAMESPACE, lease, field_manager="tests", force=True)

    model(client, namespace, source=source)
    for name in ("p-a", "p-b", "p-c"):
        hosts.add(name)

    def first_and_second() -> set[str]:
        return {placed(client, namespace), placed(client, namespace, replica=1)} - {""}

    by_requests = {"herdsman.dev/scale-by": "requests", "herdsman.dev/target-requests": "4"}
    annotations = SELECTED | by_requests | {"herdsman.dev/max-replicas": "2"}
    service(client, namespace, annotations=annotations, contextSize=128)
    try:
        # On any host: the loop may not know all of them yet.
        eventually(lambda: len(first_and_second()) == 1, what="one replica")
        report(99)
        eventually(lambda: len(first_and_second()) == 2, what="two replicas on two hosts")
        assert not placed(client, namespace, replica=2), "no more than the largest number"
    finally:
        with contextlib.suppress(NotFound):
            client.delete(kinds.LEASES, REPORTS_NAMESPACE, f"gateway-{namespace}")


def test_a_service_that_no_host_allows_names_its_field_and_is_placed_once_an_owner_allows_it(
    loop: LoopProcess, client: KubeClient, namespace: str, hosts: Hosts, source: str
) -> None:
    hosts.add("strict")
    model(client, namespace, source=source)
    service(client, namespace, annotations=SELECTED, extraArgs=["--threads", "1", "--tools", "all"])
    await_condition(client, namespace, "svc", "Ready", "False", saying="spec.extraArgs[2]")
    await_condition(client, namespace, "svc", "Ready", "False", saying="no host allows flag `--tools`")
    assert "NotAllowedOnHost" in {each["reason"] for each in status(client, namespace)["conditions"]}
    assert placed(client, namespace) == ""
    hosts.edit("strict", allow={"flags": ["--tools"], "namespaces": ["another"]})
    await_condition(client, namespace, "svc", "Ready", "False", saying=f"1 does not allow namespace {namespace}")
    hosts.edit("strict", allow={"flags": ["--tools"], "namespaces": [namespace]})
    on(client, namespace, "strict")


def test_a_service_without_a_context_gets_what_fits_and_keeps_it(
    loop: LoopProcess, client: KubeClient, namespace: str, hosts: Hosts, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "long.gguf", shape=Shape(context=16_384))
    hosts.add("p-long")
    with http_folder(tmp_path) as url:
        model(client, namespace, source=f"{url}/long.gguf")
        service(client, namespace, annotations=SELECTED)
        on(client, namespace, "p-long")
        chosen = naming.ANNOTATION_DEFAULT_CONTEXT

        def process() -> Any:
            return client.get(kinds.HOST_PROCESSES, namespace, "svc")

        def context() -> str:
            argv = process()["spec"]["argv"]
            return str(argv[argv.index("--ctx-size") + 1])

        eventually(lambda: context() == "16384", what="the context by the header")
        first = process()
        assert first["metadata"]["annotations"][chosen] == "16384"

        # The loop plans the service again with less memory, and the process stays as it is.
        less = {"status": {"allocatable": {"memory": 1 << 20}}}
        client.patch(kinds.HOSTS, None, "p-long", less, subresource="status")
        edit(client, namespace, priority="high")
        eventually(lambda: process()["spec"]["priority"] != first["spec"]["priority"], what="the change of priority")
        assert context() == "16384"

        # A context that the service sets counts, and without it the present default does. The memory is written before
        # the first of the two edits, because the loop may see a Host later than a service that was written after it.
        more = {"status": {"allocatable": {"memory": 8 * GIB}}}
        client.patch(kinds.HOSTS, None, "p-long", more, subresource="status")
        edit(client, namespace, contextSize=512)
        eventually(lambda: context() == "512", what="the context of the service")
        assert chosen not in process()["metadata"]["annotations"]
        edit(client, namespace, contextSize=None)
        eventually(lambda: context() == "16384", what="the default again")
