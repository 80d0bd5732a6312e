"""The loop's requests to an engine: completion check, idleness, progress; and how the engine gets its API key."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.engines import (
    EngineSettings,
    Generic,
    LlamaCpp,
    LlamaCppRouter,
    Ollama,
    Omlx,
    PersonaPlex,
    SecretKey,
    Sglang,
    Tgi,
    Vllm,
)
from program.desired.service import Endpoint
from program.runtimes import CompletionRequest, IdleProbe, runtime_for
from tests.support.builders import service

KEY = SecretKey(name="keys", key="api-key")
EVERY = (LlamaCpp(), LlamaCppRouter(), Vllm(), Sglang(), Tgi(), PersonaPlex(), Ollama(), Omlx(), Generic())


def completion(engine: EngineSettings, **fields: Any) -> CompletionRequest | None:
    return runtime_for(engine).completion(service(engine=engine, **fields))


@pytest.mark.parametrize("engine", [LlamaCpp(), Vllm(), Sglang(), Tgi()])
def test_one_token_is_proof_enough(engine: EngineSettings) -> None:
    asked = completion(engine)
    assert asked is not None
    assert asked.path == "/v1/chat/completions"
    assert (asked.body["max_tokens"], asked.body["temperature"]) == (1, 0)
    assert "model" not in asked.body


@pytest.mark.parametrize(
    ("mode", "path", "asked"),
    [("embedding", "/v1/embeddings", "input"), ("rerank", "/v1/rerank", "documents")],
)
@pytest.mark.parametrize("engine", [LlamaCpp(), Vllm(), Sglang()])
def test_proof_is_of_the_kind_that_is_served(engine: EngineSettings, mode: str, path: str, asked: str) -> None:
    request = completion(engine, mode=mode)
    assert request is not None
    assert request.path == path
    assert asked in request.body


@pytest.mark.parametrize(
    ("engine", "fields", "path"),
    [
        (LlamaCpp(extra_args=("--reranking",)), {}, "/v1/rerank"),
        (LlamaCpp(extra_args=("--embeddings", "--pooling", "cls")), {}, "/v1/embeddings"),
        (Sglang(extra_args=("--is-embedding",)), {}, "/v1/embeddings"),
        (Vllm(), {"endpoint": Endpoint(path="/v1/embeddings/")}, "/v1/embeddings"),
        (Vllm(), {"endpoint": Endpoint(path="/v1/rerank")}, "/v1/rerank"),
        (LlamaCpp(), {"endpoint": Endpoint(path="/v1/completions")}, "/v1/chat/completions"),
    ],
)
def test_arguments_and_the_path_tell_the_mode_too(engine: EngineSettings, fields: Any, path: str) -> None:
    request = completion(engine, **fields)
    assert request is not None
    assert request.path == path


@pytest.mark.parametrize("engine", [Ollama(), Omlx()])
def test_a_shared_daemon_is_told_which_model(engine: EngineSettings) -> None:
    asked = completion(engine)
    assert asked is not None
    assert asked.body["model"]


def test_ollama_ranks_nothing() -> None:
    assert completion(Ollama(), mode="rerank") is None


@pytest.mark.parametrize("engine", [LlamaCppRouter(), PersonaPlex(), Generic()])
def test_of_some_engines_no_request_is_known(engine: EngineSettings) -> None:
    assert completion(engine) is None


@pytest.mark.parametrize(
    ("engine", "probe"),
    [
        (LlamaCpp(), IdleProbe(path="/slots", kind="slots")),
        (Vllm(), IdleProbe(path="/metrics", kind="gauge", gauge="vllm:num_requests_running")),
        (Sglang(), IdleProbe(path="/metrics", kind="gauge", gauge="sglang:num_running_reqs")),
        (Tgi(), IdleProbe(path="/metrics", kind="gauge", gauge="tgi_batch_current_size")),
        (Generic(idle_path="/idle"), IdleProbe(path="/idle", kind="status")),
        (Generic(), None),
        (PersonaPlex(), None),
        (LlamaCppRouter(), None),
    ],
)
def test_how_idleness_is_learnt(engine: EngineSettings, probe: IdleProbe | None) -> None:
    assert runtime_for(engine).idle_probe(service(engine=engine)) == probe


def test_progress_is_a_counter_and_a_gauge_where_there_are_metrics() -> None:
    known = {}
    for engine in EVERY:
        runtime = runtime_for(engine)
        if metrics := runtime.progress(service(engine=engine)):
            assert runtime.serves_metrics
            assert metrics.generated_tokens != metrics.running_requests
            known[runtime.name] = metrics.running_requests
    assert known == {
        "llamacpp": "llamacpp:requests_processing",
        "vllm": "vllm:num_requests_running",
        "sglang": "sglang:num_running_reqs",
        "tgi": "tgi_batch_current_size",
    }


@pytest.mark.parametrize(
    ("engine", "variable"),
    [(LlamaCpp(), "LLAMA_API_KEY"), (LlamaCppRouter(), "LLAMA_API_KEY"), (Vllm(), "VLLM_API_KEY"), (Tgi(), "API_KEY")],
)
def test_a_key_reaches_the_engine_by_reference(engine: EngineSettings, variable: str) -> None:
    runtime = runtime_for(engine)
    entry = {"name": variable, "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api-key"}}}
    assert runtime.env(service(engine=engine, api_key=KEY)) == [entry]
    assert runtime.env(service(engine=engine)) == []
    assert not any("keys" in argument for argument in _argv(engine))


def _argv(engine: EngineSettings) -> list[str]:
    return runtime_for(engine).argv(service(engine=engine, api_key=KEY), model_path="/m", port=1, host="::")


@pytest.mark.parametrize("engine", [Sglang(), PersonaPlex(), Generic()])
def test_engines_without_such_a_variable_say_so(engine: EngineSettings) -> None:
    assert runtime_for(engine).api_key_env == ""


def test_a_key_stands_between_the_loop_and_what_it_guards() -> None:
    """llama-server also requires the key for metrics and slots. vLLM and TGI do not require it for their metrics."""
    for engine, metrics_are_open in ((LlamaCpp(), False), (Vllm(), True), (Tgi(), True)):
        desired, runtime = service(engine=engine, api_key=KEY), runtime_for(engine)
        assert runtime.completion(desired) is None
        assert (runtime.idle_probe(desired) is not None) is metrics_are_open
        assert (runtime.progress(desired) is not None) is metrics_are_open
