"""Create, update, delete, replace, refresh and import, with the unmodified SDK on the real API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest

from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import CONFIG_MAPS, DEPLOYMENTS, SERVICES
from tests.engine.conftest import Stack, manager_fields


def web(namespace: str, *, image: str = "nginx:1", replicas: int | None = 2, **more: Any) -> Callable[[], None]:
    """A Deployment and its Service, by the typed classes."""

    def program() -> None:
        labels = {"app": "web"}
        deployment = k8s.apps.v1.Deployment(
            "web",
            metadata={"name": "web", "namespace": namespace, "labels": labels},
            spec=k8s.apps.v1.DeploymentSpecArgs(
                replicas=replicas,
                selector=k8s.meta.v1.LabelSelectorArgs(match_labels=more.get("selector", labels)),
                template=k8s.core.v1.PodTemplateSpecArgs(
                    metadata=k8s.meta.v1.ObjectMetaArgs(labels=more.get("selector", labels)),
                    spec=k8s.core.v1.PodSpecArgs(
                        containers=[
                            k8s.core.v1.ContainerArgs(
                                name="web",
                                image=image,
                                ports=[k8s.core.v1.ContainerPortArgs(container_port=80)],
                                env=[k8s.core.v1.EnvVarArgs(name="EMPTY", value="")],
                                resources={"limits": {"cpu": "1000m", "memory": "1Gi"}},
                            )
                        ]
                    ),
                ),
            ),
        )
        service = k8s.core.v1.Service(
            "web-service",
            metadata={"name": "web", "namespace": namespace},
            spec={"selector": labels, "ports": [{"port": 80, "name": "http"}], **more.get("service", {})},
        )
        pulumi.export("uid", deployment.metadata.uid)
        pulumi.export("address", service.spec.cluster_ip)

    return program


def test_typed_classes_create_update_and_delete_objects(stack: Stack, client: KubeClient, namespace: str) -> None:
    run = stack.up(web(namespace))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert run.steps() == {"web": "create", "web-service": "create"}
    assert run.outputs["uid"] == live["metadata"]["uid"]
    assert run.outputs["address"] == client.get(SERVICES, namespace, "web")["spec"]["clusterIP"]
    assert manager_fields(live, "herdsman") is not None

    run = stack.up(web(namespace, image="nginx:2"))
    live = client.get(DEPLOYMENTS, namespace, "web")
    assert run.steps() == {"web": "update", "web-service": "same"}
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
    assert live["metadata"]["uid"] == run.outputs["uid"]

    stack.destroy()
    with pytest.raises(NotFound):
        client.get(DEPLOYMENTS, namespace, "web")
    with pytest.raises(NotFound):
        client.get(SERVICES, namespace, "web")
