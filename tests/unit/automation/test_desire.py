"""A pass takes nothing from a Model while its status belongs to another source than its spec."""

from __future__ import annotations

from typing import Any

import pytest

from program.dialects.llmkube.dialect import model_is_ready
from program.dialects.llmkube.parse.source import cache_key

NOW, BEFORE = "https://models.example/now.gguf", "https://models.example/before.gguf"


def model(source: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "base", "namespace": "ns"}, "spec": {"source": source}, "status": status}


def test_a_status_about_the_present_source_counts() -> None:
    assert model_is_ready(model(NOW, phase="Ready", cacheKey=cache_key(NOW)))
    assert not model_is_ready(model(NOW, phase="Downloading", cacheKey=cache_key(NOW)))


def test_after_an_edit_the_status_of_the_source_before_does_not_count() -> None:
    assert not model_is_ready(model(NOW, phase="Ready", cacheKey=cache_key(BEFORE)))


@pytest.mark.parametrize(
    ("source", "before"),
    [
        ("org/repo", {"cacheKey": cache_key(BEFORE)}),
        (NOW, {}),
        ("pvc://claim/model.gguf", {"cacheKey": cache_key(NOW)}),
    ],
)
def test_nor_does_that_of_a_source_of_another_kind(source: str, before: dict[str, Any]) -> None:
    assert not model_is_ready(model(source, phase="Ready", **before))


def test_a_repository_that_the_engine_fetches_has_no_cache_key() -> None:
    assert model_is_ready(model("org/repo", phase="Ready"))
