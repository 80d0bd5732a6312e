"""A running service gets a GPU by its spec, by another Model or by its Model's hardware, and gives it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.loop import deployed, edit, eventually, model, service, settled, status

pytestmark = pytest.mark.usefixtures("loop")

GPU = {"hardware": {"accelerator": "cuda", "gpu": {"enabled": True, "count": 1, "vendor": "nvidia"}}}
RESOURCE = "nvidia.com/gpu"


def by_the_spec(client: KubeClient, namespace: str) -> Callable[[], Any]:
    edit(client, namespace, resources={"gpu": 1})
    return lambda: edit(client, namespace, resources=None)


def by_another_model(client: KubeClient, namespace: str) -> Callable[[], Any]:
    model(client, namespace, "fast", **GPU)
    edit(client, namespace, modelRef="fast")
    return lambda: edit(client, namespace, modelRef="base")


def by_the_models_hardware(client: KubeClient, namespace: str) -> Callable[[], Any]:
    client.patch(kinds.MODELS, namespace, "base", {"spec": GPU})
    return lambda: client.patch(kinds.MODELS, namespace, "base", {"spec": {"hardware": None}})


@pytest.mark.parametrize("way", [by_the_spec, by_another_model, by_the_models_hardware])
def test_a_running_service_gets_a_gpu_and_gives_it_back(
    client: KubeClient, namespace: str, way: Callable[[KubeClient, str], Callable[[], Any]]
) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    before = deployed(client, namespace)
    assert before["spec"]["strategy"]["type"] == "RollingUpdate"
    settled(client, namespace)

    def limits() -> dict[str, str]:
        (container,) = deployed(client, namespace)["spec"]["template"]["spec"]["containers"]
        found: dict[str, str] = container["resources"].get("limits", {})
        return found

    give_back = way(client, namespace)
    eventually(lambda: limits().get(RESOURCE) == "1", what="the GPU in the Deployment")
    after = deployed(client, namespace)
    assert after["spec"]["strategy"] == {"type": "Recreate"}
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    settled(client, namespace)
    assert status(client, namespace)["phase"] != "Failed"
    give_back()
    eventually(lambda: RESOURCE not in limits(), what="the Deployment without the GPU")
    eventually(
        lambda: deployed(client, namespace)["spec"]["strategy"] == before["spec"]["strategy"],
        what="the strategy from before",
    )
