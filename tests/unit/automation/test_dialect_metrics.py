"""What a scrape says of services of other dialects."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from automation.telemetry.dialect_metrics import DialectCollector

Json = dict[str, Any]


def service(name: str, *conditions: Json) -> Json:
    return {"metadata": {"namespace": "ns", "name": name}, "status": {"conditions": list(conditions)}}


def scrape(*services: tuple[str, Json]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(DialectCollector(lambda: services))
    return registry


def test_a_service_that_serves_is_ready_and_has_no_reason() -> None:
    registry = scrape(("kserve", service("chat", {"type": "Ready", "status": "True", "reason": "Serving"})))
    of = {"dialect": "kserve", "namespace": "ns", "name": "chat"}
    assert registry.get_sample_value("herdsman_dialect_service_ready", of) == 1.0
    assert registry.get_sample_value("herdsman_dialect_service_not_ready", {**of, "reason": "Serving"}) is None


def test_a_service_that_does_not_serve_has_a_reason_also_without_a_status() -> None:
    waiting = service("chat", {"type": "Ready", "status": "False", "reason": "ReplicasStarting"})
    registry = scrape(("llmaz", waiting), ("llmaz-service", {"metadata": {"namespace": "ns", "name": "new"}}))
    chat = {"dialect": "llmaz", "namespace": "ns", "name": "chat"}
    new = {"dialect": "llmaz-service", "namespace": "ns", "name": "new"}
    assert registry.get_sample_value("herdsman_dialect_service_ready", chat) == 0.0
    assert (
        registry.get_sample_value("herdsman_dialect_service_not_ready", {**chat, "reason": "ReplicasStarting"}) == 1.0
    )
    assert registry.get_sample_value("herdsman_dialect_service_not_ready", {**new, "reason": "Unknown"}) == 1.0
