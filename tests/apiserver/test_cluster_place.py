"""A cluster as the place of the everyday commands, on a real API server without a loop."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from automation.places.choice import choose_place
from automation.places.cluster import ClusterPlace
from automation.places.place import NoSuchService, PlaceError, State
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import controlplane, previews
from tests.support.definitions import install_crds


@pytest.fixture(scope="module")
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def place(client: KubeClient, namespace: str) -> ClusterPlace:
    return ClusterPlace(client, title="cluster test", default_namespace=namespace)


def documents(**spec: object) -> list[Json]:
    return [previews.model_cr(source="https://example.com/base.gguf"), previews.service_cr(**spec)]


def status(client: KubeClient, namespace: str, phase: str, reason: str, message: str = "") -> None:
    cr = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
    condition = {
        "type": "Ready",
        "status": "True" if phase == "Ready" else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-01T00:00:00Z",
    }
    told = {"phase": phase, "conditions": [condition], "observedGeneration": cr["metadata"]["generation"]}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "chat", {"status": told}, subresource="status")


def test_a_deployment_is_planned_made_and_updated(client: KubeClient, place: ClusterPlace, namespace: str) -> None:
    planned = place.plan(documents(replicas=2))
    assert planned.has_changes
    assert "chat" in planned.text
    assert place.services(namespace) == []

    place.apply(documents(replicas=2, resources={"cpu": "1", "memory": "2Gi"}))
    assert [each.state for each in place.services(namespace)] == [State.UNKNOWN]

    # A second one with fewer fields leaves the others as they are.
    place.apply(documents(resources={"cpu": "2"}))
    spec = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]
    assert (spec["replicas"], spec["resources"]) == (2, {"cpu": "2", "memory": "2Gi"})

    # It wins over `scale`, but not over another client.
    service = place.find("chat")
    assert place.scale(service, 3) == ""
    place.apply(documents(replicas=1))
    assert client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]["replicas"] == 1
    client.patch(kinds.INFERENCE_SERVICES, namespace, "chat", {"spec": {"replicas": 4}}, field_manager="someone")
    with pytest.raises(PlaceError, match="someone") as refused:
        place.apply(documents(replicas=1))
    assert refused.value.hint


def test_an_invalid_field_is_named(place: ClusterPlace) -> None:
    with pytest.raises(PlaceError, match="contextSize"):
        place.plan(documents(contextSize=1))
    with pytest.raises(PlaceError, match="contextSize"):
        place.apply(documents(contextSize=1))


def test_a_service_is_stopped_started_watched_and_deleted(
    client: KubeClient, place: ClusterPlace, namespace: str
) -> None:
    place.apply(documents(replicas=2))
    service = place.find("isvc/chat")
    place.stop(service)
    spec = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]
    assert (spec["suspend"], spec["replicas"]) == (True, 2)
    assert "stopped" in place.scale(place.find("chat"), 3)
    place.start(service)
    assert not client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"].get("suspend")

    service = place.find("chat")
    writer = threading.Timer(0.2, lambda: status(client, namespace, "Creating", "MemoryInsufficient", "no memory"))
    writer.start()
    try:
        while service.state is State.UNKNOWN:
            service = place.watch(service, pause_s=30)
    finally:
        writer.join()
    assert (service.state, service.message, service.is_current) == (State.WAITING, "no memory", True)

    assert place.delete(service) == "InferenceService `chat`, Model `base`"
    assert client.list(kinds.MODELS, namespace)["items"] == []
    with pytest.raises(NoSuchService, match="deleted"):
        place.watch(service, pause_s=1)


def test_a_model_that_another_service_uses_stays(client: KubeClient, place: ClusterPlace, namespace: str) -> None:
    place.apply([*documents(), previews.service_cr("other")])
    assert place.delete(place.find("chat"), purge=True) == "InferenceService `chat`"
    assert place.document("Model", "base", namespace) is not None
    assert place.document("Model", "made-up", namespace) is None


def test_an_unknown_name_has_near_ones_and_other_namespaces(
    client: KubeClient, place: ClusterPlace, api: controlplane.Api
) -> None:
    place.apply(documents())
    with pytest.raises(NoSuchService) as unknown:
        place.find("chatt")
    assert unknown.value.hint == "did you mean `chat`?"
    with api.namespace() as other:
        with pytest.raises(NoSuchService) as elsewhere:
            place.find("chat", other)
        assert "-n" in elsewhere.value.hint
    with pytest.raises(NoSuchService, match="not a kind"):
        place.find("pod/chat")


def test_no_replica_is_an_error_with_the_reason(client: KubeClient, place: ClusterPlace, namespace: str) -> None:
    place.apply(documents())
    status(client, namespace, "Creating", "ModelDownloading", "pod chat-0 fetches the model")
    with pytest.raises(PlaceError, match="fetches the model") as refused, place.reach(place.find("chat")):
        pass
    assert "herdsman status chat" in refused.value.hint


def test_a_named_kubeconfig_is_the_place(kubeconfig: Path, namespace: str) -> None:
    place = choose_place(kubeconfig=str(kubeconfig))
    assert place.services(namespace) == []
