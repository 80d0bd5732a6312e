"""Attacks with a stolen agent token, on a real API server with the roles and the policies of docs/install.

The API server must refuse each attack with 403. With the same rights, an agent must still be able to manage its host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.server.cluster.host_lease import lease_name, lease_object
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import AlreadyExists, Forbidden, NotFound
from kubeapi.json_types import Json
from tests.support.agent_rights import account, agent_kubeconfig, await_policies, bind_agent, install_rights
from tests.support.loop import install_crds
from tools.localcluster import LocalCluster

LEADER = "herdsman"
ADDRESS = [{"addresses": ["203.0.113.9"], "conditions": {"ready": True}}]


@pytest.fixture(scope="module")
def admin(control_plane: LocalCluster) -> Iterator[KubeClient]:
    client = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(client)
    install_rights(client)
    for name in ("mine", "other"):
        _host(client, name)
        client.apply(kinds.LEASES, SYSTEM_NAMESPACE, _lease(name), field_manager="tests", force=True)
    client.apply(kinds.LEASES, SYSTEM_NAMESPACE, _plain_lease(LEADER, "the-loop"), field_manager="tests", force=True)
    yield client
    for kind, namespace, names in (
        (kinds.HOSTS, None, ("mine", "other", "made")),
        (kinds.LEASES, SYSTEM_NAMESPACE, (lease_name("mine"), lease_name("other"), LEADER)),
    ):
        for name in names:
            with suppress(NotFound):
                client.delete(kind, namespace, name)
    client.close()


@pytest.fixture(scope="module")
def agent(admin: KubeClient, control_plane: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> KubeClient:
    """The agent of host `mine`."""
    path = agent_kubeconfig(admin, control_plane, "mine", tmp_path_factory.mktemp("agent") / "kubeconfig")
    return KubeClient.from_kubeconfig(str(path))


@pytest.fixture
def here(admin: KubeClient, namespace: str) -> str:
    """A namespace with a process on each of two hosts, and with a Service of another owner and its endpoints."""
    for name in ("mine", "other"):
        _process(admin, namespace, name)
    metadata = {"name": "foreign", "labels": {"kubernetes.io/service-name": "foreign"}}
    admin.create(kinds.SERVICES, namespace, _service("foreign"))
    admin.create(kinds.ENDPOINT_SLICES, namespace, _slice(metadata))
    return namespace


def _host(client: KubeClient, name: str, **spec: Any) -> Json:
    body = {"apiVersion": kinds.HOSTS.api_version, "kind": "Host", "metadata": {"name": name}, "spec": spec}
    return client.apply(kinds.HOSTS, None, body, field_manager="tests", force=True)


def _process(client: KubeClient, namespace: str, host: str) -> Json:
    body = {
        "apiVersion": kinds.HOST_PROCESSES.api_version,
        "kind": "HostProcess",
        "metadata": {"name": f"on-{host}", "labels": {"herdsman.dev/host": host}},
        "spec": {"host": host, "service": f"on-{host}", "argv": ["llama-server"], "serviceName": f"on-{host}"},
    }
    return client.create(kinds.HOST_PROCESSES, namespace, body)


def _lease(host: str, **changes: Any) -> Json:
    made = lease_object(
        None, host=host, namespace=SYSTEM_NAMESPACE, holder="agent", duration_s=12, now=datetime.now(UTC)
    )
    made["metadata"].pop("annotations")
    return {**made, **changes}


def _plain_lease(name: str, holder: str) -> Json:
    metadata = {"name": name, "namespace": SYSTEM_NAMESPACE}
    return {
        "apiVersion": kinds.LEASES.api_version,
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": holder},
    }


def _service(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}


def _slice(metadata: Json) -> Json:
    return {
        "apiVersion": kinds.ENDPOINT_SLICES.api_version,
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv4",
        "endpoints": ADDRESS,
        "ports": [{"name": "http", "port": 80}],
    }


def _take_lease(client: KubeClient, name: str) -> Any:
    lease = client.get(kinds.LEASES, SYSTEM_NAMESPACE, name)
    lease["spec"]["holderIdentity"] = "thief"
    lease["metadata"].pop("managedFields", None)
    return client.replace(kinds.LEASES, SYSTEM_NAMESPACE, lease)


def _said_ready(kind: kinds.Kind, name: str, **status: Any) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "status": status}


SSH_HOST = {
    "transport": "ssh",
    "address": "203.0.113.9",
    "ssh": {"user": "root", "identityFile": "/etc/herdsman/key", "knownHosts": ["ssh-ed25519 AAAA"]},
}


def _new_host(name: str, **spec: Any) -> Json:
    return {"apiVersion": kinds.HOSTS.api_version, "kind": "Host", "metadata": {"name": name}, "spec": spec}


Attack = Callable[[KubeClient, str], Any]
ATTACKS: dict[str, Attack] = {
    "turn a Service of somebody else": lambda c, n: c.patch(
        kinds.SERVICES, n, "foreign", {"spec": {"selector": {"app": "mine"}}}
    ),
    "delete a Service of somebody else": lambda c, n: c.delete(kinds.SERVICES, n, "foreign"),
    "make a Service": lambda c, n: c.create(kinds.SERVICES, n, _service("new")),
    "lead a Service to an address of its own": lambda c, n: c.patch(
        kinds.ENDPOINT_SLICES, n, "foreign", {"endpoints": ADDRESS}
    ),
    "lead a Service of kube-system to an address of its own": lambda c, _: c.create(
        kinds.ENDPOINT_SLICES,
        "kube-system",
        _slice({"name": "mine", "labels": {"kubernetes.io/service-name": "kube-dns"}}),
    ),
    "delete endpoints": lambda c, n: c.delete(kinds.ENDPOINT_SLICES, n, "foreign"),
    "read Services": lambda c, n: c.list(kinds.SERVICES, n),
    "make a Host over SSH": lambda c, _: c.create(kinds.HOSTS, None, _new_host("made", **SSH_HOST)),
    "make its own Host over SSH": lambda c, _: c.create(kinds.HOSTS, None, _new_host("mine", **SSH_HOST)),
    "make another Host": lambda c, _: c.create(kinds.HOSTS, None, _new_host("made", transport="agent")),
    "pin the address of its own Host": lambda c, _: c.create(
        kinds.HOSTS, None, _new_host("mine", transport="agent", address="203.0.113.9")
    ),
    "change the spec of its Host": lambda c, _: c.patch(kinds.HOSTS, None, "mine", {"spec": {"drain": False}}),
    "change the labels of its Host": lambda c, _: c.patch(
        kinds.HOSTS, None, "mine", {"metadata": {"labels": {"a": "b"}}}
    ),
    "delete a Host": lambda c, _: c.delete(kinds.HOSTS, None, "other"),
    "speak for another Host": lambda c, _: c.apply(
        kinds.HOSTS,
        None,
        _said_ready(kinds.HOSTS, "other", address="203.0.113.9"),
        field_manager="herdsman-agent",
        force=True,
        subresource="status",
    ),
    "take another host's Lease": lambda c, _: _take_lease(c, lease_name("other")),
    "take the leader's Lease": lambda c, _: _take_lease(c, LEADER),
    "make a Lease for another host": lambda c, _: c.create(kinds.LEASES, SYSTEM_NAMESPACE, _lease("new")),
    "say by its own Lease that another host lives": lambda c, _: c.replace(
        kinds.LEASES,
        SYSTEM_NAMESPACE,
        _lease(
            "mine",
            metadata={
                **c.get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name("mine"))["metadata"],
                "managedFields": None,
                "labels": {"herdsman.dev/host": "other"},
            },
        ),
    ),
    "delete another host's Lease": lambda c, _: c.delete(kinds.LEASES, SYSTEM_NAMESPACE, lease_name("other")),
    "take a Lease of the cluster": lambda c, _: c.create(
        kinds.LEASES, "kube-system", _plain_lease("kube-scheduler", "thief")
    ),
    "report a process of another host": lambda c, n: c.patch(
        kinds.HOST_PROCESSES, n, "on-other", {"status": {"phase": "Ready", "ready": True}}, subresource="status"
    ),
    "report its process as another host": lambda c, n: c.patch(
        kinds.HOST_PROCESSES,
        n,
        "on-mine",
        {"status": {"phase": "Ready", "ready": True, "host": "other"}},
        subresource="status",
    ),
    "change a plan": lambda c, n: c.patch(kinds.HOST_PROCESSES, n, "on-mine", {"spec": {"argv": ["/bin/sh"]}}),
    "forge the loop's notice": lambda c, n: c.patch(
        kinds.HOST_PROCESSES, n, "on-mine", {"metadata": {"annotations": {"herdsman.dev/endpoint": "{}"}}}
    ),
    "make a plan": lambda c, n: _process(c, n, "third"),
    "read Secrets": lambda c, n: c.list(kinds.SECRETS, n),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_agents_token_does_nothing_but_speak_for_its_own_host(name: str, agent: KubeClient, here: str) -> None:
    with pytest.raises(Forbidden):
        ATTACKS[name](agent, here)


def test_an_agent_makes_and_reports_its_own_host_its_lease_and_its_processes(
    admin: KubeClient, agent: KubeClient, here: str
) -> None:
    admin.delete(kinds.HOSTS, None, "mine")
    agent.create(kinds.HOSTS, None, _new_host("mine", transport="agent"), field_manager="herdsman-agent")
    status = _said_ready(kinds.HOSTS, "mine", address="10.0.0.7")
    agent.apply(kinds.HOSTS, None, status, field_manager="herdsman-agent", force=True, subresource="status")
    with pytest.raises(AlreadyExists):
        agent.create(kinds.LEASES, SYSTEM_NAMESPACE, _lease("mine"))
    found = agent.get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name("mine"))
    renewed = lease_object(
        found, host="mine", namespace=SYSTEM_NAMESPACE, holder="agent", duration_s=12, now=datetime.now(UTC)
    )
    agent.replace(kinds.LEASES, SYSTEM_NAMESPACE, renewed)
    seen = agent.list(kinds.HOST_PROCESSES, label_selector="herdsman.dev/host=mine")["items"]
    assert [each["metadata"]["name"] for each in seen if each["metadata"]["namespace"] == here] == ["on-mine"]
    body = [{"op": "add", "path": "/status", "value": {"phase": "Ready", "ready": True, "host": "mine"}}]
    agent.patch(kinds.HOST_PROCESSES, here, "on-mine", body, content_type=JSON_PATCH, subresource="status")


def test_a_group_names_the_host_of_an_identity_that_is_no_service_account(
    admin: KubeClient, agent: KubeClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    user = "agent@example.org"
    bind_agent(admin, user)
    control_plane.write_kubeconfig(tmp_path / "kubeconfig", user=user, groups=("herdsman:host:other",))
    by_group = KubeClient.from_kubeconfig(str(tmp_path / "kubeconfig"))
    await_policies(by_group)
    spoken = _said_ready(kinds.HOSTS, "other", address="10.0.0.8")
    by_group.apply(kinds.HOSTS, None, spoken, field_manager="herdsman-agent", force=True, subresource="status")
    with pytest.raises(Forbidden, match=account("mine").rpartition(":")[2]):
        by_group.patch(kinds.HOSTS, None, "mine", {"status": {"address": "10.0.0.8"}}, subresource="status")


def test_the_loop_and_an_administrator_write_for_every_host(
    admin: KubeClient, agent: KubeClient, here: str, control_plane: LocalCluster, tmp_path: Path
) -> None:
    control_plane.write_kubeconfig(
        tmp_path / "loop", user="system:serviceaccount:herdsman-system:herdsman", groups=("system:serviceaccounts",)
    )
    for client in (admin, KubeClient.from_kubeconfig(str(tmp_path / "loop"))):
        for name in ("mine", "other"):
            client.patch(kinds.HOSTS, None, name, {"status": {"address": "10.0.0.9"}}, subresource="status")
            client.patch(kinds.HOST_PROCESSES, here, f"on-{name}", {"status": {"phase": "Ready"}}, subresource="status")
            client.patch(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name), {"spec": {"leaseDurationSeconds": 13}})
        _take_lease(client, LEADER)
