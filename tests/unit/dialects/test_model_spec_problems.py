"""A Model with a valid source and invalid other fields reports them in its status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from program.desired.facts import ModelFacts
from program.dialects.llmkube.status.model import model_status

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hardware", "field"),
    [
        ({"memoryBudget": "24 gigs"}, "spec.hardware.memoryBudget"),
        ({"memoryFraction": 1.5}, "spec.hardware.memoryFraction"),
        ({"gpu": {"memory": "much"}}, "spec.hardware.gpu.memory"),
    ],
)
def test_the_field_is_named_on_the_model(hardware: dict[str, Any], field: str) -> None:
    cr = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "base", "namespace": "ns", "generation": 1},
        "spec": {"source": "hf://org/repo", "format": "safetensors", "hardware": hardware},
    }
    status = model_status(cr, ModelFacts(), now=NOW)
    assert status["phase"] == "Failed"
    stalled = next(c for c in status["conditions"] if c["type"] == "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "SpecInvalid")
    assert stalled["message"].startswith(f"{field}: ")
