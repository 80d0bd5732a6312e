"""The loop has all permissions that it needs, and no others, by the API server's audit log of its requests.

One loop handles a typical sequence of changes on a cluster that records each of its requests. A permission that no
request used must be listed below with the module that uses it. The only request that may be refused creates the
namespace of the Leases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.server.cluster.host_lease import lease_name
from automation.install import permissions
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from components.priority_classes import priority_classes
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import controlplane
from tests.support.kubelet import pods_of, write_ready_status
from tests.support.loop import (
    LOOP_USER,
    deployed,
    edit,
    eventually,
    find,
    grant_loop_rights,
    install_crds,
    loop_process,
    model,
    service,
    settled,
)

pytestmark = pytest.mark.soak

Row = tuple[str, str, str]
ROOT = Path(__file__).parents[2]
NAMESPACE = "life"

OTHER_TIMES: dict[Row, tuple[str, str]] = {
    ("", "pods", "delete"): ("automation/reconcile/act_on_pods.py", "kinds.PODS"),
    ("", "pods", "patch"): ("automation/reconcile/act_on_pods.py", "kinds.PODS"),
    ("", "pods/status", "patch"): ("automation/reconcile/act_on_pods.py", "status"),
    ("", "pods/proxy", "get"): ("kubeapi/pods.py", "proxy"),
    ("", "pods/proxy", "create"): ("kubeapi/pods.py", "proxy"),
    ("", "pods/log", "get"): ("kubeapi/pods.py", "log"),
    ("", "pods/eviction", "create"): ("kubeapi/pods.py", "eviction"),
    ("apps", "replicasets", "list"): ("automation/serving/rollback.py", "kinds.REPLICA_SETS"),
    ("apps", "controllerrevisions", "list"): ("automation/history/recorder.py", "list(kinds.CONTROLLER_REVISIONS"),
    ("apps", "controllerrevisions", "patch"): ("automation/history/recorder.py", "patch(kinds.CONTROLLER_REVISIONS"),
    ("apps", "controllerrevisions", "delete"): ("automation/history/recorder.py", "delete(kinds.CONTROLLER_REVISIONS"),
    ("batch", "jobs", "delete"): ("automation/models/prefetch.py", "delete(kinds.JOBS"),
    ("coordination.k8s.io", "leases", "patch"): ("automation/hosts/lost_hosts.py", "patch(kinds.LEASES"),
    ("discovery.k8s.io", "endpointslices", "get"): (
        "automation/hosts/registration.py",
        "find(ENDPOINT_SLICES",
    ),
    ("discovery.k8s.io", "endpointslices", "create"): ("automation/serving/sleep.py", "apply(kinds.ENDPOINT_SLICES"),
    ("discovery.k8s.io", "endpointslices", "patch"): ("automation/serving/sleep.py", "apply(kinds.ENDPOINT_SLICES"),
    ("discovery.k8s.io", "endpointslices", "delete"): ("automation/serving/sleep.py", "delete(kinds.ENDPOINT_SLICES"),
    (permissions.OURS, "hostprocesses/status", "patch"): ("automation/hosts/ssh_worker.py", "HOST_PROCESSES"),
    (permissions.OURS, "hosts", "get"): ("automation/hosts/lost_hosts.py", "get(kinds.HOSTS"),
    (permissions.OURS, "hosts/status", "patch"): ("automation/hosts/lost_hosts.py", "apply(kinds.HOSTS"),
    ("", "pods", "get"): ("automation/serving/sleep.py", "get(kinds.PODS"),
    (permissions.LLMKUBE, "inferenceservices/finalizers", "update"): (
        "components/naming.py",
        '"blockOwnerDeletion": True',
    ),
    (permissions.LLMKUBE, "inferenceservices", "get"): (
        "automation/reconcile/remover.py",
        "get(self._services[key.dialect].info.kind",
    ),
}
"""The permissions that `life` does not use: the module that uses each, and a text in that module's code."""


@contextlib.contextmanager
def held(client: KubeClient, asked: Callable[[], set[Row]], *objects: tuple[kinds.Kind, str]) -> Iterator[None]:
    """Hold objects by a finalizer until the loop has sent a delete request for each.

    If the garbage collector removed them first, the loop would send none.
    """
    for kind, name in objects:
        client.patch(kind, NAMESPACE, name, {"metadata": {"finalizers": ["herdsman.test/held"]}})
    yield
    wanted = {(kind.group, kind.plural, "delete") for kind, _ in objects}
    eventually(lambda: wanted <= asked(), what="the delete requests of the loop")
    for kind, name in objects:
        client.patch(kind, NAMESPACE, name, {"metadata": {"finalizers": None}})


def life(client: KubeClient, asked: Callable[[], set[Row]]) -> None:
    """Create services in pods and on a host, a quota, a router, a pool, an adapter and Models; edit and delete the
    services. `asked` returns what the loop has requested so far.
    """
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="tests", force=True)
    client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    quota = {"apiVersion": kinds.GPU_QUOTAS.api_version, "kind": "GPUQuota", "metadata": {"name": "all"}}
    client.create(kinds.GPU_QUOTAS, NAMESPACE, {**quota, "spec": {"gpuCount": 8, "namespaceRef": NAMESPACE}})
    router = {"apiVersion": kinds.MODEL_ROUTERS.api_version, "kind": "ModelRouter", "metadata": {"name": "router"}}
    backends = [{"name": "full", "inferenceServiceRef": {"name": "full"}}]
    client.create(kinds.MODEL_ROUTERS, NAMESPACE, {**router, "spec": {"backends": backends}})
    pool = {"apiVersion": kinds.MODEL_POOLS.api_version, "kind": "ModelPool", "metadata": {"name": "pool"}}
    members = [{"inferenceServiceRef": {"name": "full"}}]
    client.create(kinds.MODEL_POOLS, NAMESPACE, {**pool, "spec": {"members": members}})
    _host(client, "studio")

    model(client, NAMESPACE, source="https://models.example/m.gguf")
    model(client, NAMESPACE, "early", source="https://models.example/e.gguf", prefetch=True)
    annotations = {
        "herdsman.dev/network-policy": "namespace",
        "herdsman.dev/max-unavailable": "1",
        "herdsman.dev/expose": "ingress",
        "herdsman.dev/expose-host": "chat.example",
    }
    service(
        client,
        NAMESPACE,
        "full",
        annotations=annotations,
        autoscaling={"maxReplicas": 3},
        extraArgs=["--cache-ram", "0"],
    )
    deployed(client, NAMESPACE, "full")
    eventually(
        lambda: client.get(kinds.MODEL_ROUTERS, NAMESPACE, "router").get("status"), what="the status of the router"
    )
    eventually(lambda: client.get(kinds.MODEL_POOLS, NAMESPACE, "pool").get("status"), what="the status of the pool")
    settled(client, NAMESPACE, "full")
    service(client, NAMESPACE, "hosted", annotations={"herdsman.dev/host-selector": "fleet=life"})
    eventually(lambda: client.list(kinds.HOST_PROCESSES, NAMESPACE)["items"], what="a process on the host")
    eventually(lambda: client.list(kinds.JOBS, NAMESPACE)["items"], what="the prefetch Job")
    [pod] = eventually(lambda: pods_of(client, NAMESPACE, "full"), what="a pod")
    write_ready_status(client, pod)
    adapter = {"apiVersion": kinds.LORA_ADAPTERS.api_version, "kind": "LoRAAdapter", "metadata": {"name": "sql"}}
    spec = {"inferenceServiceRef": {"name": "full"}, "name": "sql", "path": "/adapters/sql.gguf"}
    client.create(kinds.LORA_ADAPTERS, NAMESPACE, {**adapter, "spec": spec})
    eventually(
        lambda: (
            (live := client.get(kinds.LORA_ADAPTERS, NAMESPACE, "sql")).get("status")
            and live["metadata"].get("finalizers")
        ),
        what="the status and the finalizer of the adapter",
    )
    client.delete(kinds.LORA_ADAPTERS, NAMESPACE, "sql")
    eventually(lambda: find(client, kinds.LORA_ADAPTERS, NAMESPACE, "sql") is None, what="no adapter")

    edit(client, NAMESPACE, "full", contextSize=2048)
    client.delete(kinds.SERVICES, NAMESPACE, "full")
    eventually(lambda: find(client, kinds.SERVICES, NAMESPACE, "full"), what="the Service to be made again")
    # The engine deletes each optional object that the edit removes. The other objects are deleted with the service.
    client.patch(
        kinds.INFERENCE_SERVICES,
        NAMESPACE,
        "full",
        {"metadata": {"annotations": dict.fromkeys(annotations)}, "spec": {"autoscaling": None}},
    )
    for kind in (kinds.AUTOSCALERS, kinds.DISRUPTION_BUDGETS, kinds.NETWORK_POLICIES, kinds.INGRESSES):
        eventually(lambda kind=kind: not client.list(kind, NAMESPACE)["items"], what=f"no {kind.kind}")  # type: ignore[misc]
    client.patch(kinds.MODELS, NAMESPACE, "early", {"spec": {"source": "https://models.example/other.gguf"}})
    with held(client, asked, (kinds.HOST_PROCESSES, "hosted")):
        client.delete(kinds.INFERENCE_SERVICES, NAMESPACE, "hosted")
    eventually(lambda: not client.list(kinds.HOST_PROCESSES, NAMESPACE)["items"], what="no process on the host")
    with held(client, asked, (kinds.DEPLOYMENTS, "full"), (kinds.SERVICES, "full")):
        client.delete(kinds.INFERENCE_SERVICES, NAMESPACE, "full")
    eventually(lambda: not client.list(kinds.DEPLOYMENTS, NAMESPACE)["items"], what="no Deployment")


def _host(client: KubeClient, name: str) -> None:
    host = {
        "apiVersion": kinds.HOSTS.api_version,
        "kind": "Host",
        "metadata": {"name": name, "labels": {"fleet": "life"}},
    }
    client.create(kinds.HOSTS, None, {**host, "spec": {}})
    told = {"os": "linux", "allocatable": {"memory": 8 << 30}, "runtimes": {"llama-server": "b1"}}
    client.patch(kinds.HOSTS, None, name, {"status": told}, subresource="status")
    lease = {
        "apiVersion": kinds.LEASES.api_version,
        "kind": "Lease",
        "metadata": {"name": lease_name(name), "labels": {naming.LABEL_HOST: name}},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": 3600,
            "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        },
    }
    client.create(kinds.LEASES, SYSTEM_NAMESPACE, lease)


@pytest.mark.parametrize(("row", "evidence"), OTHER_TIMES.items(), ids=str)
def test_what_is_asked_for_at_other_times_is_asked_for_by_somebody(row: Row, evidence: tuple[str, str]) -> None:
    path, word = evidence
    assert row in (*permissions.requests(permissions.LOOP), *permissions.requests(permissions.LOOP_LEASES))
    assert word in (ROOT / path).read_text()


def test_a_loop_asks_for_all_that_it_is_granted_and_for_nothing_else(tmp_path: Path, pulumi_cli: Path) -> None:
    controlplane.sweep()
    with controlplane.running(audited=LOOP_USER) as cluster:
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        install_crds(client)
        kubeconfig = grant_loop_rights(client, cluster, tmp_path / "kubeconfig")
        with loop_process(kubeconfig, tmp_path / "loop"):
            life(client, lambda: {row[:3] for row in controlplane.audited_requests(cluster)})
        asked = list(controlplane.audited_requests(cluster))
        client.close()

    granted = {*permissions.requests(permissions.LOOP), *permissions.requests(permissions.LOOP_LEASES)}
    granted = {row for row in granted if row[0] not in permissions.OPTIONAL_GROUPS}
    refused = {(group, resource, verb) for group, resource, verb, status in asked if status == 403}
    # The loop tries to create the namespace of its Leases. If it may not, the namespace has to exist.
    assert refused <= {("", "namespaces", "create")}, "needs a row in automation/install/permissions.py"
    used = {(group, resource, verb) for group, resource, verb, _ in asked}
    # An apply of a missing object is a PATCH request that needs the right to create.
    used |= {(group, resource, "create") for group, resource, verb, status in asked if (verb, status) == ("patch", 201)}
    unused = granted - used
    assert unused <= OTHER_TIMES.keys(), f"granted and never asked for: {sorted(unused - OTHER_TIMES.keys())}"
