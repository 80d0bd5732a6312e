"""From an InferenceService's fields to the settings of its engine: one function per runtime. Pure; `parse` calls it.

Raises SpecInvalid for values that the CRD lets through but no engine could start with. `sglang_settings` has SGLang's
many, `speculative_settings` llama.cpp's speculative decoding.
"""

from __future__ import annotations

from program.desired.engines import (
    EngineSettings,
    Generic,
    LlamaCpp,
    LlamaCppRouter,
    Ollama,
    Omlx,
    PersonaPlex,
    RopeScaling,
    SecretKey,
    Speculative,
    TensorRtLlm,
    Tgi,
    Vllm,
)
from program.desired.errors import NotYet, SpecInvalid
from program.desired.model import DesiredModel, Gpu, SourceKind
from program.dialects.llmkube.engine_schema import PersonaPlexSpec, TensorRtLlmSpec, TgiSpec, VllmSpec
from program.dialects.llmkube.parallelism import check_ranks
from program.dialects.llmkube.pod_schema import KeySelector
from program.dialects.llmkube.service_schema import ServiceSpec
from program.dialects.llmkube.sglang_settings import sglang_settings
from program.dialects.llmkube.speculative_settings import speculative_settings


def engine_settings(
    spec: ServiceSpec,
    *,
    model: DesiredModel,
    gpu: Gpu | None,
    draft: DesiredModel | None,
    idle_path: str = "",
) -> EngineSettings:
    """Choose and fill the settings of `spec.runtime`. `idle_path` is where a generic server tells that it is idle."""
    match spec.runtime:
        case "llamacpp":
            return _llamacpp(spec, model=model)
        case "llamacpp-router":
            return LlamaCppRouter(extra_args=tuple(spec.extra_args))
        case "vllm":
            return _vllm(spec, model=model, gpu=gpu, draft=draft)
        case "sglang":
            token = spec.sglang_config.hf_token_secret_ref if spec.sglang_config else None
            return sglang_settings(
                spec, model=model, gpu=gpu, hf_token=secret_key(token, "spec.sglangConfig.hfTokenSecretRef")
            )
        case "tgi":
            return _tgi(spec)
        case "tensorrt-llm":
            return _tensorrt_llm(spec, gpu=gpu)
        case "personaplex":
            return _personaplex(spec.persona_plex_config or PersonaPlexSpec())
        case "ollama":
            return Ollama()
        case "omlx":
            return _omlx(spec)
        case "generic":
            return Generic(args=tuple(spec.args), idle_path=idle_path)


def _llamacpp(spec: ServiceSpec, *, model: DesiredModel) -> LlamaCpp:
    rope = spec.rope_scaling
    return LlamaCpp(
        context_size=spec.context_size,
        rope_scaling=rope and RopeScaling(type=rope.type, factor=rope.factor, original_context=rope.original_context),
        parallel_slots=spec.parallel_slots,
        flash_attention=spec.flash_attention,
        jinja=spec.jinja,
        cache_type_k=spec.cache_type_custom_k or spec.cache_type_k,
        cache_type_v=spec.cache_type_custom_v or spec.cache_type_v,
        moe_cpu_offload=spec.moe_cpu_offload,
        moe_cpu_layers=spec.moe_cpu_layers,
        no_kv_offload=spec.no_kv_offload,
        no_warmup=spec.no_warmup,
        tensor_overrides=tuple(spec.tensor_overrides),
        metadata_overrides=tuple(spec.metadata_overrides),
        batch_size=spec.batch_size,
        ubatch_size=spec.u_batch_size,
        reasoning_budget=spec.reasoning_budget,
        reasoning_budget_message=spec.reasoning_budget_message,
        speculative=speculative_settings(spec.speculative_decoding, model=model),
        extra_args=tuple(spec.extra_args),
    )


def _vllm(spec: ServiceSpec, *, model: DesiredModel, gpu: Gpu | None, draft: DesiredModel | None) -> Vllm:
    config = spec.vllm_config or VllmSpec()
    at = "spec.vllmConfig"
    _at_least_one(config.tensor_parallel_size, f"{at}.tensorParallelSize")
    _at_least_one(config.max_model_len, f"{at}.maxModelLen")
    check_ranks(config.tensor_parallel_size or 1, gpu, field=f"{at}.tensorParallelSize")
    return Vllm(
        tensor_parallel_size=config.tensor_parallel_size,
        max_model_len=config.max_model_len,
        quantization=config.quantization,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_custom_dtype
        or (None if config.kv_cache_dtype == "auto" else config.kv_cache_dtype),
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        max_num_batched_tokens=config.max_num_batched_tokens,
        attention_backend=config.attention_backend,
        speculative=_speculative(config, model=model, draft=draft),
        enable_expert_parallel=config.enable_expert_parallel,
        cpu_offload_gb=config.cpu_offload_gb,
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_num_seqs=spec.parallel_slots,
        hf_token=secret_key(config.hf_token_secret_ref, f"{at}.hfTokenSecretRef"),
        extra_args=tuple(spec.extra_args),
    )


def _speculative(config: VllmSpec, *, model: DesiredModel, draft: DesiredModel | None) -> Speculative | None:
    wanted = config.speculative
    if wanted is None or not wanted.enabled or not wanted.model:
        return None
    field = "spec.vllmConfig.speculative.model"
    if wanted.model == model.name:
        draft = model
    if draft is None or draft.name != wanted.model:
        raise NotYet(reason="DependencyMissing", field=field, why=f"draft Model `{wanted.model}` does not exist")
    if draft.source.kind is not SourceKind.REPOSITORY:
        raise SpecInvalid(
            field=field,
            why=f"draft Model `{wanted.model}` must come from a Hugging Face repository (`hf://org/repo`), "
            f"because vLLM fetches it itself; its source is `{draft.source.address}`",
        )
    return Speculative(model=draft.source.repository, num_speculative_tokens=wanted.num_speculative_tokens)


def _tgi(spec: ServiceSpec) -> Tgi:
    config = spec.tgi_config or TgiSpec()
    at = "spec.tgiConfig"
    _at_least_one(config.max_input_length, f"{at}.maxInputLength")
    _at_least_one(config.max_total_tokens, f"{at}.maxTotalTokens")
    return Tgi(
        quantize=config.quantize,
        max_input_length=config.max_input_length,
        max_total_tokens=config.max_total_tokens,
        dtype=config.dtype,
        hf_token=secret_key(config.hf_token_secret_ref, f"{at}.hfTokenSecretRef"),
        extra_args=tuple(spec.extra_args),
    )


def _tensorrt_llm(spec: ServiceSpec, *, gpu: Gpu | None) -> TensorRtLlm:
    config = spec.tensor_rt_llm_config or TensorRtLlmSpec()
    at = "spec.tensorRTLLMConfig"
    ranks = (config.tensor_parallel_size or 1) * (config.pipeline_parallel_size or 1)
    check_ranks(ranks, gpu, field=f"{at}.tensorParallelSize")
    experts = config.expert_parallel_size
    if experts is not None and config.tensor_parallel_size and config.tensor_parallel_size % experts:
        raise SpecInvalid(
            field=f"{at}.expertParallelSize",
            why=f"{experts} does not divide tensorParallelSize {config.tensor_parallel_size}",
        )
    return TensorRtLlm(
        backend=config.backend,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        expert_parallel_size=experts,
        max_batch_size=config.max_batch_size or spec.parallel_slots,
        max_num_tokens=config.max_num_tokens,
        max_seq_len=config.max_seq_len,
        kv_cache_free_gpu_memory_fraction=config.kv_cache_free_gpu_memory_fraction,
        extra_llm_api_options=config.extra_llm_api_options,
        reasoning_parser=config.reasoning_parser,
        trust_remote_code=config.trust_remote_code,
        hf_token=secret_key(config.hf_token_secret_ref, f"{at}.hfTokenSecretRef"),
        extra_args=tuple(spec.extra_args),
    )


def _omlx(spec: ServiceSpec) -> Omlx:
    return Omlx(
        turbo_quant_bits=spec.turbo_quant_bits,
        paged_ssd_cache_dir=spec.paged_ssd_cache_dir,
        hot_cache_max_size=spec.hot_cache_max_size,
        paged_ssd_cache_max_size=spec.paged_ssd_cache_max_size,
        extra_args=tuple(spec.extra_args),
    )


def _personaplex(config: PersonaPlexSpec) -> PersonaPlex:
    return PersonaPlex(
        quantize_4bit=config.quantize_4bit,
        cpu_offload=config.cpu_offload,
        hf_token=secret_key(config.hf_token_secret_ref, "spec.personaPlexConfig.hfTokenSecretRef"),
    )


def _at_least_one(value: int | None, field: str) -> None:
    if value is not None and value < 1:
        raise SpecInvalid(field=field, why=f"must be at least 1, is {value}; leave it out for the engine's own choice")


def secret_key(reference: KeySelector | None, field: str) -> SecretKey | None:
    """Read a reference to a Secret's key. Raises SpecInvalid when one of its parts is empty."""
    if reference is None:
        return None
    if not reference.name or not reference.key:
        raise SpecInvalid(field=f"{field}.{'key' if reference.name else 'name'}", why="is empty")
    return SecretKey(name=reference.name, key=reference.key, optional=reference.optional)
