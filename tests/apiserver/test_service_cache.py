"""The service cache of a dialect on a real API server: it starts when the CRDs appear, follows the objects that were
looked up, and does not take an object for missing while its kind cannot be listed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import Reference, ServiceCache
from automation.reconcile.services import CacheLookup
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.errors import NotYet
from program.desired.keys import ServiceKey
from program.dialects.crds.definitions import crd_documents
from tests.support import controlplane, extensions
from tests.support.loop import eventually, install_crds


@pytest.fixture(scope="module")
def client() -> Iterator[KubeClient]:
    """The administrator of a separate cluster, since CRDs are created and deleted in it."""
    with controlplane.running(("etcd", "kube-apiserver")) as cluster:
        administrator = KubeClient.from_kubeconfig(str(Path(cluster.kubeconfig)))
        install_crds(administrator)
        yield administrator
        administrator.close()


class Eyes:
    """A ClusterCache over all namespaces, and the keys that it enqueued."""

    def __init__(self, client: KubeClient) -> None:
        self.keys: list[ServiceKey] = []
        self.cluster = ClusterCache(
            client,
            namespaces=(),
            enqueue=self.keys.append,
            enqueue_after=lambda key, _: self.keys.append(key),
            enqueue_model=lambda namespace, name: None,
            api_check_s=0.3,
        )
        for cache in self.cluster.caches.values():
            cache.apis._retry_s = 0.2
        self.cluster.start()
        assert self.cluster.wait_synced(60)

    @property
    def llmaz(self) -> ServiceCache:
        return self.cluster.caches["llmaz"]

    def hears_of(self, key: ServiceKey) -> None:
        eventually(lambda: key in self.keys, what=f"{key} to be enqueued")
        self.keys.clear()


@pytest.fixture
def eyes(client: KubeClient) -> Iterator[Eyes]:
    made = Eyes(client)
    yield made
    made.cluster.stop()


def crds(client: KubeClient) -> None:
    for document in crd_documents("llmaz"):
        client.apply(kinds.CRDS, None, document, field_manager="tests", force=True)


def left(client: KubeClient) -> set[str]:
    found = {each["metadata"]["name"] for each in client.list(kinds.CRDS)["items"]}
    return found & {document["metadata"]["name"] for document in crd_documents("llmaz")}


def open_model(client: KubeClient, name: str, family: str) -> None:
    spec = {"familyName": family, "source": {"modelHub": {"modelID": "o/m"}}}
    body = {"apiVersion": kinds.OPEN_MODELS.api_version, "kind": "OpenModel", "metadata": {"name": name}, "spec": spec}
    client.apply(kinds.OPEN_MODELS, None, body, field_manager="tests", force=True)


def test_a_dialect_comes_and_goes_with_its_crds_and_hears_of_what_was_looked_up(client: KubeClient, eyes: Eyes) -> None:
    caches, key = eyes.llmaz, ServiceKey("llmaz", "default", "chat")
    assert not caches.ready() and caches.get(kinds.PLAYGROUNDS, "default", "chat") is None

    crds(client)
    eventually(caches.ready, what="the dialect to be followed")
    playground = {
        "apiVersion": kinds.PLAYGROUNDS.api_version,
        "kind": "Playground",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"modelClaim": {"modelName": "tiny"}},
    }
    client.create(kinds.PLAYGROUNDS, "default", playground)
    eyes.hears_of(key)

    tiny, another = (Reference(kinds.OPEN_MODELS, "", name) for name in ("tiny", "another"))
    caches.needs(key, frozenset({tiny}))
    assert caches.version(tiny) == ""
    open_model(client, "tiny", "acme")
    eyes.hears_of(key)
    before = caches.version(tiny)
    open_model(client, "tiny", "other")
    eyes.hears_of(key)
    eventually(lambda: caches.version(tiny) != before, what="the next version of the model")
    caches.needs(key, frozenset({another}))
    open_model(client, "tiny", "third")
    open_model(client, "another", "acme")
    eyes.hears_of(key)

    settings = Reference(kinds.CONFIG_MAPS, "default", "settings")
    caches.needs(key, frozenset({settings}))
    assert caches.get(kinds.CONFIG_MAPS, "default", "settings") is None
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
    client.create(kinds.CONFIG_MAPS, "default", config)
    eyes.hears_of(key)
    # The service may have been enqueued for the last CRD of the dialect, which is listed after `ready`.
    found = eventually(lambda: caches.get(kinds.CONFIG_MAPS, "default", "settings"), what="the ConfigMap in the cache")
    assert found["data"] == {"a": "1"}

    for document in crd_documents("llmaz"):
        client.delete(kinds.CRDS, None, document["metadata"]["name"])
    eventually(lambda: not caches.ready(), what="the dialect to be gone")
    # An apply to a CRD that is being deleted would be lost.
    eventually(lambda: not left(client), what="the CRDs to be gone")
    crds(client)
    eventually(caches.ready, what="the dialect to be back")
    eyes.hears_of(key)  # the engine may still have objects of it


def test_an_object_that_is_made_right_after_the_look_brings_the_service_back(client: KubeClient, eyes: Eyes) -> None:
    """The look-up finds nothing. Before the pass ends, the object is created and its event is delivered."""
    crds(client)
    caches, key = eyes.llmaz, ServiceKey("llmaz", "default", "late")
    eventually(caches.ready, what="the dialect to be followed")
    look = CacheLookup(caches, key, for_spec=True)
    assert look(kinds.OPEN_MODELS, None, "late") is None
    open_model(client, "late", "acme")
    eventually(lambda: caches.get(kinds.OPEN_MODELS, None, "late"), what="the model in the cache")
    caches.needs(key, frozenset(look.seen))
    eyes.hears_of(key)

    for use in ("spec", "status"):
        caches.needs(key, frozenset(), use)
    open_model(client, "late", "other")
    open_model(client, "later", "acme")
    eventually(lambda: caches.get(kinds.OPEN_MODELS, None, "later"), what="the next model in the cache")
    assert key not in eyes.keys, "what is needed no longer wakes nobody"


def test_what_the_status_needs_wakes_a_service_whatever_its_spec_needs(client: KubeClient, eyes: Eyes) -> None:
    crds(client)
    caches, key = eyes.llmaz, ServiceKey("llmaz", "default", "told")
    eventually(caches.ready, what="the dialect to be followed")
    shown = Reference(kinds.OPEN_MODELS, "", "shown")
    caches.needs(key, frozenset({shown}), "status")
    caches.needs(key, frozenset())
    open_model(client, "shown", "acme")
    eyes.hears_of(key)


def test_a_service_whose_caches_are_not_filled_is_looked_at_when_they_are(client: KubeClient, eyes: Eyes) -> None:
    """An example is a service whose custom resource was deleted before its objects: no other event enqueues it."""
    for name in left(client):
        client.delete(kinds.CRDS, None, name)
    caches, key = eyes.llmaz, ServiceKey("llmaz", "default", "orphan")
    eventually(lambda: not caches.ready(), what="the dialect to be gone")
    caches.postpone(key)
    time.sleep(0.5)
    assert key not in eyes.keys
    eventually(lambda: not left(client), what="the definitions to be gone")
    crds(client)
    eyes.hears_of(key)


def test_an_object_of_a_kind_that_cannot_be_listed_is_not_taken_for_missing(client: KubeClient) -> None:
    crds(client)
    with extensions.unreadable(client, kinds.LEADER_WORKER_SETS, "default") as mend:
        eyes = Eyes(client)
        try:
            caches, key = eyes.llmaz, ServiceKey("llmaz", "default", "chat")
            assert caches.ready(), "one kind that cannot be listed does not stop the dialect"
            look = CacheLookup(caches, key, for_spec=True)
            with pytest.raises(NotYet, match=r"LeaderWorkerSet cannot be listed: .*conversion webhook") as caught:
                look(kinds.LEADER_WORKER_SETS, "default", "chat")
            assert caught.value.reason == "ApiUnavailable"
            assert CacheLookup(caches, key, for_spec=False)(kinds.LEADER_WORKER_SETS, "default", "chat") is None
            mend()
            eventually(lambda: kinds.LEADER_WORKER_SETS in caches.apis.served, what="the kind to be followed")
            assert look(kinds.LEADER_WORKER_SETS, "default", "chat") is None
        finally:
            eyes.cluster.stop()
