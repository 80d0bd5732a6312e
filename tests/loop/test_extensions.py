"""A service with all optional objects, on a cluster whose extensions are removed while the loop runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import extensions
from tests.support.loop import LoopProcess, await_condition, condition, eventually, find, model, service, settled

pytestmark = pytest.mark.soak

ANNOTATIONS = {
    "herdsman.dev/expose": "gateway",
    "herdsman.dev/expose-gateway": "infra/public",
    "herdsman.dev/network-policy": "chat,monitoring",
    "herdsman.dev/max-unavailable": "25%",
    "herdsman.dev/scale-query": "sum(queue_length)",
}
MADE = {
    "svc": (
        *(kinds.SERVICES, kinds.DEPLOYMENTS, kinds.SCALED_OBJECTS, kinds.DISRUPTION_BUDGETS, kinds.NETWORK_POLICIES),
        *(kinds.HTTP_ROUTES, kinds.POD_MONITORS),
    ),
    "svc-availability": (kinds.SERVICE_LEVEL_OBJECTIVES,),
}


@pytest.fixture
def loop(client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, tmp_path: Path) -> Iterator[LoopProcess]:
    """A loop with a Prometheus configured, on a cluster with all extensions."""
    with extensions.installed(client):
        running = LoopProcess(
            loop_kubeconfig, tmp_path, environment={"HERDSMAN_PROMETHEUS_URL": "http://prometheus.invalid:9090"}
        )
        try:
            yield running.start()
        finally:
            running.stop()


def test_all_is_made_once_and_a_lost_extension_stops_nothing(
    loop: LoopProcess, client: KubeClient, namespace: str
) -> None:
    model(client, namespace)
    service(
        client,
        namespace,
        annotations=ANNOTATIONS,
        runtime="vllm",
        skipModelInit=True,
        autoscaling={"minReplicas": 0, "maxReplicas": 3},
        slo={"objective": "99.5"},
    )
    for name, made in MADE.items():
        for kind in made:
            eventually(lambda kind=kind, name=name: find(client, kind, namespace, name), what=kind.kind)  # type: ignore[misc]
    settled(client, namespace)
    assert condition(client, namespace, "svc", "SpecHonoured").get("status") != "False"
    runs = loop.submitted(namespace)
    time.sleep(2)
    assert loop.submitted(namespace) == runs, "an object that exists is read, and not made again"

    uid = client.get(kinds.DEPLOYMENTS, namespace, "svc")["metadata"]["uid"]
    for kind in (kinds.SCALED_OBJECTS, kinds.HTTP_ROUTES):
        client.delete(kinds.CRDS, None, f"{kind.plural}.{kind.group}")
    autoscaler = eventually(
        lambda: find(client, kinds.AUTOSCALERS, namespace, "svc"), what="Kubernetes' own autoscaler"
    )
    assert autoscaler["spec"]["minReplicas"] == 1
    # The loop may notice the two in either order.
    for said in ("KEDA is not installed", "herdsman.dev/expose"):
        await_condition(client, namespace, "svc", "SpecHonoured", "False", saying=said)
    live = client.get(kinds.DEPLOYMENTS, namespace, "svc")
    assert (live["metadata"]["uid"], live["spec"]["replicas"]) == (uid, 1)
    assert find(client, kinds.POD_MONITORS, namespace, "svc")
