"""The mode of services is read from the API server, not from a cache that may be stale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.approval.approval import modes_now
from automation.cache.cluster_cache import ClusterCache
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.keys import ServiceKey

MODE = "herdsman.dev/mode"
CONTROLLER = "herdsman.dev/controller"


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(kubeconfig))
    yield made
    made.close()


def cr(namespace: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": "svc", "namespace": namespace, "annotations": annotations}}


def test_the_mode_of_a_namespace_is_the_one_that_stands_there_now(client: KubeClient, namespace: str) -> None:
    plain, own, gone = (ServiceKey("llmkube", namespace, name) for name in ("plain", "own", "gone"))
    services = {plain: cr(namespace), own: cr(namespace, **{MODE: "Preview"}), gone: None}
    assert modes_now(client, namespace, services) == {plain: "Apply", own: "Preview", gone: None}
    client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"annotations": {MODE: "Paused"}}})
    assert modes_now(client, namespace, services) == {plain: "Paused", own: "Preview", gone: None}
    client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"annotations": {MODE: "nonsense"}}})
    assert modes_now(client, namespace, services) == {plain: None, own: "Preview", gone: None}
    assert modes_now(client, "no-such-namespace", {plain: cr(namespace)}) == {plain: "Apply"}


def test_a_service_whose_namespace_names_another_controller_by_now_is_in_no_mode(
    client: KubeClient, namespace: str
) -> None:
    plain, own = (ServiceKey("llmkube", namespace, name) for name in ("plain", "own"))
    services = {plain: cr(namespace), own: cr(namespace, **{CONTROLLER: "herdsman"})}
    client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"annotations": {CONTROLLER: "kserve"}}})
    assert modes_now(client, namespace, services) == {plain: None, own: "Apply"}


def test_a_namespace_that_is_not_seen_yet_is_asked_for_its_controller(client: KubeClient, namespace: str) -> None:
    client.patch(kinds.NAMESPACES, None, namespace, {"metadata": {"annotations": {CONTROLLER: "kserve"}}})
    caches = ClusterCache(client, namespaces=(), enqueue=lambda _: None, enqueue_model=lambda _, __: None)
    assert not caches.is_ours(cr(namespace))
    assert caches.is_ours(cr(namespace, **{CONTROLLER: "herdsman"}))
    assert caches.is_ours(cr("no-such-namespace"))
