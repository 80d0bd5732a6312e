"""The external metrics API behind a real aggregation layer, and a real HorizontalPodAutoscaler that follows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.external_metrics import answers
from automation.external_metrics.registration import API_SERVICE
from automation.external_metrics.serving import ExternalMetrics
from components.scaling import REQUESTS_METRIC, request_scaler
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import RequestScaling
from tests.support import controlplane
from tests.support.builders import service

API_SERVICES = f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}"
NAME = "herdsman-external-metrics"


class Adapter:
    """The server of a loop, and the objects of an installation."""

    def __init__(self, api: controlplane.Api, client: KubeClient, namespace: str) -> None:
        self.requests = 0
        self.api = api
        self.namespace = namespace
        self.key = ServiceKey("llmkube", namespace, "chat")
        self.serving = ExternalMetrics(
            client, lambda _: {self.key: self.requests}, service=(namespace, NAME), port=0, check_every_s=0.2
        )

    def install(self) -> None:
        self.serving.start()
        # There is no kube-proxy for the cluster's own addresses of Services; the API server follows an external name.
        spec = {"type": "ExternalName", "externalName": "127.0.0.1", "ports": [{"port": self.serving.port}]}
        self.api.apply(
            f"/api/v1/namespaces/{self.namespace}/services/{NAME}",
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec},
        )
        self.api.apply(
            API_SERVICES,
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": API_SERVICE},
                "spec": {
                    "group": answers.GROUP,
                    "version": answers.VERSION,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "service": {"namespace": self.namespace, "name": NAME, "port": self.serving.port},
                },
            },
        )

    def values(self) -> list[str] | None:
        path = f"{answers.ROOT}/namespaces/{self.namespace}/{REQUESTS_METRIC}?labelSelector=service%3Dchat"
        status, found = self.api.request("GET", path)
        return [each["value"] for each in found["items"]] if status == 200 else None


@pytest.fixture
def adapter(api: controlplane.Api, kubeconfig: Path) -> Iterator[Adapter]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    with api.namespace() as namespace:
        made = Adapter(api, client, namespace)
        try:
            made.install()
            yield made
        finally:
            # It must be gone before the namespace: the deletion of a namespace asks every API.
            api.delete(API_SERVICES)
            made.serving.close()
            client.close()


def test_an_autoscaler_follows_the_requests_through_the_aggregation_layer(adapter: Adapter) -> None:
    api, namespace = adapter.api, adapter.namespace
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    pod: Json = {"metadata": {"labels": {"app": "chat"}}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "chat"}}, "template": pod}
    api.create(deployments, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec})
    described = service(key=adapter.key, by_requests=RequestScaling(min_replicas=1, max_replicas=5, target=4))
    assert described.by_requests is not None
    scaler = request_scaler(described, described.by_requests, 4)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    scalers = kinds.AUTOSCALERS.path(namespace)
    api.create(
        scalers,
        {
            "apiVersion": kinds.AUTOSCALERS.api_version,
            "kind": scaler.kind,
            "metadata": {"name": scaler.name},
            "spec": {"scaleTargetRef": target, **scaler.spec},
        },
    )
    adapter.requests = 11
    controlplane.eventually(lambda: adapter.values() == ["11"], what="the aggregation layer to answer", timeout_s=60)

    def replicas() -> tuple[object, object]:
        live, scaled = api.get(f"{scalers}/{scaler.name}"), api.get(f"{deployments}/chat")
        assert live is not None and scaled is not None
        return (live.get("status") or {}).get("desiredReplicas"), scaled["spec"]["replicas"]

    controlplane.eventually(lambda: replicas() == (3, 3), what="three replicas for 11 requests", timeout_s=60)
    adapter.requests = 99
    controlplane.eventually(lambda: replicas() == (5, 5), what="the largest number of replicas", timeout_s=60)
