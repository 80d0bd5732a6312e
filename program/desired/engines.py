"""The settings of each inference engine. `runtimes/` turns them into argv."""

from __future__ import annotations

from typing import Literal

from program.desired.base import FrozenModel


class SecretKey(FrozenModel):
    """One key of a Secret in the service's namespace. Herdsman passes on the reference, never the value."""

    name: str
    key: str
    optional: bool | None = None


class RopeScaling(FrozenModel):
    type: Literal["linear", "yarn", "longrope"]
    factor: str | None = None
    original_context: int | None = None


class SpeculativeDecoding(FrozenModel):
    """llama.cpp's speculative decoding, in the terms of llama.cpp (`--spec-type` and the flags that belong to it)."""

    type: str
    """`draft-simple`, `draft-mtp`, `ngram-simple` …; never `none`."""
    draft_path: str = ""
    """Draft weights: one of the Model's `files` by its relative path, or an absolute path in the image. A draft Model
    is in `DesiredService.draft` instead.
    """
    n_draft_max: int | None = None
    p_min: float | None = None


class LlamaCpp(FrozenModel):
    """llama-server. In pods a field that is None sets no flag; on hosts some fields have defaults (`host_argv`)."""

    kind: Literal["llamacpp"] = "llamacpp"
    context_size: int | None = None
    rope_scaling: RopeScaling | None = None
    parallel_slots: int | None = None
    flash_attention: bool | None = None
    jinja: bool | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    moe_cpu_offload: bool | None = None
    moe_cpu_layers: int | None = None
    no_kv_offload: bool | None = None
    no_warmup: bool | None = None
    tensor_overrides: tuple[str, ...] = ()
    metadata_overrides: tuple[str, ...] = ()
    batch_size: int | None = None
    ubatch_size: int | None = None
    reasoning_budget: int | None = None
    reasoning_budget_message: str | None = None
    speculative: SpeculativeDecoding | None = None
    extra_args: tuple[str, ...] = ()


class LlamaCppRouter(FrozenModel):
    """llama-server as a router over a directory of models. The user mounts the directory."""

    kind: Literal["llamacpp-router"] = "llamacpp-router"
    extra_args: tuple[str, ...] = ()


class Speculative(FrozenModel):
    """vLLM's draft model, resolved to a repository or a path."""

    model: str
    num_speculative_tokens: int | None = None


class Vllm(FrozenModel):
    kind: Literal["vllm"] = "vllm"
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    quantization: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = None
    attention_backend: str | None = None
    speculative: Speculative | None = None
    enable_expert_parallel: bool | None = None
    cpu_offload_gb: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    hf_token: SecretKey | None = None
    extra_args: tuple[str, ...] = ()


class Tgi(FrozenModel):
    kind: Literal["tgi"] = "tgi"
    quantize: str | None = None
    max_input_length: int | None = None
    max_total_tokens: int | None = None
    dtype: str | None = None
    hf_token: SecretKey | None = None
    extra_args: tuple[str, ...] = ()


class PersonaPlex(FrozenModel):
    kind: Literal["personaplex"] = "personaplex"
    quantize_4bit: bool | None = None
    cpu_offload: bool | None = None
    hf_token: SecretKey | None = None


class SglangSpeculative(FrozenModel):
    """SGLang's speculative decoding. SGLang chooses the value of a field that is None."""

    algorithm: str
    draft_model_path: str = ""
    num_steps: int | None = None
    eagle_top_k: int | None = None
    num_draft_tokens: int | None = None
    accept_threshold_single: float | None = None
    accept_threshold_acc: float | None = None


class Sglang(FrozenModel):
    """SGLang's server. Fields mean the same as the flags of `sglang.launch_server`."""

    kind: Literal["sglang"] = "sglang"
    served_model_name: str = ""
    tensor_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    data_parallel_size: int | None = None
    context_length: int | None = None
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None
    max_running_requests: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    enable_prefix_caching: bool | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    speculative: SglangSpeculative | None = None
    lora_adapters: tuple[tuple[str, str], ...] = ()
    """Name and path of each adapter."""
    max_lora_rank: int | None = None
    lora_target_modules: tuple[str, ...] = ()
    log_level: str | None = None
    trust_remote_code: bool | None = None
    skip_tokenizer_init: bool | None = None
    hf_token: SecretKey | None = None
    extra_args: tuple[str, ...] = ()


class TensorRtLlm(FrozenModel):
    """TensorRT-LLM's server. Fields mean the same as the flags of `trtllm-serve`; a field that is None sets no flag."""

    kind: Literal["tensorrt-llm"] = "tensorrt-llm"
    backend: str | None = None
    """`pytorch`, `tensorrt` for engines that were built earlier, or `_autodeploy`."""
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    kv_cache_free_gpu_memory_fraction: float | None = None
    extra_llm_api_options: str | None = None
    """Path of a YAML file in the container. Its values override the flags."""
    reasoning_parser: str | None = None
    trust_remote_code: bool | None = None
    hf_token: SecretKey | None = None
    extra_args: tuple[str, ...] = ()


class Ollama(FrozenModel):
    """A model in Ollama. Ollama chooses all other settings itself."""

    kind: Literal["ollama"] = "ollama"


class Omlx(FrozenModel):
    """A model in the oMLX of a host. The settings are the daemon's: other settings mean another daemon."""

    kind: Literal["omlx"] = "omlx"
    turbo_quant_bits: int | None = None
    paged_ssd_cache_dir: str | None = None
    hot_cache_max_size: str | None = None
    paged_ssd_cache_max_size: str | None = None
    extra_args: tuple[str, ...] = ()


class Generic(FrozenModel):
    """Any server: the user's command and arguments, unchanged."""

    kind: Literal["generic"] = "generic"
    args: tuple[str, ...] = ()
    idle_path: str = ""
    """HTTP path that answers 2xx while the server works on no request; empty if there is none."""


EngineSettings = LlamaCpp | LlamaCppRouter | Vllm | Sglang | Tgi | TensorRtLlm | PersonaPlex | Ollama | Omlx | Generic
