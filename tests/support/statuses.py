"""Builds an InferenceService and its facts, and reads the resulting status; for tests of `service_status`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts
from program.desired.model import DesiredModel
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.service import parse_service
from program.dialects.llmkube.parse.source import parse_source
from program.dialects.llmkube.status.service import service_status
from program.dialects.status.conditions import Reason

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def service(status: Json | None = None, *, generation: int = 1, annotations: Json | None = None, **spec: Any) -> Json:
    metadata = {"name": "svc", "namespace": "ns", "generation": generation, "annotations": annotations or {}}
    cr: Json = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"modelRef": "base", **spec},
    }
    return cr if status is None else {**cr, "status": status}


def parsed(cr: Json, **model: Any) -> DesiredService:
    return parse_service(cr, DesiredModel(name="base", source=parse_source("https://example.com/m.gguf"), **model))


def facts(ready: int = 0, desired: int = 1, **values: Any) -> ServiceFacts:
    base: Json = {"replicas": desired, "model_ready": True, "objects_exist": True}
    return ServiceFacts(desired_replicas=desired, ready_replicas=ready, **{**base, **values})


def status_of(seen: ServiceFacts, cr: Json | None = None, *, now: datetime = NOW, **model: Any) -> Json:
    cr = cr or service()
    return service_status(cr, parsed(cr, **model), seen, now=now)


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def message(status: Json, kind: str) -> str:
    return str(next(c["message"] for c in status["conditions"] if c["type"] == kind))


def protocol(status: Json) -> tuple[str, str, str, str]:
    """Ready, Reconciling, Stalled, and the reason that all three share."""
    found = conditions(status)
    reasons = {found[kind][1] for kind in ("Ready", "Reconciling", "Stalled")}
    assert len(reasons) == 1
    [reason] = reasons
    assert reason in set(Reason)
    return found["Ready"][0], found["Reconciling"][0], found["Stalled"][0], reason
