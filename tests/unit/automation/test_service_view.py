"""How services of the other dialects are shown, from statuses with and without Herdsman's conditions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from automation.cli.get import service_row
from automation.places.service_view import observed_generation, pending_of, view_of
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.support.peer_objects import vector


def condition(kind: str, status: str, reason: str = "", message: str = "", generation: int = 1) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def cr(kind: Kind, spec: Json, status: Json | None = None) -> Json:
    metadata = {"name": "chat", "namespace": "ns", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata,
        "spec": spec,
        "status": status or {},
    }


CLAIM = {"modelClaim": {"modelName": "tiny"}, "replicas": 2}
AVAILABLE = condition("Available", "True", "PlaygroundReady", "Playground is ready")
STALLED = condition("Stalled", "True", "SpecInvalid", "spec.modelClaim: no")


@pytest.mark.parametrize(
    ("conditions", "phase", "ready"),
    [
        ([], "Unknown", 0),
        ([AVAILABLE], "Ready", 2),
        ([AVAILABLE, condition("Ready", "True", "Ready")], "Ready", 2),
        ([AVAILABLE, condition("Ready", "False", "Applying", "is being applied")], "Progressing", 0),
        ([condition("Progressing", "True", "Pending", "Waiting")], "Progressing", 0),
        ([condition("Progressing", "False", "AbortProcessing", "Waiting for model")], "Failed", 0),
        ([condition("Ready", "False", "SpecInvalid", "no"), STALLED], "Failed", 0),
        ([condition("Available", "False", "PlaygroundStopped", "Stopped")], "Stopped", 0),
    ],
)
def test_a_playground_is_told_by_its_conditions(conditions: list[Json], phase: str, ready: int) -> None:
    view = view_of(cr(kinds.PLAYGROUNDS, CLAIM, {"conditions": conditions, "replicas": 2}))
    assert (view.kind, view.phase, view.ready_replicas, view.desired_replicas) == ("Playground", phase, ready, 2)
    assert view.model == "tiny" and (view.message == "") is (phase in ("Ready", "Unknown"))


def test_several_models_are_all_named_and_a_service_of_llmaz_says_what_it_is() -> None:
    spec = {"modelClaims": {"models": [{"name": "big"}, {"name": "small", "role": "draft"}]}}
    view = view_of(cr(kinds.LLMAZ_SERVICES, spec))
    assert (view.kind, view.model, view.desired_replicas, view.endpoint) == ("llmaz Service", "big, small", 1, "")


def test_a_service_of_kserve_as_its_own_controller_leaves_it() -> None:
    recorded = vector("kserve", "020")
    status = recorded.status["LLMInferenceService/rt"]
    view = view_of(cr(kinds.LLM_SERVICES, recorded.input[0]["spec"], status))
    assert (view.kind, view.phase, view.desired_replicas) == ("LLMInferenceService", "Progressing", 2)
    assert view.endpoint.startswith("http://203.0.113.10/") and view.reason and view.message


def test_a_service_of_kserve_that_serves() -> None:
    status = {
        "conditions": [condition("Ready", "True")],
        "url": "http://gateway/ns/chat",
        "workloads": {"primary": {"kind": "Deployment", "name": "chat-kserve", "readyReplicas": 3}},
    }
    spec = {"model": {"uri": "hf://a/b", "name": "b"}, "scaling": {"minReplicas": 2, "maxReplicas": 4}}
    service = cr(kinds.LLM_SERVICES, spec, status)
    view = view_of(service)
    assert (view.phase, view.ready_replicas, view.desired_replicas) == ("Ready", 3, 3)
    row = service_row(service, {}, now=datetime(2026, 1, 2, tzinfo=UTC))
    assert row["kind"] == "LLMInferenceService" and row["endpoint"] == "http://gateway/ns/chat"
    assert (row["model"], row["replicas"], row["age"]) == ("b", "3/3", "24h")


def test_a_pending_change_is_read_out_of_a_condition_and_not_of_a_paused_one() -> None:
    approve = "1 to change; approve it with `herdsman approve chat -n ns --digest 0a1b`"
    waiting = cr(kinds.PLAYGROUNDS, CLAIM, {"conditions": [condition("ChangePending", "True", "x", approve)]})
    assert pending_of(waiting) == {"digest": "0a1b", "summary": "1 to change"}
    paused = condition("ChangePending", "True", "Paused", "1 to change; in mode Paused")
    assert pending_of(cr(kinds.PLAYGROUNDS, CLAIM, {"conditions": [paused]})) is None
    own = {"pendingChange": {"digest": "ff", "summary": "s", "changes": ["c"]}}
    assert pending_of(cr(kinds.INFERENCE_SERVICES, {}, own)) == own["pendingChange"]


def test_a_pending_change_of_kserve_is_told_beside_the_words_of_the_peer() -> None:
    words = "1 to change; approve it with `herdsman approve kserve/chat -n ns --digest 0a1b`"
    pending = condition("ChangePending", "True", "x", words)
    view = view_of(cr(kinds.LLM_SERVICES, {}, {"conditions": [condition("Ready", "False", "R", "0 of 2"), pending]}))
    assert view.message == f"0 of 2; a change is pending: {words}"
    told = condition("Ready", "False", "R", f"0 of 2; a change is pending: {words}")
    view = view_of(cr(kinds.PLAYGROUNDS, CLAIM, {"conditions": [told, pending]}))
    assert view.message.count("a change is pending") == 1


def test_the_generation_that_was_judged_stands_in_the_status_or_in_its_conditions() -> None:
    conditions = [condition("Ready", "True", generation=4), condition("Old", "True", generation=2)]
    assert observed_generation(cr(kinds.PLAYGROUNDS, {}, {"conditions": conditions})) == 4
    assert observed_generation(cr(kinds.LLM_SERVICES, {}, {"observedGeneration": 3, "conditions": conditions})) == 3
    assert observed_generation(cr(kinds.PLAYGROUNDS, {})) is None
