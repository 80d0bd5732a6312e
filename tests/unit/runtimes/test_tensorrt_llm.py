"""`trtllm-serve`: every flag is spelled as in its documentation, and the requests that the loop may send."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.engines import SecretKey, TensorRtLlm
from program.desired.errors import SpecInvalid
from program.desired.model import Gpu, ModelFormat
from program.dialects.llmkube.parse.service import parse_service
from program.dialects.llmkube.unsupported.service import unsupported_fields
from program.runtimes import runtime_for
from tests.support.builders import claim_model, repository_model, service

DOCUMENTED = {
    *("--host", "--port", "--backend", "--tp_size", "--pp_size", "--ep_size", "--max_batch_size", "--max_num_tokens"),
    *("--max_seq_len", "--kv_cache_free_gpu_memory_fraction", "--extra_llm_api_options", "--reasoning_parser"),
    "--trust_remote_code",
}
"""Flags in the reference of `trtllm-serve`, release 1.2."""
FULL = TensorRtLlm(
    backend="pytorch",
    tensor_parallel_size=4,
    pipeline_parallel_size=2,
    expert_parallel_size=2,
    max_batch_size=64,
    max_num_tokens=8192,
    max_seq_len=4096,
    kv_cache_free_gpu_memory_fraction=0.8,
    extra_llm_api_options="/etc/trtllm.yaml",
    reasoning_parser="deepseek-r1",
    trust_remote_code=True,
    hf_token=SecretKey(name="hub", key="token"),
    extra_args=("--max_beam_width", "1"),
)


def argv(engine: TensorRtLlm = FULL, *, path: str = "", **fields: Any) -> list[str]:
    fields.setdefault("model", repository_model())
    return runtime_for(engine).argv(service(engine=engine, **fields), model_path=path, port=8000, host="::")


def test_every_setting_has_its_documented_flag() -> None:
    assert argv() == [
        *("org/repo", "--host", "::", "--port", "8000", "--backend", "pytorch"),
        *("--tp_size", "4", "--pp_size", "2", "--ep_size", "2"),
        *("--max_batch_size", "64", "--max_num_tokens", "8192", "--max_seq_len", "4096"),
        *("--kv_cache_free_gpu_memory_fraction", "0.8", "--extra_llm_api_options", "/etc/trtllm.yaml"),
        *("--reasoning_parser", "deepseek-r1", "--trust_remote_code", "--max_beam_width", "1"),
    ]
    flags = {word for word in argv(FULL.model_copy(update={"extra_args": ()})) if word.startswith("--")}
    assert flags == DOCUMENTED


def test_nothing_is_said_of_what_nobody_asked_for() -> None:
    assert argv(TensorRtLlm()) == ["org/repo", "--host", "::", "--port", "8000"]


def test_gpus_are_shared_by_tensor_unless_the_user_says_how() -> None:
    assert argv(TensorRtLlm(), gpu=Gpu(count=2))[-2:] == ["--tp_size", "2"]
    assert "--tp_size" not in argv(TensorRtLlm(pipeline_parallel_size=2), gpu=Gpu(count=2))
    assert "--tp_size" not in argv(TensorRtLlm(), gpu=Gpu(count=1))


def test_weights_are_opened_where_they_lie() -> None:
    assert argv(TensorRtLlm(), path="/model-source/a", model=claim_model())[0] == "/model-source/a"
    files = ("a.safetensors", "config.json")
    model = repository_model(files=files, cache_key="k", format=ModelFormat.SAFETENSORS)
    assert argv(TensorRtLlm(), path="/models/k/a.safetensors", model=model)[0] == "/models/k"


def test_a_host_of_the_users_own_is_said_once() -> None:
    assert argv(TensorRtLlm(extra_args=("--host", "::1"))).count("--host") == 1


def test_a_request_names_a_model_because_the_server_wants_one() -> None:
    asked = runtime_for(FULL).completion(service(engine=FULL))
    assert asked is not None
    assert (asked.path, asked.body["model"], asked.body["max_tokens"]) == ("/v1/chat/completions", "base", 1)


def test_its_metrics_are_not_prometheus() -> None:
    runtime = runtime_for(FULL)
    assert not runtime.serves_metrics
    assert runtime.progress(service(engine=FULL)) is None
    assert runtime.probes(8000).readiness["httpGet"] == {"path": "/health", "port": 8000}


def inference_service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "svc", "namespace": "ns"},
        "spec": {"modelRef": "base", "runtime": "tensorrt-llm", **spec},
    }


def test_an_inference_service_may_ask_for_all_of_it() -> None:
    config = {
        "backend": "pytorch",
        "tensorParallelSize": 4,
        "pipelineParallelSize": 2,
        "expertParallelSize": 2,
        "maxBatchSize": 64,
        "maxNumTokens": 8192,
        "maxSeqLen": 4096,
        "kvCacheFreeGpuMemoryFraction": 0.8,
        "extraLlmApiOptions": "/etc/trtllm.yaml",
        "reasoningParser": "deepseek-r1",
        "trustRemoteCode": True,
        "hfTokenSecretRef": {"name": "hub", "key": "token"},
    }
    cr = inference_service(tensorRTLLMConfig=config, resources={"gpu": 8}, extraArgs=["--max_beam_width", "1"])
    found = parse_service(cr, repository_model())
    assert found.engine == FULL
    assert unsupported_fields(cr, found) == ()


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"tensorParallelSize": 4}, "spec.tensorRTLLMConfig.tensorParallelSize"),
        ({"tensorParallelSize": 2, "expertParallelSize": 4}, "spec.tensorRTLLMConfig.expertParallelSize"),
        ({"maxSeqLen": 0}, "spec.tensorRTLLMConfig.maxSeqLen"),
    ],
)
def test_settings_that_could_not_start_are_refused(config: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecInvalid) as error:
        parse_service(inference_service(tensorRTLLMConfig=config, resources={"gpu": 2}), repository_model())
    assert error.value.field == field


def test_what_it_cannot_do_is_said() -> None:
    cr = inference_service(mode="embedding", tensorRTLLMConfig={"kvCacheFreeGpuMemoryFraction": 0.5}, contextSize=512)
    found = unsupported_fields(cr, parse_service(cr, repository_model("v1")))
    assert {problem.field for problem in found} == {
        "spec.mode",
        "spec.contextSize",
        "spec.tensorRTLLMConfig.kvCacheFreeGpuMemoryFraction",
        "Model/base spec.source",
    }


def test_an_autoscaler_without_a_metric_follows_the_cpu_and_says_what_it_needs() -> None:
    cr = inference_service(autoscaling={"maxReplicas": 3})
    found = unsupported_fields(cr, parse_service(cr, repository_model()))
    (problem,) = [each for each in found if each.field == "spec.autoscaling.metrics"]
    assert "set spec.resources.cpu" in problem.message
