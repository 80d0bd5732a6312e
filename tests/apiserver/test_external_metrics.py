"""The external metrics API behind a real aggregation layer, and a real HorizontalPodAutoscaler that follows it."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from automation.external_metrics import answers
from automation.external_metrics.registration import API_SERVICE
from automation.external_metrics.serving import ExternalMetrics
from automation.install.comparison import MANAGER
from automation.install.installer import Installer
from automation.install.metrics_api import release
from automation.install.objects import documents
from automation.install.options import InstallOptions
from components.options import RenderOptions
from components.providers.kubernetes_ownership import applied_fields
from components.render import render
from components.scaling import REQUESTS_METRIC
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import ACCEPT
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import RequestScaling
from tests.support import controlplane
from tests.support.builders import service

API_SERVICES = f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}"
NAME = "herdsman-external-metrics"


def metrics_api() -> Json:
    """The APIService of an installation."""
    [found] = [each for each in documents(InstallOptions(external_metrics=True)) if each["kind"] == "APIService"]
    return copy.deepcopy(found)


class Adapter:
    """The server of a loop, and the objects of an installation."""

    def __init__(self, api: controlplane.Api, client: KubeClient, namespace: str) -> None:
        self.requests = 0
        self.now = datetime.now(UTC)
        self.api = api
        self.namespace = namespace
        self.key = ServiceKey("llmkube", namespace, "chat")
        self.serving = ExternalMetrics(
            client,
            lambda *_: {self.key: self.requests},
            service=(namespace, NAME),
            port=0,
            check_every_s=0.2,
            settle_s=3.0,
            lifetime=timedelta(hours=1),
            clock=lambda: self.now,
        )

    def install(self) -> None:
        self.serving.start()
        # There is no kube-proxy for the cluster's own addresses of Services; the API server follows an external name.
        spec = {"type": "ExternalName", "externalName": "127.0.0.1", "ports": [{"port": self.serving.port}]}
        self.api.apply(
            f"/api/v1/namespaces/{self.namespace}/services/{NAME}",
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec},
        )
        service = metrics_api()
        service["spec"]["service"] = {"namespace": self.namespace, "name": NAME, "port": self.serving.port}
        self.api.apply(API_SERVICES, service)

    def discovered(self) -> list[str]:
        """Return the metrics that the API server's discovery names."""
        groups = self.api.request("GET", "/apis", accept=ACCEPT["/apis"])[1]["items"]
        versions = [v for each in groups if each["metadata"]["name"] == answers.GROUP for v in each["versions"]]
        return [each["resource"] for version in versions for each in version.get("resources") or ()]

    def authorities(self) -> int:
        """Return the number of authorities in the APIService."""
        found = self.api.get(API_SERVICES)
        assert found is not None
        return base64.b64decode(found["spec"].get("caBundle", "")).count(b"BEGIN CERTIFICATE")

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
    [scaler] = [
        each.manifest
        for each in render(described, RenderOptions(requests_autoscaled=True)).objects
        if each.kind == "HorizontalPodAutoscaler"
    ]
    scalers = kinds.AUTOSCALERS.path(namespace)
    # No service owns it here, and nothing would make the owner.
    metadata = {"name": scaler["metadata"]["name"]}
    api.create(scalers, {**scaler, "metadata": metadata})
    adapter.requests = 11
    controlplane.eventually(lambda: adapter.values() == ["11"], what="the aggregation layer to answer", timeout_s=60)

    def replicas() -> tuple[object, object]:
        live, scaled = api.get(f"{scalers}/chat"), api.get(f"{deployments}/chat")
        assert live is not None and scaled is not None
        return (live.get("status") or {}).get("desiredReplicas"), scaled["spec"]["replicas"]

    controlplane.eventually(lambda: replicas() == (3, 3), what="three replicas for 11 requests", timeout_s=60)
    adapter.requests = 99
    controlplane.eventually(lambda: replicas() == (5, 5), what="the largest number of replicas", timeout_s=60)
    named = [REQUESTS_METRIC]
    controlplane.eventually(lambda: adapter.discovered() == named, what="discovery to name the metric", timeout_s=90)


def test_a_certificate_is_replaced_without_a_gap(adapter: Adapter) -> None:
    controlplane.eventually(lambda: adapter.values() == ["0"], what="the aggregation layer to answer", timeout_s=60)
    assert adapter.authorities() == 1
    before = adapter.serving.authority
    # A certificate is valid from an hour before its issue, so the next one is valid already.
    adapter.now += timedelta(minutes=31)

    def is_replaced() -> bool:
        assert adapter.values() == ["0"], "both authorities are known before the certificate changes"
        return adapter.serving.authority != before and adapter.authorities() == 1

    controlplane.eventually(is_replaced, what="another certificate", timeout_s=60)
    adapter.requests = 3
    controlplane.eventually(lambda: adapter.values() == ["3"], what="an answer with the new one", timeout_s=60)


def test_an_api_service_of_another_adapter_stays(api: controlplane.Api, kubeconfig: Path) -> None:
    """Herdsman installed it, and KEDA's chart took it over: no later installation changes or deletes it."""
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    try:
        api.apply(API_SERVICES, metrics_api(), manager=MANAGER)
        keda = metrics_api()
        keda["spec"]["service"] = {"namespace": "keda", "name": "keda-operator-metrics-apiserver", "port": 443}
        api.apply(API_SERVICES, keda, manager="helm")
        installer = Installer(client, Path("/nowhere"))
        options = InstallOptions(external_metrics=True)
        assert installer.other_metrics_adapter(options) == "keda/keda-operator-metrics-apiserver"
        assert installer.other_metrics_adapter(InstallOptions()) == ""
        compared = installer.compare(options)
        assert "APIService" not in {each.change.kind for each in compared.all}
        release(client, options.namespace)
        live = client.get(kinds.API_SERVICES, None, API_SERVICE)
        assert applied_fields(live, MANAGER) is None and live["spec"]["service"]["namespace"] == "keda"
        assert "APIService" not in {each.change.kind for each in installer.compare(InstallOptions()).all}
    finally:
        api.delete(API_SERVICES)
        client.close()
