"""Arguments with several values, and the parts of URLs: `convert` keeps them or names them as lost."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.dialects.converting.arguments import split_arguments, without
from program.dialects.converting.llmkube_reader import hub_file
from tests.unit.converting.test_carried_over import converted, kserve, lost, open_model, playground, spec_of

API = "inference.llmkube.dev/v1alpha1"
NAMES = ["--served-model-name", "a", "b"]


def llmkube(runtime: str, *args: str, source: str = "hf://acme/tiny") -> tuple[Json, Json]:
    model = {"source": source, "format": "safetensors"}
    spec = {"modelRef": "tiny", "runtime": runtime, "extraArgs": list(args), "resources": {"gpu": 1}}
    return (
        {"apiVersion": API, "kind": "Model", "metadata": {"name": "tiny"}, "spec": model},
        {"apiVersion": API, "kind": "InferenceService", "metadata": {"name": "chat"}, "spec": spec},
    )


def container(*args: str, **more: Any) -> Json:
    return {"containers": [{"name": "main", "args": list(args), **more}]}


def test_all_names_of_a_model_go_from_llmkube_to_the_others() -> None:
    told = converted("kserve", *llmkube("vllm", *NAMES))
    spec = spec_of(told, "LLMInferenceService")
    assert spec["model"]["name"] == "a"
    assert spec["template"]["containers"][0]["args"] == NAMES
    assert lost(told) == []
    told = converted("llmaz", *llmkube("vllm", *NAMES))
    assert spec_of(told, "Playground")["backendRuntimeConfig"]["args"] == NAMES
    assert lost(told) == []


def test_all_names_of_a_model_go_from_kserve_to_the_others() -> None:
    told = converted("llmkube", kserve(template=container(*NAMES)))
    assert spec_of(told, "InferenceService")["extraArgs"] == NAMES
    assert lost(told) == []
    told = converted("llmaz", kserve(template=container(*NAMES)))
    assert spec_of(told, "Playground")["backendRuntimeConfig"]["args"] == NAMES


def test_all_names_of_a_model_go_from_llmaz_to_the_others() -> None:
    written = playground(backendRuntimeConfig={"backendName": "vllm", "args": NAMES})
    told = converted("llmkube", open_model(), written)
    assert spec_of(told, "InferenceService")["extraArgs"] == NAMES
    told = converted("kserve", open_model(), written)
    assert spec_of(told, "LLMInferenceService")["template"]["containers"][0]["args"] == NAMES


def test_names_that_an_engine_does_not_take_are_named_as_lost() -> None:
    told = converted("kserve", *llmkube("sglang", *NAMES))
    assert "spec.extraArgs" in lost(told)
    assert spec_of(told, "LLMInferenceService")["model"]["name"] == "a"


def test_a_name_that_is_not_the_models_goes_to_sglang_of_llmkube() -> None:
    start = {"image": "lmsysorg/sglang:v1", "command": ["python3", "-m", "sglang.launch_server"]}
    told = converted(
        "llmkube", kserve(model={"name": "own"}, template=container("--served-model-name", "other", **start))
    )
    assert spec_of(told, "InferenceService")["extraArgs"] == ["--served-model-name", "other"]


def test_of_a_flag_that_stands_there_twice_the_last_counts() -> None:
    told = converted("kserve", *llmkube("vllm", *NAMES, "--served-model-name", "c"))
    spec = spec_of(told, "LLMInferenceService")
    assert spec["model"]["name"] == "c"
    assert "args" not in spec["template"]["containers"][0]


def test_names_of_llama_server_stay_among_its_arguments() -> None:
    told = converted("kserve", *llmkube("llamacpp", "--alias", "a,b"))
    spec = spec_of(told, "LLMInferenceService")
    assert spec["model"]["name"] == "a"
    args = spec["template"]["containers"][0]["args"]
    assert args[args.index("--alias") + 1] == "a,b"


def test_a_template_is_no_name() -> None:
    told = converted("llmkube", kserve(template=container("--served-model-name", "{{ .Spec.Model.Name }}", "x")))
    assert spec_of(told, "InferenceService").get("extraArgs") == ["--served-model-name", "chat"]
    assert "spec.template.containers[0].args[1]" in lost(told)


def test_what_follows_the_one_value_of_a_flag_is_kept() -> None:
    parts = split_arguments("vllm", ["--port", "8000", "acme/tiny", "--host", "::", "stray", "--max-model-len", "64"])
    assert (parts.model, parts.rest) == ("acme/tiny", ("stray", "--max-model-len", "64"))
    parts = split_arguments("sglang", ["--enable-metrics", "stray", "--port", "1"])
    assert parts.rest == ("stray",)
    assert without(["--ctx-size", "64", "stray", "--parallel", "2"], "--ctx-size", "--parallel") == (
        ["--ctx-size", "64", "stray"],
        {"--parallel": "2"},
    )


def test_adapters_of_several_values_go_all() -> None:
    args = ["--enable-lora", "--lora-modules", "x=acme/x", "y=acme/y"]
    told = converted("kserve", *llmkube("vllm", *args))
    adapters = spec_of(told, "LLMInferenceService")["model"]["lora"]["adapters"]
    assert [each["name"] for each in adapters] == ["x", "y"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://huggingface.co/acme/tiny/resolve/main/a%20b.gguf", ("acme/tiny", "", "a b.gguf")),
        ("https://huggingface.co/acme/tiny/resolve/refs%2Fpr%2F1/sub/a.gguf", ("acme/tiny", "refs/pr/1", "sub/a.gguf")),
        ("https://huggingface.co/acme/tiny/resolve/v1/a.gguf?download=true", ("acme/tiny", "v1", "a.gguf")),
        ("https://hf.co/acme/tiny/resolve/v1/a%2Bb.gguf", ("acme/tiny", "v1", "a+b.gguf")),
        ("https://huggingface.co/acme/tiny/resolve/v1/a.gguf?x=1", None),
        ("https://huggingface.co/acme/tiny/resolve/v1/a%2Fb.gguf", None),
        ("https://huggingface.co/acme/tiny/resolve/v1//a.gguf", None),
        ("https://huggingface.co:8443/acme/tiny/resolve/v1/a.gguf", None),
        ("https://example.com/acme/tiny/resolve/v1/a.gguf", None),
    ],
)
def test_the_parts_of_a_url_are_decoded(url: str, expected: tuple[str, str, str] | None) -> None:
    found = hub_file(url)
    assert (found and (found.address, found.revision, found.file)) == expected


@pytest.mark.parametrize(
    "source", ["https://huggingface.co/acme/tiny/resolve/main/a%20b.gguf", "hf://acme/tiny/a%20b.gguf"]
)
def test_the_file_that_is_opened_has_the_name_that_it_has_on_disk(source: str) -> None:
    name = "a b.gguf" if source.startswith("https") else "a%20b.gguf"
    told = converted("kserve", *llmkube("llamacpp", source=source))
    args = spec_of(told, "LLMInferenceService")["template"]["containers"][0]["args"]
    assert args[args.index("--model") + 1] == f"/mnt/models/{name}"
    told = converted("llmaz", *llmkube("llamacpp", source=source))
    assert spec_of(told, "OpenModel")["source"]["modelHub"]["filename"] == name


def test_a_file_from_the_web_on_a_host_is_opened_by_its_own_name() -> None:
    model, service = llmkube("llamacpp", source="https://example.com/sub/a%20b.gguf?sig=c/d")
    service["metadata"]["annotations"] = {"herdsman.dev/host": "studio"}
    told = converted("kserve", model, service)
    spec = spec_of(told, "LLMInferenceService")
    assert spec["model"]["uri"] == "https://example.com/sub/a%20b.gguf?sig=c/d"
    args = spec["template"]["containers"][0]["args"]
    assert args[args.index("--model") + 1] == "/mnt/models/a b.gguf"
