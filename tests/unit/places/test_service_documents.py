"""The documents that the options of a deploy mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from automation.places.place import PlaceError
from automation.places.service_documents import DeployOptions, documents_of, source_of
from kubeapi.json_types import Json

SOURCE = "hf://org/repo/base.gguf"


def specs(options: DeployOptions, **known: object) -> list[Json]:
    return [each["spec"] for each in documents_of("chat", options, **known)]  # type: ignore[arg-type]


def test_a_source_alone_makes_a_model_and_a_service() -> None:
    model, service = documents_of("chat", DeployOptions(source=SOURCE), namespace="ns")
    assert (model["kind"], model["metadata"], model["spec"]) == (
        "Model",
        {"name": "chat", "namespace": "ns"},
        {"source": SOURCE},
    )
    assert (service["kind"], service["spec"]) == ("InferenceService", {"modelRef": "chat"})


def test_the_options_of_llmkube_are_fields() -> None:
    options = DeployOptions(
        source=SOURCE,
        quantization="Q4_K_M",
        gpu=True,
        gpu_count=2,
        gpu_layers=-1,
        accelerator="rocm",
        replicas=0,
        cpu="2",
        memory="4Gi",
        context_size=8192,
        parallel=4,
        flash_attention=False,
        jinja=True,
        cache_type_k="q8_0",
        extra_args=("--mlock",),
        env={"A": "b"},
        min_replicas=1,
        max_replicas=3,
        idle_timeout="5m",
    )
    model, service = specs(options)
    assert model["hardware"] == {
        "accelerator": "rocm",
        "gpu": {"enabled": True, "count": 2, "layers": -1, "vendor": "amd"},
    }
    assert model["quantization"] == "Q4_K_M"
    assert service == {
        "modelRef": "chat",
        "replicas": 0,
        "resources": {"cpu": "2", "memory": "4Gi", "gpu": 2},
        "contextSize": 8192,
        "parallelSlots": 4,
        "flashAttention": False,
        "jinja": True,
        "cacheTypeK": "q8_0",
        "extraArgs": ["--mlock"],
        "autoscaling": {"minReplicas": 1, "maxReplicas": 3},
        "env": [{"name": "A", "value": "b"}],
    }
    assert documents_of("chat", options)[1]["metadata"]["annotations"] == {"herdsman.dev/idle-timeout": "5m"}


def test_an_existing_model_is_left_alone_unless_an_option_is_for_it() -> None:
    live = {"spec": {"source": SOURCE, "quantization": "Q4_0"}}
    [service] = specs(DeployOptions(replicas=2), model=live, model_name="shared")
    assert service == {"modelRef": "shared", "replicas": 2}
    model, _ = specs(DeployOptions(sha256="0" * 64), model=live)
    assert model == {"source": SOURCE, "sha256": "0" * 64}


def test_what_is_missing_or_invalid_is_named() -> None:
    with pytest.raises(PlaceError, match="no model") as missing:
        documents_of("chat", DeployOptions())
    assert "--source" in missing.value.hint
    with pytest.raises(PlaceError, match="cannot name"):
        documents_of("Chat!", DeployOptions(source=SOURCE))


def test_sources_are_addresses_files_and_repositories(tmp_path: Path) -> None:
    (tmp_path / "base.gguf").write_bytes(b"GGUF")
    assert source_of("https://example.com/a.gguf") == "https://example.com/a.gguf"
    assert source_of("base.gguf", folder=tmp_path) == str(tmp_path / "base.gguf")
    assert source_of("./missing.gguf", folder=tmp_path) == str(tmp_path / "missing.gguf")
    assert source_of("org/repo", folder=tmp_path) == "org/repo"
    with pytest.raises(PlaceError, match="no such file"):
        source_of("missing.gguf", folder=tmp_path)
