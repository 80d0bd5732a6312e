"""The completion check of engines in pods that users describe: which engines get one, and its request."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.service import DesiredService
from program.dialects.llmaz.dialect import PLAYGROUNDS, SERVICES
from program.dialects.pods.engine import engine_in, mode_of, served_name_of
from program.runtimes import CompletionRequest, runtime_for
from tests.unit.dialects.kserve.combining import service
from tests.unit.dialects.kserve.parsing import annotated, parsed
from tests.unit.dialects.llmaz import objects as llmaz

OFF = {"herdsman.dev/completion-check": "false"}
ON = {"herdsman.dev/completion-check": "true"}


def request_of(desired: DesiredService) -> CompletionRequest | None:
    return runtime_for(desired.engine).completion(desired)


@pytest.mark.parametrize(
    ("engine", "args", "mode"),
    [
        ("vllm", [], "chat"),
        ("vllm", ["--task", "generate"], "chat"),
        ("vllm", ["--task", "embed"], "embedding"),
        ("vllm", ["--task=embedding"], "embedding"),
        ("vllm", ["--task", "score"], "rerank"),
        ("vllm", ["--task", "classify"], None),
        ("vllm", ["--task", "transcription"], None),
        ("vllm", ["--runner", "pooling"], "embedding"),
        ("vllm", ["--runner", "pooling", "--convert", "classify"], None),
        ("vllm", ["--convert", "embed"], "embedding"),
        ("llamacpp", ["--embedding"], "embedding"),
        ("llamacpp", ["--embeddings", "--pooling", "rank"], "rerank"),
        ("llamacpp", ["--reranking"], "rerank"),
        ("sglang", ["--is-embedding"], "embedding"),
    ],
)
def test_the_mode_is_what_the_arguments_say(engine: str, args: list[str], mode: str | None) -> None:
    assert mode_of(engine, {"args": args}) == mode
    assert mode_of(engine, {"command": ["bash", "-c", " ".join(["exec vllm serve /m", *args])]}) == mode
    assert mode_of(engine, {"env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": " ".join(args)}]}) == mode


@pytest.mark.parametrize(
    ("container", "name"),
    [
        ({"args": ["--served-model-name", "tiny", "other"]}, "tiny"),
        ({"args": ["--model", "/m", "--served_model_name=tiny"]}, "tiny"),
        ({"command": ["bash", "-c", "vllm serve /m --served-model-name 'tiny' 'publishers/ns/models/tiny'"]}, "tiny"),
        ({"args": ["--model", "/workspace/models/tiny"]}, "/workspace/models/tiny"),
        ({"args": ["--model", "$(MODEL)"]}, ""),
        ({"args": ["--served-model-name", '"$NAME"']}, ""),
        ({}, ""),
    ],
)
def test_the_model_has_the_name_that_the_arguments_give_it(container: Json, name: str) -> None:
    assert served_name_of("vllm", container) == name


def test_llama_cpp_is_asked_without_a_name_since_it_serves_one_model() -> None:
    assert served_name_of("llamacpp", {"args": ["--model", "/m.gguf"]}) == ""


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (["/app/llama-server"], "llamacpp"),
        (["python3", "-m", "sglang.launch_server"], "sglang"),
        (["ghcr.io/ggml-org/llama.cpp:server"], "llamacpp"),
        (["vllm/vllm-openai:v1"], "vllm"),
        (["registry.example/engine:1"], ""),
    ],
)
def test_an_engine_is_known_by_its_command_or_image(words: list[str], engine: str) -> None:
    assert engine_in(words) == engine


@pytest.mark.parametrize(
    ("main", "kind", "checked"),
    [
        ({}, "vllm", True),
        ({"command": ["/app/llama-server"], "args": ["-m", "/m.gguf"]}, "llamacpp", True),
        ({"command": ["python3", "-m", "sglang.launch_server"]}, "sglang", True),
        ({"command": ["/bin/serve"], "image": "ghcr.io/ggml-org/llama.cpp:server"}, "llamacpp", True),
        ({"command": ["/bin/serve"], "image": "registry.example/engine:1"}, "generic", False),
        ({"args": ["--task", "classify"]}, "vllm", False),
    ],
)
def test_kserve_asks_the_engines_that_it_knows(main: dict[str, Any], kind: str, checked: bool) -> None:
    desired = parsed(service({"template": {"containers": [{"name": "main", **main}]}})).desired
    assert (desired.engine.kind, desired.completion_check) == (kind, checked)


def test_kserves_preset_is_asked_for_its_models_name() -> None:
    desired = parsed(service()).desired
    request = request_of(desired)
    assert request is not None
    assert (request.path, request.body["model"]) == ("/v1/chat/completions", desired.model.name)


def test_an_annotation_switches_the_check_off_and_on() -> None:
    assert not parsed(annotated(OFF)).desired.completion_check
    assert parsed(annotated(ON)).desired.completion_check


def test_a_pair_of_prefill_and_decode_is_not_asked() -> None:
    assert not parsed(service({"prefill": {"replicas": 1}})).desired.completion_check


def play(cr: Json, *things: Json) -> DesiredService:
    return PLAYGROUNDS.parse(cr, llmaz.Cluster(llmaz.open_model(), *things)).desired


@pytest.mark.parametrize(
    ("backend", "checked"),
    [("vllm", True), ("llamacpp", True), ("sglang", True), ("tgi", False), ("ollama", False)],
)
def test_llmaz_asks_the_engines_that_can_be_asked(backend: str, checked: bool) -> None:
    assert play(llmaz.playground(backendRuntimeConfig={"backendName": backend})).completion_check is checked


def test_a_playground_of_an_embedding_model_is_asked_for_an_embedding() -> None:
    config = {"backendName": "vllm", "args": ["--task", "embed"]}
    request = request_of(play(llmaz.playground(backendRuntimeConfig=config)))
    assert request is not None
    assert (request.path, request.body["model"]) == ("/v1/embeddings", "m")


def test_a_playground_is_not_asked_where_its_annotation_says_so() -> None:
    assert not play(llmaz.playground(OFF)).completion_check


def test_of_a_service_of_llmaz_the_leaders_arguments_count() -> None:
    leader = llmaz.runner(command=["vllm", "serve", "/m"], args=["--task", "embed"])
    template = {"size": 2, "leaderTemplate": {"spec": {"containers": [leader]}}}
    desired = SERVICES.parse(llmaz.service(template=template), llmaz.Cluster(llmaz.open_model())).desired
    assert (desired.engine.kind, desired.mode, desired.completion_check) == ("vllm", "embedding", True)
