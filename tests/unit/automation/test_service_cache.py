"""Which services a change concerns: by the objects that were looked up for them, by the node of their pods, by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import ANY, Reference
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.config import Access, Endpoint
from kubeapi.json_types import Json
from program.desired.keys import LABEL_PLAYGROUND, ServiceKey

CHAT, OTHER = ServiceKey("llmkube", "ns", "chat"), ServiceKey("llmkube", "ns", "other")


class Cluster:
    """A ClusterCache whose informers do not run, and the keys that it enqueued."""

    def __init__(self, client: KubeClient) -> None:
        self.keys: list[ServiceKey] = []
        self.models: list[str] = []
        self.cache = ClusterCache(
            client,
            namespaces=(),
            enqueue=self.keys.append,
            enqueue_model=lambda _, name: self.models.append(name),
        )

    def enqueued(self) -> tuple[set[ServiceKey], set[str]]:
        found = set(self.keys), set(self.models)
        self.keys.clear()
        self.models.clear()
        return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    client = KubeClient(Access(lambda: Endpoint("http://127.0.0.1:1")))
    yield Cluster(client)
    client.close()


def model(version: str, *, generation: int = 1, labels: Json | None = None, **status: str) -> Json:
    metadata = {"namespace": "ns", "name": "tiny", "uid": "u", "resourceVersion": version, "generation": generation}
    spec = {"source": f"https://host/{generation}"}
    return {"metadata": {**metadata, "labels": labels or {}}, "spec": spec, "status": status}


def test_a_service_is_enqueued_for_the_model_that_was_looked_up_for_it(cluster: Cluster) -> None:
    caches = cluster.cache.llmkube
    tiny = Reference(kinds.MODELS, "ns", "tiny")
    caches.needs(CHAT, frozenset({tiny}))
    caches.needs(OTHER, frozenset({Reference(kinds.MODELS, "ns", "large")}))
    first, loaded = model("1"), model("2", phase="Ready")
    caches.changed(kinds.MODELS, None, first)
    assert cluster.enqueued() == ({CHAT}, {"tiny"})
    caches.changed(kinds.MODELS, first, loaded)
    assert cluster.enqueued() == ({CHAT}, set()), "a Model's own status is no work for its controller"
    caches.changed(kinds.MODELS, loaded, model("3", labels={"a": "b"}, phase="Ready"))
    assert cluster.enqueued() == (set(), set())
    caches.changed(kinds.MODELS, loaded, model("4", generation=2, phase="Ready"))
    assert cluster.enqueued() == ({CHAT}, {"tiny"})
    caches.drop_service(CHAT)
    caches.changed(kinds.MODELS, loaded, None)
    assert cluster.enqueued() == (set(), {"tiny"})


def test_an_edited_label_enqueues_a_service_and_a_written_status_does_not(cluster: Cluster) -> None:
    caches = cluster.cache.llmkube
    metadata = {"namespace": "ns", "name": CHAT.name, "uid": "u", "generation": 1}
    first: Json = {"metadata": metadata, "spec": {"modelRef": "tiny"}}
    caches.changed(kinds.INFERENCE_SERVICES, None, first)
    assert cluster.enqueued() == ({CHAT}, set())
    caches.changed(kinds.INFERENCE_SERVICES, first, {**first, "status": {"phase": "Ready"}})
    assert cluster.enqueued() == (set(), set())
    caches.changed(kinds.INFERENCE_SERVICES, first, {**first, "metadata": {**metadata, "labels": {"team": "a"}}})
    assert cluster.enqueued() == ({CHAT}, set())


def test_services_with_another_generation_than_their_status_and_new_ones_count_as_edited(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def service(name: str, generation: int, **status: object) -> tuple[str, Json]:
        return "llmkube", {"metadata": {"namespace": "ns", "name": name, "generation": generation}, "status": status}

    services = [
        service("same", 2, observedGeneration=2),
        service("edited", 2, observedGeneration=1),
        service("new", 1),
        ("llmkube", {"metadata": {"namespace": "ns", "name": "bare", "generation": 1}}),
    ]
    monkeypatch.setattr(cluster.cache, "list_services", lambda: services)
    assert {key.name for key in cluster.cache.edited_keys()} == {"edited", "new", "bare"}


def test_a_model_counts_by_its_status_too_and_others_by_their_generation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dialect, kind, counts in (("llmkube", kinds.MODELS, True), ("llmaz", kinds.OPEN_MODELS, False)):
        caches, found = cluster.cache.caches[dialect], [model("1"), model("2", phase="Ready")]
        monkeypatch.setattr(caches, "get", lambda *_, found=found: found.pop(0))
        reference = Reference(kind, "ns", "tiny")
        assert (caches.version(reference) != caches.version(reference)) is counts


def test_a_node_that_fails_concerns_the_services_with_pods_on_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [
        {"metadata": {"namespace": "ns", "name": name, "labels": {naming.LABEL_SERVICE: name}}, "node": node}
        for name, node in (("chat", "a"), ("other", "b"))
    ]
    monkeypatch.setattr(cluster.cache.llmkube.required[kinds.PODS], "list", lambda: pods)
    node = {"metadata": {"name": "a", "labels": {}}, "status": {"capacity": {}}, "trouble": ""}
    cluster.cache._node_changed(node, {**node, "trouble": "NodeStatusUnknown"})
    assert cluster.enqueued() == ({CHAT}, set())


def test_an_inference_service_that_goes_frees_its_name_and_enqueues_its_rivals(cluster: Cluster) -> None:
    caches = cluster.cache.llmkube

    def service(name: str) -> Json:
        return {"metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": {"modelRef": "tiny"}}

    for name in ("llama-3.1", "llama-3-1"):
        caches.changed(kinds.INFERENCE_SERVICES, None, service(name))
    cluster.enqueued()
    caches.changed(kinds.INFERENCE_SERVICES, service("llama-3.1"), None)
    found, models = cluster.enqueued()
    assert {key.name for key in found} == {"llama-3.1", "llama-3-1"}
    assert caches.index.services_of_model("ns", "tiny") == ["llama-3-1"]
    assert models <= {"tiny"}


def test_an_edited_adapter_enqueues_its_service_and_its_status_only_the_adapters(cluster: Cluster) -> None:
    passes: list[str] = []
    cluster.cache.on_adapter_input = lambda: passes.append("pass")
    caches = cluster.cache.llmkube
    assert kinds.LORA_ADAPTERS not in caches.required, "the loop starts without the CRD"
    caches.needs(CHAT, frozenset({Reference(kinds.LORA_ADAPTERS, "ns", ANY)}))
    metadata = {"namespace": "ns", "name": "sql", "uid": "u", "resourceVersion": "1", "generation": 1}
    first: Json = {"metadata": metadata, "spec": {"source": "https://host/1"}}
    caches.changed(kinds.LORA_ADAPTERS, None, first)
    assert cluster.enqueued() == ({CHAT}, set())
    loaded = {**first, "metadata": {**metadata, "resourceVersion": "2"}, "status": {"phase": "Loaded"}}
    caches.changed(kinds.LORA_ADAPTERS, first, loaded)
    assert cluster.enqueued() == (set(), set())
    caches.changed(kinds.LORA_ADAPTERS, loaded, {**loaded, "spec": {"source": "https://host/2"}})
    assert cluster.enqueued() == ({CHAT}, set())
    assert passes == ["pass"] * 3


def test_pods_and_processes_of_every_dialect_are_input_of_the_adapters(cluster: Cluster) -> None:
    passes: list[str] = []
    cluster.cache.on_adapter_input = lambda: passes.append("pass")
    playgrounds = cluster.cache.caches["llmaz"]
    metadata: Json = {"namespace": "ns", "name": "p", "uid": "u", "generation": 1}
    playgrounds.changed(kinds.PLAYGROUNDS, None, {"metadata": metadata, "spec": {}})
    labels = {LABEL_PLAYGROUND: "p"}
    playgrounds.changed(kinds.PODS, None, {"metadata": {**metadata, "labels": labels}})
    labels = {naming.LABEL_SERVICE: "chat"}
    cluster.cache.llmkube.changed(kinds.HOST_PROCESSES, None, {"metadata": {**metadata, "labels": labels}})
    assert len(passes) == 3
