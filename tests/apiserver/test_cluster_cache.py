"""The loop's cache on a real API server: APIs that appear and disappear, quotas, terminating namespaces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.admission.quota import QuotaClaim, QuotaName
from automation.admission.quota_controller import QuotaController, running_claims
from automation.cache.cluster_cache import ClusterCache
from automation.cache.optional_apis import OptionalApis
from automation.leadership.shards import Shard
from automation.reconcile.observe import Observed, observe
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from tests.support import extensions
from tests.support.controlplane import eventually
from tests.support.loop import install_crds, service
from tools.localcluster import LocalCluster


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    install_crds(made)
    yield made
    made.close()


class Eyes:
    """A ClusterCache over one namespace, and the services that it enqueued."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.enqueued: list[str] = []
        self.cluster = ClusterCache(
            client,
            namespaces=(namespace,),
            enqueue=lambda key: self.enqueued.append(key.name),
            enqueue_model=lambda namespace, name: None,
        )
        # Shorter intervals than in production, to save time.
        self.cluster.llmkube.apis._check_every_s = 1.0
        self.cluster.llmkube.apis._retry_s = 0.2
        self.cluster.start()
        assert self.cluster.wait_synced(60)
        self._namespace = namespace

    def observe(self, key: ServiceKey, *, owner: str) -> Observed:
        return observe(self.cluster, self.cluster.llmkube, key, owner=owner)

    def service(self, name: str) -> Json | None:
        return self.cluster.llmkube.get(kinds.INFERENCE_SERVICES, self._namespace, name)


@pytest.fixture
def eyes(client: KubeClient, namespace: str) -> Iterator[Eyes]:
    made = Eyes(client, namespace)
    yield made
    made.cluster.stop()


def extension(kind: Kind) -> Json:
    """Return a CRD of one of the optional kinds; it accepts any content."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": kind.api_version.rpartition("/")[2],
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def owned_by(cr: Json, kind: Kind, name: str) -> Json:
    owner = {
        "apiVersion": cr["apiVersion"],
        "kind": cr["kind"],
        "name": cr["metadata"]["name"],
        "uid": cr["metadata"]["uid"],
        "controller": True,
    }
    labels = {naming.LABEL_SERVICE: cr["metadata"]["name"]}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {},
    }


def test_an_api_that_appears_is_followed_and_one_that_goes_leaves_nothing_behind(
    client: KubeClient, namespace: str, eyes: Eyes
) -> None:
    cluster, caches, kind = eyes.cluster, eyes.cluster.llmkube, kinds.SCALED_OBJECTS
    assert kind.full_name not in cluster.installed()
    assert "ScaledObject" not in cluster.llmkube.made_kinds()
    cr = service(client, namespace, "idle", autoscaling={"minReplicas": 1, "maxReplicas": 2})
    key = ServiceKey("llmkube", namespace, "idle")
    eventually(lambda: caches.get(caches.kind, namespace, "idle"), what="the service in the cache")
    client.apply(kinds.CRDS, None, extension(kind), field_manager="tests", force=True)
    try:
        eventually(lambda: kind.full_name in cluster.installed(), what="KEDA to be noticed")
        assert "ScaledObject" in cluster.llmkube.made_kinds()
        client.create(kind, namespace, owned_by(cr, kind, "idle"))
        eventually(
            lambda: ("ScaledObject", "idle") in caches.index.objects(namespace, "idle"),
            what="the object in the index",
        )
        seen = eyes.observe(key, owner=cr["metadata"]["uid"])
        assert [live.name.kind for live in seen.live] == ["ScaledObject"]
        assert seen.autoscaler is not None
        eyes.enqueued.clear()
    finally:
        client.delete(kinds.CRDS, None, f"{kind.plural}.{kind.group}")
    eventually(lambda: kind.full_name not in cluster.installed(), what="KEDA to be missed", timeout_s=30)
    # The cache is emptied first; then all services are enqueued.
    eventually(lambda: "idle" in eyes.enqueued, what="the service to be enqueued")
    eventually(lambda: not cluster.llmkube.index.objects(namespace, "idle"), what="the object to leave the index")
    assert cluster.llmkube.informer(kind) is None
    # The missing kind causes no requests except the check once a second.
    time.sleep(0.5)
    before = client.requests_total
    time.sleep(3.0)
    assert client.requests_total - before <= 6


def test_an_api_that_may_not_be_listed_is_as_good_as_absent(
    control_plane: LocalCluster, namespace: str, tmp_path: Path, client: KubeClient
) -> None:
    control_plane.write_kubeconfig(tmp_path / "guest", user="guest", groups=("guests",))
    guest = KubeClient.from_kubeconfig(str(tmp_path / "guest"))
    optional = OptionalApis(
        guest,
        [kinds.GPU_QUOTAS],
        make=lambda kind: pytest.fail(f"an informer of {kind.kind}"),
        on_change=lambda changed: None,
        namespace=namespace,
    )
    optional.start()
    try:
        assert optional.wait_synced(60)
        assert optional.served == frozenset()
    finally:
        optional.stop()
        guest.close()


def quota(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": kinds.GPU_QUOTAS.api_version,
        "kind": "GPUQuota",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_a_quota_holds_and_its_status_says_what_is_used(client: KubeClient, namespace: str, eyes: Eyes) -> None:
    cluster, name = eyes.cluster, QuotaName(namespace, "team")
    key = ServiceKey("llmkube", namespace, "a")
    controller = QuotaController(client, cluster)
    controller.start()
    client.create(kinds.GPU_QUOTAS, namespace, quota("team", namespaceRef=namespace, gpuCount=2))
    eventually(lambda: name in cluster.quotas.usages(), what="the quota to be known")
    assert cluster.quotas.reserve(key, QuotaClaim(gpus=2, priority=1)) is None
    denied = cluster.quotas.reserve(key._replace(name="b"), QuotaClaim(gpus=1, priority=1))
    assert denied is not None
    assert f"GPUQuota {namespace}/team: GPUs: 1 requested, 2 of 2 used by others" in denied.message

    def status() -> Json:
        return client.get(kinds.GPU_QUOTAS, namespace, "team").get("status") or {}

    eventually(lambda: status().get("admissionDenials") == 1, what="the denial in the status")
    found = status()
    assert (found["usedGPUCount"], found["lastDenial"]["service"]) == (2, f"{namespace}/b")
    version = client.get(kinds.GPU_QUOTAS, namespace, "team")["metadata"]["resourceVersion"]
    controller.report()
    assert client.get(kinds.GPU_QUOTAS, namespace, "team")["metadata"]["resourceVersion"] == version
    client.patch(kinds.GPU_QUOTAS, namespace, "team", {"spec": {"gpuCount": 1}})
    eventually(lambda: status()["conditions"][0]["reason"] == "OverUsed", what="the over-use in the status")
    assert cluster.quotas.reserve(key, QuotaClaim(gpus=2, priority=1)) is None, "what runs goes on"
    eyes.enqueued.clear()
    client.patch(kinds.GPU_QUOTAS, namespace, "team", {"spec": {"gpuCount": 3}})
    eventually(lambda: "b" in eyes.enqueued, what="the one that waits to be enqueued")


def test_a_quota_that_is_made_again_gets_a_status_again(client: KubeClient, namespace: str, eyes: Eyes) -> None:
    QuotaController(client, eyes.cluster).start()

    def status() -> Json:
        return client.get(kinds.GPU_QUOTAS, namespace, "team").get("status") or {}

    body = quota("team", namespaceRef=namespace, gpuCount=2)
    client.create(kinds.GPU_QUOTAS, namespace, body)
    eventually(lambda: status().get("usedGPUCount") == 0, what="the first status")
    client.delete(kinds.GPU_QUOTAS, namespace, "team")
    client.create(kinds.GPU_QUOTAS, namespace, body)
    eventually(lambda: status().get("usedGPUCount") == 0, what="the status of the second")
    # A status that another client emptied is written again.
    before = client.get(kinds.GPU_QUOTAS, namespace, "team")
    client.replace(kinds.GPU_QUOTAS, namespace, {**before, "status": {}}, subresource="status")
    eventually(lambda: not status(), what="the status to be emptied")
    eyes.cluster.quotas.on_changed()
    eventually(lambda: status().get("usedGPUCount") == 0, what="the status to be written again")


def test_a_failure_does_not_end_hearing_of_the_other_loops(client: KubeClient, namespace: str, eyes: Eyes) -> None:
    timers: list[Callable[[], None]] = []
    controller = QuotaController(client, eyes.cluster, shard=Shard(0, 2), later=lambda _, call: timers.append(call))
    client.create(kinds.GPU_QUOTAS, namespace, quota("team", namespaceRef=namespace, gpuCount=2))
    name = QuotaName(namespace, "team")
    eventually(lambda: name in eyes.cluster.quotas.usages(), what="the quota to be known")
    controller.start()
    for _ in range(3):
        timers.pop()()
    labels = {naming.LABEL_SERVICE: "odd"}
    broken: Any = {"metadata": {"namespace": namespace, "name": "odd", "labels": labels}}
    next(iter(eyes.cluster.llmkube.required[kinds.DEPLOYMENTS]._reflectors)).objects[(namespace, "odd")] = broken
    client.apply(
        kinds.INFERENCE_SERVICES,
        namespace,
        {
            "apiVersion": kinds.INFERENCE_SERVICES.api_version,
            "kind": "InferenceService",
            "metadata": {"name": "odd"},
            "spec": {"modelRef": "m"},
        },
        field_manager="tests",
    )
    eventually(lambda: eyes.service("odd"), what="the service")
    timers.pop()()
    assert len(timers) == 1, "the next look is set all the same"


def test_what_runs_already_is_counted_when_the_loop_starts(client: KubeClient, namespace: str, eyes: Eyes) -> None:
    cluster = eyes.cluster
    cr = service(client, namespace, "old", priority="high", resources={"gpuMemory": "8Gi"})
    body = owned_by(cr, kinds.DEPLOYMENTS, "old")
    labels = {"app": "old"}
    resources = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"memory": "1Gi"}}
    body["spec"] = {
        "replicas": 3,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "engine", "image": "none", "resources": resources}]},
        },
    }
    client.create(kinds.DEPLOYMENTS, namespace, body)
    eventually(lambda: cluster.llmkube.index.objects(namespace, "old"), what="the Deployment in the index")
    eventually(lambda: eyes.service("old"), what="its service in the cache")
    claim = running_claims(cluster)[ServiceKey("llmkube", namespace, "old")]
    assert (claim.gpus, claim.memory_bytes, claim.gpu_memory_bytes) == (6, 3 * 2**30, 24 * 2**30)


def test_the_labels_of_a_new_namespace_are_known_before_its_event(client: KubeClient, namespace: str) -> None:
    cluster = ClusterCache(client, namespaces=(), enqueue=lambda _: None, enqueue_model=lambda *_: None)
    assert cluster.current_labels(namespace)["kubernetes.io/metadata.name"] == namespace
    assert cluster.current_labels("missing") == {}


def test_the_event_of_a_new_namespace_enqueues_the_services_that_came_before_it(
    client: KubeClient, eyes: Eyes, namespace: str
) -> None:
    service(client, namespace, "early")
    eventually(lambda: eyes.service("early"), what="the service in the cache")
    eventually(lambda: "early" in eyes.enqueued, what="its own event")
    eyes.enqueued.clear()
    eyes.cluster._namespace_changed(None, eyes.cluster.namespaces.get(None, namespace))
    assert "early" in eyes.enqueued


def test_a_namespace_that_is_being_deleted_is_known_as_such(client: KubeClient, eyes: Eyes, namespace: str) -> None:
    service(client, namespace, "left")
    eventually(lambda: eyes.service("left"), what="the service in the cache")
    holding = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "holds", "finalizers": ["example.org/holds"]},
    }
    client.create(kinds.CONFIG_MAPS, namespace, holding)
    assert not observe(
        eyes.cluster, eyes.cluster.llmkube, ServiceKey("llmkube", namespace, "left"), owner="x"
    ).namespace_terminating
    eyes.enqueued.clear()
    client.delete(kinds.NAMESPACES, None, namespace)
    try:
        eventually(lambda: eyes.cluster.is_terminating(namespace), what="the namespace to be seen terminating")
        eventually(lambda: "left" in eyes.enqueued, what="its service to be enqueued")
        assert observe(
            eyes.cluster, eyes.cluster.llmkube, ServiceKey("llmkube", namespace, "left"), owner="x"
        ).namespace_terminating
    finally:
        client.patch(kinds.CONFIG_MAPS, namespace, "holds", {"metadata": {"finalizers": None}})


def test_a_priority_is_the_value_of_its_class(client: KubeClient, namespace: str, eyes: Eyes) -> None:
    name = f"class-{namespace}"
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 4321,
    }
    service(client, namespace, "chat", priorityClassName=name)
    key = ServiceKey("llmkube", namespace, "chat")
    eventually(lambda: eyes.service("chat"), what="the service in the cache")
    eventually(lambda: "chat" in eyes.enqueued, what="the new service to be enqueued")
    assert eyes.observe(key, owner="x").priority_value is None
    eyes.enqueued.clear()
    client.create(kinds.PRIORITY_CLASSES, None, body)
    try:
        eventually(lambda: "chat" in eyes.enqueued, what="the service to be enqueued")
        assert eyes.observe(key, owner="x").priority_value == 4321
    finally:
        client.delete(kinds.PRIORITY_CLASSES, None, name)


def test_an_optional_api_that_answers_500_stops_nothing_and_is_used_once_it_answers(
    client: KubeClient, namespace: str
) -> None:
    with extensions.unreadable(client, kinds.SCALED_OBJECTS, namespace) as mend:
        service(client, namespace, autoscaling={"minReplicas": 0, "maxReplicas": 2})
        eyes = Eyes(client, namespace)
        try:
            assert kinds.SCALED_OBJECTS not in eyes.cluster.llmkube.apis.served
            assert "conversion webhook" in eyes.cluster.llmkube.trouble(kinds.SCALED_OBJECTS)
            # A service that an earlier loop rendered with KEDA keeps its ScaledObject.
            assert kinds.SCALED_OBJECTS.full_name in eyes.cluster.installed()
            assert "ScaledObject" not in eyes.cluster.llmkube.made_kinds()
            (fault,) = [each for each in eyes.cluster.faults() if "ScaledObject" in each.what]
            assert not fault.restart_helps
            eventually(lambda: eyes.enqueued, what="the service to be looked at")
            eyes.enqueued.clear()
            mend()
            eventually(lambda: kinds.SCALED_OBJECTS in eyes.cluster.llmkube.apis.served, what="the kind to be followed")
            eventually(lambda: eyes.enqueued == ["svc"], what="the service that uses it to be looked at")
            assert not eyes.cluster.llmkube.trouble(kinds.SCALED_OBJECTS)
        finally:
            eyes.cluster.stop()


def test_while_quotas_cannot_be_read_nobody_gets_more_than_they_hold(client: KubeClient, namespace: str) -> None:
    eyes = Eyes(client, namespace)
    eyes.cluster.stop()
    quotas, why = eyes.cluster.quotas, ["ServerError (500): conversion webhook failed"]
    quotas.unreadable = lambda: why[0]
    runs, new = ServiceKey("llmkube", namespace, "runs"), ServiceKey("llmkube", namespace, "new")
    quotas.hold(runs, QuotaClaim(gpus=1))
    assert quotas.reserve(runs, QuotaClaim(gpus=1)) is None
    problem = quotas.reserve(new, QuotaClaim(gpus=1))
    assert problem is not None and "cannot read the GPUQuotas" in problem.message
    assert eyes.enqueued == []
    why[0] = ""
    quotas.admit_again()
    assert eyes.enqueued == ["new"]
    assert quotas.reserve(new, QuotaClaim(gpus=1)) is None
