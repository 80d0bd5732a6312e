"""A service with all optional objects, created, changed and removed by the real engine on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from automation.engine.port import Batch, Stack
from automation.engine.pulumi_engine import PulumiEngine
from components.options import RenderOptions
from components.render import render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.keys import ServiceKey
from program.desired.service import (
    Autoscaling,
    Disruption,
    Exposure,
    NetworkAccess,
    ServiceLevelObjective,
)
from tests.support import extensions
from tests.support.builders import service

ALL = {
    "expose": Exposure(by="gateway", gateway="public"),
    "network": NetworkAccess(),
    "disruption": Disruption(max_unavailable="1"),
    "slo": ServiceLevelObjective(objective="99.5"),
    "autoscaling": Autoscaling(min_replicas=0, max_replicas=2),
}
KINDS = (
    kinds.SERVICES,
    kinds.SCALED_OBJECTS,
    kinds.DISRUPTION_BUDGETS,
    kinds.NETWORK_POLICIES,
    kinds.HTTP_ROUTES,
    kinds.INGRESSES,
    kinds.POD_MONITORS,
    kinds.SERVICE_LEVEL_OBJECTIVES,
    kinds.AUTOSCALERS,
    kinds.DEPLOYMENTS,
)


@pytest.fixture(scope="module")
def options(client: KubeClient) -> Iterator[RenderOptions]:
    with extensions.installed(client) as names:
        yield RenderOptions(installed=names, prometheus_url="http://prometheus:9090")


def test_all_its_objects_come_change_and_go(
    make_engine: Callable[..., PulumiEngine], client: KubeClient, namespace: str, options: RenderOptions
) -> None:
    engine, stack, key = make_engine(), Stack(namespace), ServiceKey("llmkube", namespace, "svc")

    def rendered(**fields: Any) -> RenderedService:
        return render(service(key=key, owner=None, **fields), options)

    def live() -> dict[str, int]:
        counts = {kind.kind: len(client.list(kind, namespace)["items"]) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}

    def up(*services: RenderedService, remove: tuple[ServiceKey, ...] = ()) -> None:
        outcome = engine.up(Batch(stack, services, remove=remove))
        assert all(one.ok for one in outcome.services.values()), outcome

    everything = rendered(**ALL)
    up(everything)
    assert live() == {one.kind: 1 for one in everything.objects}
    assert client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"] == 1

    # A suspended service loses its autoscaler and its replicas; its Service stays.
    up(rendered(**ALL, suspended=True))
    assert "ScaledObject" not in live()
    assert client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"] == 0
    up(everything)
    assert client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"] == 1

    # KEDA has scaled the Deployment. When a HorizontalPodAutoscaler replaces KEDA, the number of replicas stays.
    scaled = {"metadata": {"name": "svc"}, "spec": {"replicas": 2}}
    client.patch(kinds.DEPLOYMENTS, namespace, "svc", scaled, subresource="scale", field_manager="keda-operator")
    by_hpa = rendered(
        autoscaling=Autoscaling(max_replicas=4), expose=Exposure(by="ingress"), network=NetworkAccess(namespaces=("a",))
    )
    up(by_hpa)
    kept = {"Service", "HorizontalPodAutoscaler", "NetworkPolicy", "Ingress", "PodMonitor", "Deployment"}
    assert live() == dict.fromkeys(kept, 1)
    assert client.get(kinds.DEPLOYMENTS, namespace, "svc")["spec"]["replicas"] == 2

    up(remove=(key,))
    assert live() == {}
