"""From a Model to desired state: what is read, and what of its status still counts."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.errors import SpecInvalid
from program.desired.model import GpuVendor, ModelFormat, ModelGpu, SourceKind
from program.dialects.llmkube.parse_model import model_of
from program.dialects.llmkube.source import cache_key

URL = "https://example.com/model.gguf"
KEY = cache_key(URL)


def model(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, name: str = "base"
) -> dict[str, Any]:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"source": URL, **(spec or {})},
        "status": status or {},
    }


def test_a_bare_model_takes_the_defaults() -> None:
    parsed = model_of(model())
    assert (parsed.source.kind, parsed.cache_key, parsed.file_name) == (SourceKind.HTTP, KEY, "base.gguf")
    assert (parsed.format, parsed.accelerator, parsed.gpu, parsed.sha256) == (ModelFormat.GGUF, "cpu", None, None)


def test_the_header_names_the_file() -> None:
    parsed = model_of(model(status={"cacheKey": KEY, "gguf": {"modelName": "Llama 3.1/Instruct", "layerCount": 32}}))
    assert parsed.file_name == "Llama-3.1-Instruct.gguf"
    assert parsed.gguf is not None
    assert parsed.gguf.layer_count == 32


def test_a_file_keeps_the_name_that_it_was_given_once() -> None:
    status = {"cacheKey": KEY, "path": f"/models/{KEY}/base.gguf", "gguf": {"modelName": "Later Known"}}
    assert model_of(model(status=status)).file_name == "base.gguf"


def test_facts_about_another_source_do_not_count() -> None:
    status = {
        "cacheKey": "0123456789abcdef",
        "path": "/models/0123456789abcdef/Old.gguf",
        "gguf": {"modelName": "Old"},
        "sourceContentLength": 5,
    }
    parsed = model_of(model(status=status))
    assert (parsed.cache_key, parsed.file_name, parsed.gguf, parsed.size_bytes) == (KEY, "base.gguf", None, None)


def test_a_status_that_nobody_can_read_does_not_stop_the_model() -> None:
    parsed = model_of(model(status={"cacheKey": KEY, "gguf": {"layerCount": "many"}, "sourceContentLength": 5}))
    assert (parsed.gguf, parsed.size_bytes) == (None, None)


def test_a_status_written_by_a_newer_peer_is_read() -> None:
    status = {"cacheKey": KEY, "phase": "Cached", "gguf": {"modelName": "X", "novelty": 1}, "stagedFiles": ["a"]}
    assert model_of(model(status=status)).file_name == "X.gguf"


def test_nothing_of_a_claim_or_a_repository_is_cached() -> None:
    claim = model_of(model({"source": "pvc://weights/chat/plain.gguf"}))
    assert (claim.cache_key, claim.file_name, claim.source.claim) == ("", "plain.gguf", "weights")
    repository = model_of(model({"source": "hf://acme/tiny@v2", "format": "safetensors"}))
    assert (repository.cache_key, repository.file_name) == ("", "")
    assert (repository.source.repository, repository.source.revision) == ("acme/tiny", "v2")


def test_hardware_is_read() -> None:
    gpu = {"enabled": True, "count": 2, "vendor": "amd", "layers": 20, "memory": "12Gi"}
    sharding = {"strategy": "row", "layerSplit": ["0-1", "2-3"]}
    hardware = {
        "accelerator": "metal",
        "memoryBudget": "24Gi",
        "memoryFraction": 0.5,
        "gpu": {**gpu, "sharding": sharding},
    }
    parsed = model_of(model({"hardware": hardware, "sha256": "AB" * 32}))
    assert (parsed.accelerator, parsed.memory_budget_bytes, parsed.memory_fraction) == ("metal", 24 * 2**30, 0.5)
    assert parsed.sha256 == "ab" * 32
    assert parsed.gpu == ModelGpu(
        enabled=True, count=2, vendor=GpuVendor.AMD, layers=20, strategy="row", layer_split=("0-1", "2-3")
    )


def test_null_means_absent() -> None:
    assert model_of(model({"hardware": {"gpu": None, "accelerator": None}, "format": None})).accelerator == "cpu"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"source": "ftp://host/x"}, "spec.source"),
        ({"source": None}, "spec.source"),
        ({"hardware": {"memoryBudget": "24 gigs"}}, "spec.hardware.memoryBudget"),
        ({"hardware": {"memoryFraction": 1.5}}, "spec.hardware.memoryFraction"),
        ({"hardware": {"gpu": {"count": 9}}}, "spec.hardware.gpu.count"),
        ({"hardware": {"gpu": {"memory": "much"}}}, "spec.hardware.gpu.memory"),
        ({"hardware": {"gpu": {"sharding": {"strategy": "zigzag"}}}}, "spec.hardware.gpu.sharding.strategy"),
        ({"sha256": "xyz"}, "spec.sha256"),
        ({"format": "onnx"}, "spec.format"),
    ],
)
def test_what_makes_no_sense_names_its_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        model_of(model(spec))
    assert caught.value.field == field
