"""The desired state of a Model: which fields are read, and which parts of its status still apply."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.errors import SpecInvalid
from program.desired.model import GpuVendor, ModelFormat, ModelGpu, SourceKind
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.source import cache_key

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
    status = {"cacheKey": KEY, "phase": "Cached", "gguf": {"modelName": "X", "novelty": 1}, "replicatedTo": ["a"]}
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
        enabled=True,
        count=2,
        vendor=GpuVendor.AMD,
        layers=20,
        strategy="row",
        layer_split=("0-1", "2-3"),
        memory_bytes=12 * 2**30,
    )


def test_custom_gpus_are_read() -> None:
    gpu = {
        "count": 1,
        "resourceName": "nvidia.com/mig-1g.5gb",
        "tolerationKey": "gpu.in.house/mig",
        "runtime": "vulkan",
    }
    parsed = model_of(model({"hardware": {"accelerator": "vulkan", "gpu": gpu}}))
    assert parsed.accelerator == "vulkan"
    assert parsed.gpu is not None
    assert (parsed.gpu.resource, parsed.gpu.toleration_key, parsed.gpu.backend) == (
        "nvidia.com/mig-1g.5gb",
        "gpu.in.house/mig",
        "vulkan",
    )
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    claimed = model_of(model({"hardware": {"accelerator": "intel", "gpu": {"resourceClaims": claims}}}))
    assert claimed.gpu is not None
    assert claimed.gpu.claims == ({"name": "gpu", "resourceClaimTemplateName": "one-gpu"},)


def test_how_the_weights_are_fetched_is_read() -> None:
    toleration = {"key": "storage", "operator": "Exists", "effect": "NoSchedule"}
    parsed = model_of(
        model(
            {
                "source": "s3://weights/chat",
                "files": ["a-1.gguf", "a-2.gguf"],
                "mmproj": "mmproj.gguf",
                "sourceSecretRef": {"name": "bucket"},
                "refreshPolicy": "OnChange",
                "prefetch": True,
                "prefetchTolerations": [toleration],
            }
        )
    )
    assert (parsed.files, parsed.mmproj, parsed.file_name) == (("a-1.gguf", "a-2.gguf"), "mmproj.gguf", "a-1.gguf")
    assert (parsed.cache_key, parsed.source_secret) == (cache_key("s3://weights/chat"), "bucket")
    assert (parsed.refresh, parsed.prefetch, parsed.prefetch_tolerations) == ("OnChange", True, (toleration,))


def test_facts_about_another_set_of_files_do_not_count() -> None:
    source = "hf://acme/tiny"
    status = {"cacheKey": cache_key(source), "stagedFiles": ["old.gguf"], "gguf": {"modelName": "Old", "layerCount": 9}}
    changed = model_of(model({"source": source, "files": ["new.gguf"]}, status))
    assert (changed.gguf, changed.file_name) == (None, "new.gguf")
    same = model_of(model({"source": source, "files": ["old.gguf"]}, status))
    assert same.gguf is not None
    assert same.gguf.layer_count == 9


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
        ({"files": ["a.gguf"]}, "spec.files"),
        ({"source": "hf://a/b", "files": ["../a.gguf"]}, "spec.files[0]"),
        ({"source": "hf://a/b", "mmproj": "m.gguf"}, "spec.mmproj"),
        ({"sourceSecretRef": {"name": "../x"}}, "spec.sourceSecretRef.name"),
        ({"refreshPolicy": "Always"}, "spec.refreshPolicy"),
        ({"hardware": {"gpu": {"resourceName": "gpu"}}}, "spec.hardware.gpu.resourceName"),
        (
            {"hardware": {"gpu": {"resourceName": "a/b", "resourceClaims": [{"name": "x", "resourceClaimName": "y"}]}}},
            "spec.hardware.gpu.resourceClaims",
        ),
        ({"hardware": {"gpu": {"resourceClaims": [{"name": "x"}]}}}, "spec.hardware.gpu.resourceClaims[0]"),
    ],
)
def test_what_makes_no_sense_names_its_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        model_of(model(spec))
    assert caught.value.field == field
