"""Events, metrics and traces of a service that a running loop reconciles."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.loop import LoopProcess, condition, deployed, eventually, model, service
from tests.support.otlp import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def loop(
    loop_kubeconfig: Path, pulumi_cli: Path, collector: Collector, namespace: str, tmp_path: Path
) -> Iterator[LoopProcess]:
    """A loop of this test alone, with traces on."""
    where = {"HERDSMAN_TRACE_ENDPOINT": collector.url}
    loop = LoopProcess(loop_kubeconfig, tmp_path, (f"--namespace={namespace}",), environment=where)
    try:
        yield loop.start()
    finally:
        loop.stop()


def test_a_service_is_seen_in_events_metrics_and_traces(
    client: KubeClient, loop: LoopProcess, collector: Collector, namespace: str
) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    deployed(client, namespace)
    stuck = eventually(lambda: _stuck(client, namespace), what="the reason that no node takes the pod")

    def reasons() -> set[str]:
        return {event["reason"] for event in client.list(kinds.EVENTS, namespace)["items"]}

    eventually(lambda: {"Applied", stuck} <= reasons(), what="the Events of the turns")

    def is_scraped() -> bool:
        found = f'namespace="{namespace}",reason="{stuck}"'
        return loop.metric("herdsman_service_not_ready") == 1 and found in _scrape(loop)

    eventually(is_scraped, what="the reason in the metrics")
    assert f'herdsman_service_info{{model="base",name="svc",namespace="{namespace}",runtime="vllm"}} 1.0' in _scrape(
        loop
    )
    assert loop.metric("herdsman_services") == 1
    assert loop.metric("herdsman_models") == 1

    assert loop.stop() == 0
    spans = {found.span_id: found for found in collector.received()}
    names = {found.name for found in spans.values()}
    assert {"reconcile", "observe", "want", "submit", "status write", "engine batch"} <= names
    for found in spans.values():
        if found.name in ("observe", "want", "submit"):
            assert spans[found.parent_span_id].name == "reconcile"


def _scrape(loop: LoopProcess) -> str:
    with urllib.request.urlopen(f"{loop.url}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def _stuck(client: KubeClient, namespace: str) -> str:
    ready = condition(client, namespace, "svc", "Ready")
    reason = str((ready or {}).get("reason", ""))
    return reason if reason in ("Unschedulable", "NoNodeFits", "PodsRefused") else ""
