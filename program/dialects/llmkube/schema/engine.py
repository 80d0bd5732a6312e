"""Settings of the engines in an InferenceService. The fields are the same as in LLMKube's CRDs."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, optional, required, rule
from program.dialects.pods.schema import KeySelector

CacheType = Literal["f16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]
SpeculativeType = Literal[
    "none",
    "disabled",
    "mtp",
    "draft",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
]

NEED_DRAFT = ("draft", "draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
"""Types of speculative decoding that need the weights of a draft model."""
MAY_HAVE_DRAFT = (*NEED_DRAFT, "mtp", "draft-mtp")
"""Types that can use these weights. `mtp` is the older name of draft-mtp."""

_HAS_REF = "(has(self.draftModelRef) && self.draftModelRef != '')"
_HAS_FILE = "(has(self.draftModel) && self.draftModel != '')"


class SpeculativeDecodingSpec(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"!(self.type in {list(NEED_DRAFT)}) || {_HAS_REF} || {_HAS_FILE}",
                    "this type needs draft weights: set draftModelRef or draftModel",
                ),
                rule(
                    f"self.type in {list(MAY_HAVE_DRAFT)} || !({_HAS_REF} || {_HAS_FILE})",
                    "this type takes no draft weights: leave out draftModelRef and draftModel",
                ),
                rule(f"!({_HAS_REF} && {_HAS_FILE})", "set draftModelRef or draftModel, not both"),
            ]
        }
    )
    draft_model: str | None = optional(
        "Path of the draft weights among the Model's `files`, or an absolute path in the image.",
        min_length=1,
        max_length=253,
    )
    draft_model_ref: str | None = optional("Name of the Model with the draft weights, in the same namespace.")
    n_draft_max: int | None = optional("Maximum number of drafted tokens per step (--spec-draft-n-max).", ge=1)
    p_min: float | None = optional("Probability below which drafting stops (--spec-draft-p-min).", ge=0, le=1)
    type: SpeculativeType = required("Method (--spec-type). mtp, draft and disabled are older names of methods.")


class RopeScalingSpec(CrdModel):
    factor: str | None = optional("Scale factor (--rope-scale).", pattern=r"^[0-9]+(\.[0-9]+)?$")
    original_context: int | None = optional("Context that the model was trained with (--yarn-orig-ctx).", ge=128)
    type: Literal["linear", "yarn", "longrope"] = required("Scaling method (--rope-scaling).")


class SpeculativeSpec(CrdModel):
    enabled: bool | None = optional("Turn speculative decoding on.")
    model: str | None = optional("Name of the draft Model in the same namespace.")
    num_speculative_tokens: int = optional("Draft tokens per step.", 4, ge=1, le=16)


class VllmSpec(CrdModel):
    attention_backend: (
        Literal["FLASH_ATTN", "FLASHINFER", "XFORMERS", "flashinfer", "flash_attn", "xformers", "torch_sdpa"] | None
    ) = optional("Attention implementation (--attention-backend).")
    cpu_offload_gb: int | None = optional(
        "GB of weights kept in RAM, per GPU (--cpu-offload-gb).", name="cpuOffloadGB", ge=0
    )
    dtype: Literal["auto", "float16", "bfloat16"] | None = optional("Data type of the weights (--dtype).")
    enable_chunked_prefill: bool | None = optional("Interleave long prefills with decoding.")
    enable_expert_parallel: bool | None = optional("Spread MoE experts over the tensor-parallel ranks.")
    enable_prefix_caching: bool | None = optional("Cache repeated prompt prefixes.")
    gpu_memory_utilization: float | None = optional("Share of GPU memory that vLLM may use.", ge=0.1, le=0.99)
    hf_token_secret_ref: KeySelector | None = optional("Secret key with the Hugging Face token.")
    kv_cache_custom_dtype: str | None = optional(
        "A --kv-cache-dtype that kvCacheDtype does not list; overrides kvCacheDtype."
    )
    kv_cache_dtype: Literal["auto", "fp8_e5m2", "fp8_e4m3"] = optional("Type of KV cache elements.", "auto")
    max_model_len: int | None = optional("Longest context (--max-model-len).")
    max_num_batched_tokens: int | None = optional("Tokens per scheduler step (--max-num-batched-tokens).", ge=512)
    quantization: Literal["awq", "gptq", "squeezellm", "fp8", "nvfp4", "mxfp4", "compressed-tensors"] | None = optional(
        "Quantization of the weights (--quantization)."
    )
    speculative: SpeculativeSpec | None = optional("Speculative decoding with a draft model.")
    tensor_parallel_size: int | None = optional("GPUs that one replica spreads over (--tensor-parallel-size).")


class TgiSpec(CrdModel):
    dtype: Literal["float16", "bfloat16"] | None = optional("Data type of the weights (--dtype).")
    hf_token_secret_ref: KeySelector | None = optional("Secret key with the Hugging Face token.")
    max_input_length: int | None = optional("Longest input in tokens (--max-input-length).")
    max_total_tokens: int | None = optional("Longest input and output in tokens (--max-total-tokens).")
    quantize: Literal["bitsandbytes", "gptq", "awq", "eetq"] | None = optional("Quantization method (--quantize).")


class TensorRtLlmSpec(CrdModel):
    backend: Literal["pytorch", "tensorrt", "_autodeploy"] | None = optional("Backend that runs the model (--backend).")
    expert_parallel_size: int | None = optional("Ranks that share the experts (--ep_size).", ge=1)
    extra_llm_api_options: str | None = optional(
        "Path of a YAML file in the container whose values override the flags (--extra_llm_api_options).", min_length=1
    )
    hf_token_secret_ref: KeySelector | None = optional("Secret key with the Hugging Face token.")
    kv_cache_free_gpu_memory_fraction: float | None = optional(
        "Share of the GPU memory left by the weights that the KV cache takes.", ge=0.05, le=0.99
    )
    max_batch_size: int | None = optional("Maximum number of concurrent requests (--max_batch_size).", ge=1)
    max_num_tokens: int | None = optional("Maximum number of tokens in one batch (--max_num_tokens).", ge=1)
    max_seq_len: int | None = optional("Maximum length of prompt and answer together, in tokens (--max_seq_len).", ge=1)
    pipeline_parallel_size: int | None = optional("GPUs that the layers are split over (--pp_size).", ge=1)
    reasoning_parser: str | None = optional("Parser of reasoning (--reasoning_parser).", min_length=1)
    tensor_parallel_size: int | None = optional("GPUs that each layer is split over (--tp_size).", ge=1)
    trust_remote_code: bool | None = optional("Run code from the model's repository (--trust_remote_code).")


class PersonaPlexSpec(CrdModel):
    cpu_offload: bool | None = optional("Offload weights to RAM; the image needs accelerate.")
    hf_token_secret_ref: KeySelector | None = optional("Secret key with the Hugging Face token.")
    quantize_4bit: bool | None = optional("NF4 quantization; the image needs bitsandbytes.", name="quantize4Bit")


class SglangSpeculativeSpec(CrdModel):
    accept_threshold_acc: float | None = optional(
        "Threshold of a sequence (--speculative-accept-threshold-acc).", ge=0, le=1
    )
    accept_threshold_single: float | None = optional(
        "Threshold of a token (--speculative-accept-threshold-single).", ge=0, le=1
    )
    algorithm: Literal["EAGLE", "EAGLE3", "Medusa"] | None = optional("Algorithm (--speculative-algorithm).")
    draft_model_path: str | None = optional("Path or repository of the draft model (--speculative-draft-model-path).")
    eagle_top_k: int | None = optional("Candidate tokens per step (--speculative-eagle-topk).", ge=1)
    enabled: bool | None = optional("Turn speculative decoding on.")
    num_draft_tokens: int = optional("Tokens drafted at once (--speculative-num-draft-tokens).", 4, ge=1)
    num_steps: int | None = optional("Draft steps (--speculative-num-steps).", ge=1)


class LoraAdapterSpec(CrdModel):
    name: str = required("Name of the adapter in requests.", min_length=1)
    path: str = required("Path of the adapter in the container.", min_length=1)


class SglangSpec(CrdModel):
    attention_backend: Literal["flashinfer", "flash_attn", "torch_native"] | None = optional(
        "Attention implementation (--attention-backend)."
    )
    chat_template: str | None = optional("Name or path of a chat template (--chat-template).")
    chunked_prefill_size: int | None = optional("Tokens of a prefill chunk (--chunked-prefill-size).", ge=512)
    context_length: int | None = optional("Longest context (--context-length).", ge=128)
    data_parallel_size: int | None = optional("Data-parallel groups in one replica (--dp).", ge=1)
    enable_prefix_caching: bool | None = optional("False turns the radix cache off; the default is on.")
    expert_parallel_size: int | None = optional("Ranks that share the experts (--ep).", ge=1)
    hf_token_secret_ref: KeySelector | None = optional("Secret key with the Hugging Face token.")
    kv_cache_custom_dtype: str | None = optional(
        "A --kv-cache-dtype that kvCacheDtype does not list; overrides kvCacheDtype."
    )
    kv_cache_dtype: Literal["auto", "fp8_e5m2", "fp8_e4m3"] = optional("Type of KV cache elements.", "auto")
    log_level: Literal["debug", "info", "warning", "error"] | None = optional("Level of the log (--log-level).")
    lora_adapters: list[LoraAdapterSpec] = optional("Adapters loaded at the start (--lora-paths).", [])
    lora_modules: list[str] = optional("Older form of loraAdapters: name=path, or JSON with name and path.", [])
    lora_target_modules: list[str] = optional("Modules that adapters may change (--lora-target-modules).", [])
    max_lora_rank: int | None = optional("Highest rank of an adapter (--max-lora-rank).", ge=1)
    max_running_requests: int | None = optional("Maximum number of concurrent requests (--max-running-requests).", ge=1)
    mem_fraction_static: float | None = optional("Share of GPU memory for weights and KV cache.", ge=0.1, le=0.99)
    quantization: str | None = optional("Quantization of the weights (--quantization).")
    reasoning_parser: Literal["qwen3", "deepseek-r1"] | None = optional("Parser of reasoning (--reasoning-parser).")
    skip_tokenizer_init: bool | None = optional("Take and give token ids only (--skip-tokenizer-init).")
    speculative: SglangSpeculativeSpec | None = optional("Speculative decoding.")
    tensor_parallel_size: int | None = optional("GPUs that one replica spreads over (--tp).", ge=1)
    tool_call_parser: Literal["llama3", "qwen3", "qwen25", "hermes", "functionary", "mistral"] | None = optional(
        "Parser of tool calls (--tool-call-parser)."
    )
    trust_remote_code: bool | None = optional("Run code from the model's repository (--trust-remote-code).")
