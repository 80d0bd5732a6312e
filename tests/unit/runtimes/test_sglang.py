"""SGLang's server: each setting becomes the flag in SGLang's documentation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from program.desired.engines import SecretKey, Sglang, SglangSpeculative
from program.desired.model import Gpu
from program.runtimes import runtime_for
from tests.support.builders import repository_model, service

DOCUMENTED = {
    *(
        "--model-path",
        "--port",
        "--host",
        "--revision",
        "--enable-metrics",
        "--served-model-name",
        "--tp",
        "--ep",
        "--dp",
    ),
    *(
        "--context-length",
        "--mem-fraction-static",
        "--chunked-prefill-size",
        "--max-running-requests",
        "--quantization",
    ),
    *("--kv-cache-dtype", "--attention-backend", "--disable-radix-cache", "--tool-call-parser", "--reasoning-parser"),
    *("--chat-template", "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps"),
    *("--speculative-eagle-topk", "--speculative-num-draft-tokens", "--speculative-accept-threshold-single"),
    *("--speculative-accept-threshold-acc", "--lora-paths", "--max-lora-rank", "--lora-target-modules", "--log-level"),
    *("--trust-remote-code", "--skip-tokenizer-init", "--is-embedding"),
}
"""Flags in `server_arguments` of SGLang's documentation; `--tp` and `--dp` are spelled as in its examples."""
FULL = Sglang(
    served_model_name="chat",
    tensor_parallel_size=2,
    expert_parallel_size=2,
    data_parallel_size=2,
    context_length=4096,
    mem_fraction_static=0.8,
    chunked_prefill_size=512,
    max_running_requests=16,
    quantization="fp8",
    kv_cache_dtype="fp8_e5m2",
    attention_backend="flashinfer",
    enable_prefix_caching=False,
    tool_call_parser="qwen25",
    reasoning_parser="qwen3",
    chat_template="chatml",
    speculative=SglangSpeculative(
        algorithm="EAGLE3",
        draft_model_path="org/draft",
        num_steps=3,
        eagle_top_k=4,
        num_draft_tokens=16,
        accept_threshold_single=0.9,
        accept_threshold_acc=0.8,
    ),
    lora_adapters=(("sql", "/adapters/sql"),),
    max_lora_rank=16,
    lora_target_modules=("q_proj",),
    log_level="info",
    trust_remote_code=True,
    skip_tokenizer_init=True,
    hf_token=SecretKey(name="hub", key="token"),
)


def argv(engine: Sglang, **fields: Any) -> list[str]:
    desired = service(engine=engine, model=repository_model("v1"), **fields)
    return runtime_for(engine).argv(desired, model_path="", port=30000, host="::")


def test_every_flag_is_a_documented_one_and_none_is_missing() -> None:
    given = argv(FULL, gpu=Gpu(count=2), mode="embedding")
    assert {word for word in given if word.startswith("--")} == DOCUMENTED
    assert len([word for word in given if word.startswith("--")]) == len(DOCUMENTED)


def test_values_follow_their_flags() -> None:
    given = argv(FULL, gpu=Gpu(count=2))
    pairs = dict(pairwise(given))
    assert (pairs["--model-path"], pairs["--revision"], pairs["--port"]) == ("org/repo", "v1", "30000")
    assert (pairs["--tp"], pairs["--mem-fraction-static"], pairs["--lora-paths"]) == ("2", "0.8", "sql=/adapters/sql")
    assert pairs["--speculative-accept-threshold-single"] == "0.9"


def test_the_token_comes_by_reference() -> None:
    assert runtime_for(FULL).env(service(engine=FULL)) == [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    ]
