"""The status that Herdsman computes from the recorded facts equals each recorded status of an InferenceService."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kubeapi.json_types import Json
from program.desired.facts import HostedFacts, ServiceFacts
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service, unsupported_fields
from program.dialects.llmkube.status.service import service_status
from tests.support.vectors import Situation, Vector, vectors

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
COMPARED = (
    "phase",
    "endpoint",
    "effectivePriority",
    "desiredReplicas",
    "modelReady",
    "readyReplicas",
    "mode",
    "schedulingStatus",
)
CONDITIONS = ("Available", "Progressing", "Degraded", "GPUAvailable", "Suspended", "VLLMSpecValid")
# Recorded conditions that an earlier phase left behind (defect C14 of LLMKube).
LEFT_OVER = {
    ("008-cache-types-standard", "", "InferenceService/both", "Degraded"),
    ("037-autoscaling-default-metric", "", "InferenceService/svc", "Degraded"),
}
# The peer keeps the reason of the stop when the service starts again.
OTHER_REASON = {("072-update-replicas", "step4", "InferenceService/svc", "Available")}


def _model(situation: Situation, cr: Json) -> Json | None:
    key = f"Model/{cr['spec']['modelRef']}"
    found = situation.objects.get(key)
    return None if found is None else {**found, "status": situation.recorded.get(key, {})}


def _desired(situation: Situation, cr: Json, model: Json | None) -> DesiredService | None:
    if model is None or model["status"].get("phase") != "Ready":
        return None
    draft = ((cr["spec"].get("vllmConfig") or {}).get("speculative") or {}).get("model")
    resolved = model_of(situation.objects[f"Model/{draft}"]) if draft else None
    return parse_service(cr, model_of(model), draft=resolved)


def _facts(situation: Situation, cr: Json, model: Json | None, desired: DesiredService | None) -> ServiceFacts:
    replicas = cr["spec"].get("replicas", 1)
    seen = situation.simulated.get(f"Deployment/{cr['metadata']['name']}", {})
    return ServiceFacts(
        desired_replicas=replicas,
        replicas=seen.get("replicas", replicas),
        ready_replicas=seen.get("readyReplicas", 0),
        model_found=model is not None,
        model_ready=desired is not None,
        objects_exist=desired is not None,
        unsupported=unsupported_fields(cr, desired) if desired is not None else (),
        hosted=HostedFacts() if desired is not None and desired.host_placement else None,
    )


def _by_type(status: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector.name)
def test_the_status_is_the_recorded_one(vector: Vector) -> None:
    written: dict[str, Json] = {}
    for situation in vector.situations():
        for key, recorded in situation.recorded.items():
            if not key.startswith("InferenceService/"):
                continue
            cr = {**situation.objects[key], "status": written.get(key, {})}
            model = _model(situation, cr)
            desired = _desired(situation, cr, model)
            status = service_status(cr, desired, _facts(situation, cr, model, desired), now=NOW)
            written[key] = status
            where = (vector.name, situation.label, key)
            for field in COMPARED:
                # The peer leaves out zero, false and empty values.
                assert (status.get(field) or None) == (recorded.get(field) or None), (*where, field)
            ours, theirs = _by_type(status), _by_type(recorded)
            for kind in CONDITIONS:
                if (*where, kind) in OTHER_REASON:
                    assert ours[kind][0] == theirs[kind][0], (*where, kind)
                elif (*where, kind) in LEFT_OVER:
                    assert kind not in ours, (*where, kind)
                else:
                    assert ours.get(kind) == theirs.get(kind), (*where, kind)


def test_the_vectors_hold_statuses_to_compare() -> None:
    statuses = [key for v in vectors() for s in v.situations() for key in s.recorded if key.startswith("Inf")]
    assert len(statuses) > 150
