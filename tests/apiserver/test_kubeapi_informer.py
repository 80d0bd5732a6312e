"""Informers on a real API server, also through a relay that cuts, refuses and freezes connections."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Unreadable
from kubeapi.informer import Informer
from kubeapi.kinds import Kind
from tests.apiserver.test_kubeapi_client import crd
from tests.support.controlplane import eventually
from tests.support.relay import Relay
from tools.localcluster import LocalCluster


class Changes:
    """The changes that an informer delivered, as (name, old data, new data)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, Any]] = []

    def __call__(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        if name != "kube-root-ca.crt":
            self.told.append((name, old and old.get("data"), new and new.get("data")))

    def of(self, name: str) -> list[tuple[Any, Any]]:
        return [(old, new) for told, old, new in self.told if told == name]


def data(informer: Informer) -> dict[str, Any]:
    return {
        obj["metadata"]["name"]: obj.get("data")
        for obj in informer.list()
        if obj["metadata"]["name"] != "kube-root-ca.crt"
    }


def holds(informer: Informer, truth: dict[str, Any]) -> bool:
    return data(informer) == truth


Make = Callable[..., Informer]


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    yield client
    client.close()


@pytest.fixture
def make(client: KubeClient) -> Iterator[Make]:
    """A function that starts an informer, which is stopped after the test."""
    started: list[Informer] = []

    def start(through: KubeClient | None = None, kind: Kind = kinds.CONFIG_MAPS, **options: Any) -> Informer:
        informer = Informer(through or client, kind, **options)
        started.append(informer)
        informer.start()
        return informer

    yield start
    for informer in started:
        informer.stop()


@pytest.fixture
def relay(control_plane: LocalCluster) -> Iterator[Relay]:
    relay = Relay(control_plane.server)
    yield relay
    relay.close()


@pytest.fixture
def relayed(relay: Relay, kubeconfig: Path, tmp_path: Path) -> KubeClient:
    return KubeClient.from_kubeconfig(relay.kubeconfig(kubeconfig, tmp_path / "relayed"))


@pytest.fixture
def put(client: KubeClient, namespace: str) -> Callable[..., None]:
    def put(name: str, into: str = namespace, labels: dict[str, str] | None = None, **values: str) -> None:
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels or {}}}
        client.apply(kinds.CONFIG_MAPS, into, {**obj, "data": values}, field_manager="tests", force=True)

    return put


def test_what_exists_is_told_before_synced_and_changes_after(
    make: Make, client: KubeClient, namespace: str, put: Callable[..., None]
) -> None:
    put("before", x="1")
    changes = Changes()
    informer = make(namespaces=[namespace], on_change=changes)
    assert informer.wait_synced(60)
    assert changes.told == [("before", None, {"x": "1"})]
    put("after", x="1")
    put("after", x="2")
    client.delete(kinds.CONFIG_MAPS, namespace, "after")
    eventually(lambda: len(changes.of("after")) >= 3, what="three changes")
    assert changes.of("after") == [(None, {"x": "1"}), ({"x": "1"}, {"x": "2"}), ({"x": "2"}, None)]
    assert data(informer) == {"before": {"x": "1"}}
    cached = informer.get(namespace, "before")
    assert cached is not None
    assert (cached["apiVersion"], cached["kind"]) == ("v1", "ConfigMap")
    assert "managedFields" not in cached["metadata"]


def test_a_list_is_reported_after_its_objects_are_cached_and_told(
    client: KubeClient, namespace: str, put: Callable[..., None]
) -> None:
    put("before", x="1")
    changes = Changes()
    seen: list[tuple[dict[str, Any], list[tuple[str, Any, Any]]]] = []

    def report(_kind: Kind) -> None:
        seen.append((data(informer), list(changes.told)))

    informer = Informer(client, kinds.CONFIG_MAPS, namespaces=[namespace], on_change=changes, on_relist=report)
    informer.start()
    try:
        assert informer.wait_synced(60)
    finally:
        informer.stop()
    assert seen == [({"before": {"x": "1"}}, [("before", None, {"x": "1"})])]


def test_a_collection_of_several_pages_is_cached_whole(make: Make, namespace: str, put: Callable[..., None]) -> None:
    for number in range(503):
        put(f"m{number}")
    informer = make(namespaces=[namespace])
    assert informer.wait_synced(60)
    assert len(data(informer)) == 503
    assert informer.relists_total == 1


def test_several_namespaces_are_watched_and_no_other(
    make: Make, api: Any, namespace: str, put: Callable[..., None]
) -> None:
    with api.namespace() as second, api.namespace() as other:
        informer = make(namespaces=[namespace, second])
        assert informer.wait_synced(60)
        put("a", into=namespace)
        put("b", into=second)
        put("c", into=other)
        put("d", into=second)
        # Each namespace has a separate watch, which does not wait for the others.
        eventually(lambda: informer.get(second, "d") and informer.get(namespace, "a"), what="the last change of each")
        assert sorted(data(informer)) == ["a", "b", "d"]
        assert {obj["metadata"]["name"] for obj in informer.list(second)} >= {"b", "d"}
        assert informer.get(second, "a") is None


def test_an_object_that_loses_its_label_is_gone_from_the_cache(
    make: Make, namespace: str, put: Callable[..., None]
) -> None:
    changes = Changes()
    put("a", labels={"mine": "yes"}, x="1")
    informer = make(namespaces=[namespace], label_selector="mine=yes", on_change=changes)
    assert informer.wait_synced(60)
    put("a", labels={}, x="2")
    eventually(lambda: not informer.list() and len(changes.of("a")) >= 2, what="the object to leave")
    assert changes.of("a") == [(None, {"x": "1"}), ({"x": "1"}, None)]


def test_objects_are_shrunk_before_they_are_cached(make: Make, namespace: str, put: Callable[..., None]) -> None:
    put("a", big="x" * 1000)

    def keep_metadata(obj: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {k: obj["metadata"][k] for k in ("name", "namespace", "resourceVersion")}}

    informer = make(namespaces=[namespace], transform=keep_metadata)
    assert informer.wait_synced(60)
    assert set(informer.get(namespace, "a") or {}) == {"metadata"}


def test_a_handler_that_raises_stops_nothing(make: Make, namespace: str, put: Callable[..., None]) -> None:
    def broken(old: Any, new: Any) -> None:
        raise RuntimeError("a defect")

    put("a")
    informer = make(namespaces=[namespace], on_change=broken)
    assert informer.wait_synced(60)
    put("b")
    eventually(lambda: informer.get(namespace, "b"), what="the change after the failure")
    assert informer.relists_total == 1


def test_a_handler_may_read_the_cache_that_holds_the_change_already(
    make: Make, namespace: str, put: Callable[..., None]
) -> None:
    seen: list[Any] = []
    holder: list[Informer] = []
    ready = threading.Event()

    def read(old: Any, new: Any) -> None:
        ready.wait(5)
        seen.append((new["metadata"]["name"], holder[0].get(namespace, new["metadata"]["name"]) is new))

    put("a")
    holder.append(make(namespaces=[namespace], on_change=read))
    ready.set()
    assert holder[0].wait_synced(60)
    assert ("a", True) in seen


def test_a_cut_watch_goes_on_where_it_was(
    make: Make, relay: Relay, relayed: KubeClient, namespace: str, put: Callable[..., None]
) -> None:
    changes = Changes()
    put("a", x="1")
    informer = make(relayed, namespaces=[namespace], on_change=changes)
    assert informer.wait_synced(60)
    relay.refusing = True
    relay.cut()
    put("a", x="2")
    put("b", x="1")
    time.sleep(0.5)
    assert data(informer) == {"a": {"x": "1"}}, "the cache stays readable"
    relay.refusing = False
    eventually(lambda: len(changes.told) >= 3, what="what was missed")
    assert data(informer) == {"a": {"x": "2"}, "b": {"x": "1"}}
    assert changes.told == [("a", None, {"x": "1"}), ("a", {"x": "1"}, {"x": "2"}), ("b", None, {"x": "1"})]
    assert informer.relists_total == 1, "no list was needed"


def test_a_server_that_refuses_is_not_hammered(make: Make, relay: Relay, relayed: KubeClient, namespace: str) -> None:
    informer = make(relayed, namespaces=[namespace])
    assert informer.wait_synced(60)
    relay.refusing = True
    before = relay.dialled
    relay.cut()
    time.sleep(3.0)
    # A list or a watch needs one or two connections, since a read with a broken connection is repeated once.
    assert 1 <= relay.dialled - before <= 12


def test_a_silent_connection_is_given_up_and_dialled_anew(
    make: Make, relay: Relay, relayed: KubeClient, namespace: str, put: Callable[..., None]
) -> None:
    informer = make(relayed, namespaces=[namespace], inactivity_s=1.0)
    assert informer.wait_synced(60)
    relay.freeze()
    put("a", x="1")
    time.sleep(0.3)
    assert data(informer) == {}
    eventually(lambda: relay.dialled >= 2, what="a new dial after the silence")
    relay.thaw()
    eventually(lambda: data(informer) == {"a": {"x": "1"}}, what="the change that was held back")


def test_a_kind_whose_crd_comes_later_syncs_then(make: Make, client: KubeClient, namespace: str) -> None:
    group = f"g{uuid.uuid4().hex[:8]}.example.dev"
    gadgets = Kind(f"{group}/v1", "Gadget", "gadgets", True)
    informer = make(kind=gadgets, namespaces=[namespace])
    assert not informer.wait_synced(0.5)
    client.apply(kinds.CRDS, None, crd(group, "gadgets", "Gadget"), field_manager="tests")
    assert informer.wait_synced(30)
    client.delete(kinds.CRDS, None, f"gadgets.{group}")


def test_stopping_ends_a_waiting_watch_at_once(make: Make, namespace: str) -> None:
    informer = make(namespaces=[namespace])
    assert informer.wait_synced(60)
    informer.stop()
    # A watch that `stop` did not end would wait for minutes, and its thread would run as long.
    assert not [thread for thread in threading.enumerate() if thread.name == "informer-configmaps"]


def test_an_idle_informer_costs_nothing(make: Make, client: KubeClient, namespace: str) -> None:
    informer = make(namespaces=[namespace])
    assert informer.wait_synced(60)
    eventually(lambda: informer.steady_since is not None, what="an open watch")
    requests, cpu_s = client.requests_total, time.process_time()
    time.sleep(2.0)
    assert client.requests_total == requests
    assert time.process_time() - cpu_s < 0.05


@pytest.mark.soak
def test_after_a_kill_of_the_server_the_cache_is_true_again_and_a_forgotten_version_is_listed_anew(
    fresh_control_plane: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    cluster = fresh_control_plane(components=("etcd", "kube-apiserver"))
    direct = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    relay = Relay(cluster.server)
    through = KubeClient.from_kubeconfig(relay.kubeconfig(cluster.kubeconfig, tmp_path / "relayed"))
    followed, cut_off = Changes(), Changes()
    near = Informer(direct, kinds.CONFIG_MAPS, namespaces=["default"], on_change=followed)
    far = Informer(through, kinds.CONFIG_MAPS, namespaces=["default"], on_change=cut_off)

    def put(name: str, value: str) -> None:
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": value}}
        direct.apply(kinds.CONFIG_MAPS, "default", obj, field_manager="tests")

    try:
        for name in ("kept", "changed", "deleted"):
            put(name, "1")
        for informer in (near, far):
            informer.start()
            assert informer.wait_synced(60)
        # The informer behind the relay misses the following changes. Then the server is killed and started again.
        relay.refusing = True
        relay.cut()
        put("changed", "2")
        put("new", "1")
        direct.delete(kinds.CONFIG_MAPS, "default", "deleted")
        cluster.kill("kube-apiserver")
        assert near.has_synced
        cluster.start("kube-apiserver")
        put("last", "1")
        truth = {"kept": {"x": "1"}, "changed": {"x": "2"}, "new": {"x": "1"}, "last": {"x": "1"}}
        relay.refusing = False
        for informer in (near, far):
            eventually(partial(holds, informer, truth), what="the truth in the cache", timeout_s=30)
        # The cache changes before the handlers are called, and deletions come last.
        eventually(lambda: all(len(each.of("deleted")) >= 2 for each in (cut_off, followed)), what="the deletion")
        assert far.relists_total == 2, "its version was too old for the new server"
        assert cut_off.of("kept") == [(None, {"x": "1"})], "what did not change is not told again"
        assert cut_off.of("changed") == [(None, {"x": "1"}), ({"x": "1"}, {"x": "2"})]
        assert cut_off.of("deleted") == [(None, {"x": "1"}), ({"x": "1"}, None)]
        assert followed.of("deleted") == [(None, {"x": "1"}), ({"x": "1"}, None)]
    finally:
        near.stop()
        far.stop()
        relay.close()


def test_one_object_can_be_followed_by_its_name(make: Make, namespace: str, put: Callable[..., None]) -> None:
    informer = make(namespaces=[namespace], field_selector="metadata.name=mine")
    assert informer.wait_synced(60)
    put("other", x="1")
    put("mine", x="1")
    put("mine", x="2")
    eventually(lambda: holds(informer, {"mine": {"x": "2"}}), what="the one object, and no other")


def test_a_list_can_be_asked_for_though_the_connection_is_dead_and_says_how_long_nothing_was_missed(
    make: Make, relay: Relay, relayed: KubeClient, namespace: str, put: Callable[..., None]
) -> None:
    informer = make(relayed, namespaces=[namespace])
    assert informer.wait_synced(60)
    eventually(lambda: informer.steady_since is not None, what="a watch")
    before = informer.steady_since
    lists = informer.relists_total
    assert informer.relist(10)
    assert informer.relists_total == lists + 1
    assert informer.steady_since == before, "a list that was asked for breaks nothing"
    relay.refusing = True
    relay.cut()
    eventually(lambda: informer.steady_since is None, what="the loss to be noticed")
    put("meanwhile", x="1")
    assert not informer.relist(0.5)
    relay.refusing = False
    assert informer.relist(15)
    assert holds(informer, {"meanwhile": {"x": "1"}})
    after = eventually(lambda: informer.steady_since, what="a watch again")
    assert after > (before or 0)


def reads(obj: dict[str, Any]) -> dict[str, Any]:
    """A transform that raises for objects with `x: broken`."""
    if (obj.get("data") or {}).get("x") == "broken":
        raise ValueError("invalid literal")
    return obj


def test_an_object_that_cannot_be_read_costs_itself_only(make: Make, namespace: str, put: Callable[..., None]) -> None:
    put("good", x="1")
    put("bad", x="broken")
    changes, failures = Changes(), []
    informer = make(
        namespaces=[namespace],
        transform=reads,
        on_change=changes,
        on_failure=lambda kind, what: failures.append((kind.kind, what)),
    )
    assert informer.wait_synced(60)
    assert data(informer) == {"good": {"x": "1"}}
    with pytest.raises(Unreadable, match=r"ConfigMap .*/bad cannot be read: ValueError: invalid literal"):
        informer.get(namespace, "bad")
    assert informer.get(namespace, "absent") is None
    assert failures == [("ConfigMap", "transform")]
    assert [fault.what for fault in informer.faults()] == [
        f"ConfigMap {namespace}/bad cannot be read: ValueError: invalid literal"
    ]
    put("good", x="2")
    put("bad", x="2")
    eventually(lambda: holds(informer, {"good": {"x": "2"}, "bad": {"x": "2"}}), what="both objects")
    assert not list(informer.faults())


def test_an_object_that_becomes_unreadable_keeps_its_last_readable_version(
    make: Make, client: KubeClient, namespace: str, put: Callable[..., None]
) -> None:
    put("one", x="1")
    changes = Changes()
    informer = make(namespaces=[namespace], transform=reads, on_change=changes)
    assert informer.wait_synced(60)
    put("one", x="broken")
    eventually(lambda: list(informer.faults()), what="the fault")
    assert informer.relist(10)
    assert data(informer) == {"one": {"x": "1"}}
    assert changes.of("one") == [(None, {"x": "1"})]
    client.delete(kinds.CONFIG_MAPS, namespace, "one")
    eventually(lambda: holds(informer, {}) and len(changes.of("one")) >= 2, what="the object to go")
    assert changes.of("one")[-1] == ({"x": "1"}, None)
    assert not list(informer.faults())


def test_a_handler_that_raised_is_told_again_and_until_then_seen(
    make: Make, namespace: str, put: Callable[..., None]
) -> None:
    changes, broken = Changes(), {"one"}

    def handler(old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        if (new or old or {})["metadata"]["name"] in broken:
            raise KeyError("capacity")
        changes(old, new)

    informer = make(namespaces=[namespace], on_change=handler)
    assert informer.wait_synced(60)
    put("one", x="1")
    eventually(lambda: list(informer.faults()), what="the fault")
    fault = next(informer.faults())
    assert fault.what == f"the handler of ConfigMap {namespace}/one raises KeyError: 'capacity'"
    broken.clear()
    eventually(lambda: changes.of("one") == [(None, {"x": "1"})], what="the change to be told again")
    eventually(lambda: not list(informer.faults()), what="the fault to end")
