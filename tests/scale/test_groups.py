"""Groups of pods on several nodes: the real controller of LeaderWorkerSets makes their pods, on nodes of kwok."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.engine.port import Batch, BatchOutcome, Stack
from automation.engine.pulumi_engine import PulumiEngine
from components.options import RenderOptions
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from components.render import render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.workloads import PodSet, Workloads
from tests.support import controlplane, lws
from tests.support.controlplane import eventually
from tests.support.workloads import IMAGE, described, group_set, pod_set
from tools import fake_nodes
from tools.localcluster import LocalCluster

NAMESPACE = "groups"
OPTIONS = RenderOptions(installed=frozenset({kinds.LEADER_WORKER_SETS.full_name}))
LABEL = "leaderworkerset.sigs.k8s.io"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A control plane with three fake nodes and the controller of LeaderWorkerSets."""
    controlplane.sweep()
    for name in ("kwok", "lws-controller", "pulumi"):
        controlplane.tool_or_skip(name)
    directory = tmp_path_factory.mktemp("groups")
    with (
        controlplane.running() as made,
        fake_nodes.simulated(made.kubeconfig, directory / "kwok"),
        lws.running(made, directory / "lws"),
    ):
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    for number in range(3):
        made.create(kinds.NODES, None, fake_nodes.node(f"node-{number}", extended={}))
    made.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield made
    made.close()


@pytest.fixture
def engine(client: KubeClient, tmp_path: Path, pulumi_cli: Path) -> Iterator[PulumiEngine]:
    with EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as plugins:
        made = PulumiEngine(
            provider_port=plugins.ports["kubernetes"],
            state_url=f"file://{tmp_path}/state",
            work_root=tmp_path / "work",
            pulumi=pulumi_cli,
        )
        yield made
        made.close()


def rendered(*sets: PodSet) -> RenderedService:
    return render(described(Workloads(pods=sets), namespace=NAMESPACE, owner=None), OPTIONS)


def pods_of(client: KubeClient, name: str) -> list[Json]:
    pods: list[Json] = client.list(kinds.PODS, NAMESPACE, label_selector=f"{LABEL}/name={name}")["items"]
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def indexes(client: KubeClient, name: str) -> list[tuple[str, str]]:
    """Return the group index and the worker index of each ready pod of a set, sorted."""
    found = []
    for pod in pods_of(client, name):
        labels = pod["metadata"]["labels"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))
        if ready:
            found.append((labels[f"{LABEL}/group-index"], labels[f"{LABEL}/worker-index"]))
    return sorted(found)


def available(client: KubeClient, name: str) -> bool:
    live = client.get(kinds.LEADER_WORKER_SETS, NAMESPACE, name)
    status = live.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
    seen = status.get("observedGeneration", live["metadata"]["generation"]) == live["metadata"]["generation"]
    return seen and conditions.get("Available") == "True" and status.get("readyReplicas") == live["spec"]["replicas"]


def told(outcome: BatchOutcome) -> list[tuple[str, str]]:
    assert all(one.ok for one in outcome.services.values()), outcome
    changes = [change for one in outcome.services.values() for change in one.changes if change.op != "same"]
    return sorted((change.op, change.name) for change in changes)


@pytest.mark.soak
def test_a_service_over_several_nodes_gets_its_groups_grows_changes_and_goes(
    client: KubeClient, engine: PulumiEngine
) -> None:
    stack = Stack(NAMESPACE)

    def up(*sets: PodSet) -> list[tuple[str, str]]:
        return told(engine.up(Batch(stack, (rendered(*sets),))))

    decode = group_set(name="svc-mn", of="svc", size=3, replicas=2)
    prefill = group_set("prefill", name="svc-mn-prefill", of="svc", size=2, replicas=1)
    up(decode, prefill)
    places = [(str(group), str(place)) for group in range(2) for place in range(3)]
    eventually(lambda: indexes(client, "svc-mn") == places, what="two leaders with two workers each", timeout_s=90)
    eventually(lambda: available(client, "svc-mn") and available(client, "svc-mn-prefill"), what="both to be Available")
    assert len(pods_of(client, "svc-mn-prefill")) == 2
    leader, worker = (
        next(pod for pod in pods_of(client, "svc-mn") if pod["metadata"]["name"] == name)
        for name in ("svc-mn-0", "svc-mn-0-1")
    )
    assert leader["spec"]["containers"][0]["args"] == ["serve", "--leader"]
    assert worker["spec"]["containers"][0]["args"] == ["serve", "--worker"]
    env = {one["name"]: one.get("value") for one in worker["spec"]["containers"][0]["env"]}
    assert env["LWS_LEADER_ADDRESS"] == f"svc-mn-0.svc-mn.{NAMESPACE}"
    assert leader["spec"]["containers"][0]["image"] == IMAGE

    # Defaults that the webhooks set are neither drift nor a change.
    assert told(engine.preview(Batch(stack, (rendered(decode, prefill),)))) == []

    # One more group.
    assert up(decode.model_copy(update={"replicas": 3}), prefill) == [("update", "svc-mn")]
    eventually(lambda: len(indexes(client, "svc-mn")) == 9, what="a third group", timeout_s=90)

    # With another group size, the controller recreates each group.
    assert decode.group is not None
    smaller = decode.model_copy(update={"replicas": 1, "group": decode.group.model_copy(update={"size": 2})})
    up(smaller, prefill)
    eventually(
        lambda: indexes(client, "svc-mn") == [("0", "0"), ("0", "1")], what="one leader with one worker", timeout_s=120
    )
    # Back to one node: a Deployment replaces the groups.
    assert up(pod_set(name="svc-kserve", of="svc"), prefill) == [("create", "svc-kserve"), ("delete", "svc-mn")]
    eventually(lambda: not pods_of(client, "svc-mn"), what="the groups' pods to go")
    engine.destroy(stack)
    eventually(lambda: not pods_of(client, "svc-mn") and not pods_of(client, "svc-mn-prefill"), what="no pods")
