"""Texts from a hostile engine, annotation or label are checked, and stop no pass."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from automation.cache.cluster_cache import ClusterCache
from automation.hosts.hosted import age_s
from automation.serving import idleness
from automation.serving.completion_check import judge
from automation.telemetry.metrics import Metrics
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.config import Access, Endpoint
from kubeapi.exchange import Exchange
from program.desired.keys import ServiceKey
from program.runtimes.base import IdleProbe, small_completion
from tests.support.pods import remembered

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEEP = b"[" * 200_000
HUGE = b"1" + b"0" * 400


def answer(body: bytes) -> Exchange:
    return Exchange(200, {}, body)


@pytest.mark.parametrize(
    "body",
    [DEEP, b'{"a":' * 100_000, HUGE * 20, b"\xff\xfe", b"null", b"[]"],
    ids=("deep", "deeper", "digits", "no-text", "null", "list"),
)
def test_json_that_is_made_to_break_a_parser_is_no_proof(body: bytes) -> None:
    assert judge(small_completion("chat"), answer(body)).state == "failed"


def test_a_number_beyond_any_float_is_a_number() -> None:
    embedding = b'{"data": [{"embedding": [' + HUGE + b"]}]}"
    assert judge(small_completion("embedding"), answer(embedding)).state == "proved"
    assert judge(small_completion("embedding"), answer(embedding.replace(HUGE, b"NaN"))).state == "failed"


@pytest.mark.parametrize(
    "body", [DEEP, b"{}", b"[{}]", b'[{"is_processing": "no"}]'], ids=("deep", "object", "empty", "word")
)
def test_slots_that_make_no_sense_are_not_called_idle(body: bytes) -> None:
    assert idleness.judge(IdleProbe(kind="slots", path="/slots"), answer(body)).state == "unknown"


@pytest.mark.parametrize("text", ["", "soon", "2026-01-01T00:00:00", "2026-99-01T00:00:00Z", "\x00"])
def test_a_heartbeat_that_is_no_time_counts_as_none(text: str) -> None:
    assert age_s(text, now=NOW) == float("inf")


def test_an_object_that_gets_the_label_of_another_service_leaves_the_first() -> None:
    enqueued: list[ServiceKey] = []
    client = KubeClient(Access(lambda: Endpoint("http://127.0.0.1:1")))
    cluster = ClusterCache(client, namespaces=(), enqueue=enqueued.append, enqueue_model=lambda *_: None)
    of_svc = remembered("p")
    labels = {**of_svc["metadata"]["labels"], naming.LABEL_SERVICE: "other"}
    of_other: dict[str, Any] = {**of_svc, "metadata": {**of_svc["metadata"], "labels": labels}}
    cluster.llmkube.changed(kinds.PODS, None, of_svc)
    cluster.llmkube.changed(kinds.SERVICES, None, {"metadata": of_svc["metadata"]})
    enqueued.clear()
    cluster.llmkube.changed(kinds.PODS, of_svc, of_other)
    cluster.llmkube.changed(kinds.SERVICES, {"metadata": of_svc["metadata"]}, {"metadata": of_other["metadata"]})
    index = cluster.llmkube.index
    assert index.pods("ns", "svc") == [] and index.pods("ns", "other") == [of_other]
    assert index.services_with_objects() == [("ns", "other")]
    assert {key.name for key in enqueued} == {"svc", "other"}, "both are notified"
    client.close()


def test_nothing_is_counted_any_more_by_names_that_are_gone() -> None:
    metrics = Metrics()
    names = {"namespace": "ns", "name": "svc"}
    metrics.on_stalled("ns", "svc")
    model: dict[str, Any] = {"metadata": {"namespace": "ns", "name": "m"}}
    metrics.on_model_status(model, {"download": {"bytes": 5}})
    for _ in range(2):
        metrics.drop_service("ns", "svc")
        metrics.drop_model("ns", "m")
    assert metrics.registry.get_sample_value("herdsman_stalled_replicas_total", names) is None
    left = [s for family in metrics.registry.collect() for s in family.samples if s.labels.get("namespace")]
    assert left == []
