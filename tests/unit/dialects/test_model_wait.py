"""A changed service waits some seconds for its Model before the Model counts as missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts
from program.dialects.registry import dialect_named
from program.dialects.status.model_wait import MODEL_FOLLOWS_S, model_wait_s

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)


class Nothing:
    """A lookup that finds no object."""

    reads_model_status = True

    def __call__(self, *_: Any) -> None:
        return None

    def listed(self, *_: Any) -> tuple[Json, ...]:
        return ()


def service(age_s: float) -> Json:
    created = (NOW - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": "svc", "namespace": "team", "generation": 1, "creationTimestamp": created}
    return {"apiVersion": kinds.INFERENCE_SERVICES.api_version, "metadata": metadata, "spec": {"modelRef": "base"}}


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        (0, ("Pending", "ModelNotReady", "False")),
        (MODEL_FOLLOWS_S - 1, ("Pending", "ModelNotReady", "False")),
        (MODEL_FOLLOWS_S, ("Failed", "ModelNotFound", "True")),
        (-3600, ("Failed", "ModelNotFound", "True")),
    ],
)
def test_a_service_without_its_model_fails_after_some_seconds(age_s: float, expected: tuple[str, str, str]) -> None:
    status = dialect_named("llmkube").status(service(age_s), None, ServiceFacts(desired_replicas=1), Nothing(), now=NOW)
    conditions = {each["type"]: each for each in status["conditions"]}
    assert (status["phase"], conditions["Ready"]["reason"], conditions["Stalled"]["status"]) == expected


def test_a_service_that_is_changed_waits_again() -> None:
    old = service(3600)
    changed = (NOW - timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    written = {**old, "metadata": {**old["metadata"], "changedBy": {"manager": "kubectl", "time": changed}}}
    assert model_wait_s(old, now=NOW) == 0
    assert model_wait_s(written, now=NOW) == MODEL_FOLLOWS_S - 1


def test_a_service_without_a_time_of_creation_does_not_wait() -> None:
    assert model_wait_s({"metadata": {}}, now=NOW) == 0
