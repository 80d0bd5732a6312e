"""Pods that run keep the downloader that they came with, and pods that were stopped start again under an autoscaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi

from components import naming
from kubeapi.client import KubeClient
from kubeapi.kinds import DEPLOYMENTS
from tests.engine.stacks import Stack


def deployment(
    namespace: str, *, script: str = "echo 1", replicas: int | None = 1, template_hash: str = "h1"
) -> Callable[[], None]:
    def program() -> None:
        spec: dict[str, Any] = {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "initContainers": [
                        {"name": "model-downloader", "image": "curl:1", "command": ["sh", "-c", script]}
                    ],
                    "containers": [{"name": "web", "image": "nginx:1"}],
                },
            },
        }
        if replicas is not None:
            spec["replicas"] = replicas
        annotations = {naming.ANNOTATION_TEMPLATE_HASH: template_hash}
        metadata = {"name": "web", "namespace": namespace, "annotations": annotations}
        pulumi.CustomResource("kubernetes:apps/v1:Deployment", "web", {"metadata": metadata, "spec": spec})

    return program


def script_of(live: dict[str, Any]) -> str:
    return str(live["spec"]["template"]["spec"]["initContainers"][0]["command"][-1])


def test_another_script_alone_restarts_nothing(stack: Stack, client: KubeClient, namespace: str) -> None:
    stack.up(deployment(namespace, script="echo old"))

    assert stack.up(deployment(namespace, script="echo new")).steps() == {"web": "same"}
    preview = stack.preview(deployment(namespace, script="echo new", replicas=2))
    assert preview.detailed("web") == {"spec.replicas": "update"}
    stack.up(deployment(namespace, script="echo new", replicas=2))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert (script_of(live), live["spec"]["replicas"]) == ("echo old", 2)

    # A lost state knows neither text. The first run finds the old one in the cluster, and so do all after it.
    stack.forget()
    stack.up(deployment(namespace, script="echo new", replicas=2))
    stack.up(deployment(namespace, script="echo new", replicas=3))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert (script_of(live), live["spec"]["replicas"]) == ("echo old", 3)

    stack.up(deployment(namespace, script="echo new", replicas=3, template_hash="h2"))
    assert script_of(client.get(DEPLOYMENTS, namespace, "web")) == "echo new"


def test_stopped_pods_that_are_left_to_an_autoscaler_start_with_one(
    stack: Stack, client: KubeClient, namespace: str
) -> None:
    stack.up(deployment(namespace, replicas=0))
    stack.up(deployment(namespace, replicas=None))
    assert client.get(DEPLOYMENTS, namespace, "web")["spec"]["replicas"] == 1
