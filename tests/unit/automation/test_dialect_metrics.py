"""The metrics of services of other dialects."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from automation.telemetry.service_metrics import ServiceCollector
from kubeapi.json_types import Json


def service(name: str, *conditions: Json) -> Json:
    return {"metadata": {"namespace": "ns", "name": name}, "status": {"conditions": list(conditions)}}


def conditions(true: str = "", *, reason: str) -> list[Json]:
    return [
        {"type": name, "status": str(name == true), "reason": reason} for name in ("Ready", "Reconciling", "Stalled")
    ]


def scrape(*services: tuple[str, Json]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ServiceCollector(services=lambda: services, models=list))
    return registry


def test_a_service_that_serves_is_ready_and_has_no_reason() -> None:
    registry = scrape(("kserve", service("chat", *conditions("Ready", reason="Serving"))))
    of = {"dialect": "kserve", "namespace": "ns", "name": "chat"}
    assert registry.get_sample_value("herdsman_dialect_service_ready", of) == 1.0
    assert registry.get_sample_value("herdsman_dialect_service_not_ready", {**of, "reason": "Serving"}) is None


def test_a_service_that_does_not_serve_has_a_reason_also_without_a_status() -> None:
    waiting = service("chat", *conditions("Reconciling", reason="ReplicasStarting"))
    registry = scrape(("llmaz", waiting), ("llmaz-service", {"metadata": {"namespace": "ns", "name": "new"}}))
    chat = {"dialect": "llmaz", "namespace": "ns", "name": "chat"}
    new = {"dialect": "llmaz-service", "namespace": "ns", "name": "new"}
    assert registry.get_sample_value("herdsman_dialect_service_ready", chat) == 0.0
    assert (
        registry.get_sample_value("herdsman_dialect_service_not_ready", {**chat, "reason": "ReplicasStarting"}) == 1.0
    )
    assert registry.get_sample_value("herdsman_dialect_service_not_ready", {**new, "reason": "Unknown"}) == 1.0


@pytest.mark.parametrize(
    ("true", "state", "ready"),
    [("Ready", "Ready", 1.0), ("Reconciling", "Reconciling", 0.0), ("Stalled", "Stalled", 0.0), ("", "Stopped", None)],
)
def test_a_service_is_in_one_state_and_a_stopped_one_is_neither_ready_nor_not(
    true: str, state: str, ready: float | None
) -> None:
    registry = scrape(("kserve", service("chat", *conditions(true, reason="R"))))
    of = {"dialect": "kserve", "namespace": "ns", "name": "chat"}
    states = [s.labels["state"] for f in registry.collect() for s in f.samples if "state" in s.labels]
    assert states == [state]
    assert registry.get_sample_value("herdsman_dialect_service_ready", of) == ready
    told = registry.get_sample_value("herdsman_dialect_service_not_ready", {**of, "reason": "R"})
    assert told == (1.0 if ready == 0.0 else None)


def test_what_a_peer_looks_after_and_what_is_made_for_a_playground_is_not_counted() -> None:
    theirs = service("theirs", {"type": "Ready", "status": "False", "reason": "X"})
    between = service("between", *conditions("Reconciling", reason="R"))
    between["metadata"]["ownerReferences"] = [{"kind": "Playground", "name": "between", "controller": True}]
    registry = scrape(("kserve", theirs), ("llmaz-service", between))
    assert [sample for family in registry.collect() for sample in family.samples] == []
