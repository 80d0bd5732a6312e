"""Herdsman takes over a status that LLMKube's controller wrote, and removes all its parts, on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from automation.status.ownership import clear_status
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, Invalid
from kubeapi.json_types import Json
from tests.support import controlplane
from tests.support.definitions import install_crds

THEN = "2026-11-21T10:00:00Z"


@pytest.fixture(scope="module")
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


def condition(kind: str, status: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": "Told", "message": message, "lastTransitionTime": THEN}


def migrated(api: controlplane.Api, namespace: str) -> Json:
    """A service whose status was written by LLMKube's controller and by its agent, both with updates."""
    path = f"{kinds.INFERENCE_SERVICES.path(namespace)}"
    body = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "svc"},
        "spec": {"modelRef": "m"},
    }
    live = api.create(path, body)
    told = [condition("Progressing", "True", "a"), condition("Degraded", "True", "b")]
    for manager, conditions in (("manager", told), ("metal-agent", [*told, condition("MemoryPressure", "False", "c")])):
        status = {"phase": "Creating", "waitingFor": "nvidia.com/gpu: 0", "conditions": conditions}
        code, live = api.request("PUT", f"{path}/svc/status?fieldManager={manager}", {**live, "status": status})
        assert code == 200, live
    return live


def write(client: KubeClient, namespace: str, *conditions: Json) -> Json:
    body = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "svc", "namespace": namespace},
        "status": {"phase": "Ready", "conditions": list(conditions)},
    }
    return client.apply(
        kinds.INFERENCE_SERVICES, namespace, body, field_manager="herdsman", force=True, subresource="status"
    )


def test_without_a_clearing_the_peers_half_of_a_condition_blocks_the_status(
    client: KubeClient, api: controlplane.Api, namespace: str
) -> None:
    """This is the reason for `clear_status`. If this test fails with a newer API server, it may be unnecessary."""
    migrated(api, namespace)
    write(client, namespace, condition("Ready", "False", "x"), condition("Progressing", "True", "other"))
    with pytest.raises(Invalid):
        write(client, namespace, condition("Ready", "True", "y"))


def test_what_the_peer_left_is_gone_and_what_its_agent_says_stays(
    client: KubeClient, api: controlplane.Api, namespace: str
) -> None:
    clear_status(client, kinds.INFERENCE_SERVICES, migrated(api, namespace))
    first = write(client, namespace, condition("Ready", "False", "x"), condition("Progressing", "True", "other"))
    assert sorted(c["type"] for c in first["status"]["conditions"]) == ["MemoryPressure", "Progressing", "Ready"]
    second = write(client, namespace, condition("Ready", "True", "y"))
    assert sorted(c["type"] for c in second["status"]["conditions"]) == ["MemoryPressure", "Ready"]
    assert "waitingFor" not in second["status"]


def test_an_object_that_changed_meanwhile_is_not_cleared(
    client: KubeClient, api: controlplane.Api, namespace: str
) -> None:
    seen = migrated(api, namespace)
    write(client, namespace, condition("Ready", "True", "y"))
    with pytest.raises(Conflict):
        clear_status(client, kinds.INFERENCE_SERVICES, seen)
