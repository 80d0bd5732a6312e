"""The settings of an InferenceService's engine, one function per runtime; speculative decoding; draft models. Pure.

Raises SpecInvalid for values that the CRD allows and the engine refuses at its start.
"""

from __future__ import annotations

import json

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
    Sglang,
    SglangSpeculative,
    Speculative,
    SpeculativeDecoding,
    TensorRtLlm,
    Tgi,
    Vllm,
)
from program.desired.errors import NotYet, SpecInvalid
from program.desired.model import DesiredModel, Gpu, SourceKind
from program.dialects.llmkube.schema.engine import (
    MAY_HAVE_DRAFT,
    NEED_DRAFT,
    PersonaPlexSpec,
    SglangSpec,
    SpeculativeDecodingSpec,
    TensorRtLlmSpec,
    TgiSpec,
    VllmSpec,
)
from program.dialects.llmkube.schema.service import ServiceSpec
from program.dialects.pods.schema import KeySelector


def engine_settings(
    spec: ServiceSpec,
    *,
    model: DesiredModel,
    gpu: Gpu | None,
    draft: DesiredModel | None,
    idle_path: str = "",
) -> EngineSettings:
    """Return the settings of `spec.runtime`.

    `idle_path` is the path at which a generic server reports that it is idle.
    """
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
        raise SpecInvalid(
            field=field, why=f"is {value}, and must be at least 1; leave it out to use the engine's default"
        )


def secret_key(reference: KeySelector | None, field: str) -> SecretKey | None:
    """Read a reference to a Secret's key. Raises SpecInvalid if one of its parts is empty."""
    if reference is None:
        return None
    if not reference.name or not reference.key:
        raise SpecInvalid(field=f"{field}.{'key' if reference.name else 'name'}", why="is empty")
    return SecretKey(name=reference.name, key=reference.key, optional=reference.optional)


_SGLANG = "spec.sglangConfig"

UNKNOWN_PARSERS = ("functionary",)
"""Tool call parsers of LLMKube's list that SGLang does not have."""
UNKNOWN_ALGORITHMS = ("Medusa",)
"""Speculative algorithms of LLMKube's list that SGLang does not have."""
# LLMKube's names that differ from SGLang's. SGLang refuses to start with LLMKube's names.
_PARSERS = {"qwen3": "qwen"}
_BACKENDS = {"flash_attn": "fa3"}


def sglang_settings(spec: ServiceSpec, *, model: DesiredModel, gpu: Gpu | None, hf_token: SecretKey | None) -> Sglang:
    """Return the settings. Raises SpecInvalid for more ranks than GPUs, and for adapters that cannot be read."""
    config = spec.sglang_config or SglangSpec()
    tensor, data = config.tensor_parallel_size or 1, config.data_parallel_size or 1
    check_ranks(tensor * data, gpu, field=f"{_SGLANG}.{'tensorParallelSize' if tensor > 1 else 'dataParallelSize'}")
    check_ranks(config.expert_parallel_size or 1, gpu, field=f"{_SGLANG}.expertParallelSize")
    parser = config.tool_call_parser
    return Sglang(
        served_model_name=model.name,
        tensor_parallel_size=config.tensor_parallel_size,
        expert_parallel_size=config.expert_parallel_size,
        data_parallel_size=config.data_parallel_size,
        context_length=config.context_length,
        mem_fraction_static=config.mem_fraction_static,
        chunked_prefill_size=config.chunked_prefill_size,
        max_running_requests=config.max_running_requests,
        quantization=config.quantization or None,
        kv_cache_dtype=config.kv_cache_custom_dtype
        or (None if config.kv_cache_dtype == "auto" else config.kv_cache_dtype),
        attention_backend=_BACKENDS.get(config.attention_backend or "", config.attention_backend),
        enable_prefix_caching=config.enable_prefix_caching,
        tool_call_parser=None if parser in UNKNOWN_PARSERS else _PARSERS.get(parser or "", parser),
        reasoning_parser=config.reasoning_parser,
        chat_template=config.chat_template or None,
        speculative=_sglang_speculative(config),
        lora_adapters=_adapters(config),
        max_lora_rank=config.max_lora_rank,
        lora_target_modules=tuple(config.lora_target_modules),
        log_level=config.log_level,
        trust_remote_code=config.trust_remote_code,
        skip_tokenizer_init=config.skip_tokenizer_init,
        hf_token=hf_token,
        extra_args=tuple(spec.extra_args),
    )


def _sglang_speculative(config: SglangSpec) -> SglangSpeculative | None:
    wish = config.speculative
    if wish is None or not wish.enabled or not wish.algorithm or wish.algorithm in UNKNOWN_ALGORITHMS:
        return None
    return SglangSpeculative(
        algorithm=wish.algorithm,
        draft_model_path=wish.draft_model_path or "",
        num_steps=wish.num_steps,
        eagle_top_k=wish.eagle_top_k,
        num_draft_tokens=wish.num_draft_tokens,
        accept_threshold_single=wish.accept_threshold_single,
        accept_threshold_acc=wish.accept_threshold_acc,
    )


def _adapters(config: SglangSpec) -> tuple[tuple[str, str], ...]:
    """Join the two fields with adapters. If a name is in both, the newer field counts."""
    found = dict(_module(text, f"{_SGLANG}.loraModules[{index}]") for index, text in enumerate(config.lora_modules))
    found.update({adapter.name: adapter.path for adapter in config.lora_adapters})
    return tuple(found.items())


def _module(text: str, field: str) -> tuple[str, str]:
    if text.lstrip().startswith("{"):
        try:
            entry = json.loads(text)
        except ValueError:
            entry = {}
        name, path = entry.get("name"), entry.get("path")
    else:
        name, _, path = text.partition("=")
    if not isinstance(name, str) or not isinstance(path, str) or not name.strip() or not path.strip():
        raise SpecInvalid(field=field, why=f"`{text[:64]}` is neither name=path nor JSON with name and path")
    return name.strip(), path.strip()


_DRAFT = "spec.speculativeDecoding"
_ALIASES = {"mtp": "draft-mtp", "draft": "draft-simple"}
_OFF = ("none", "disabled")


def speculative_settings(spec: SpeculativeDecodingSpec | None, *, model: DesiredModel) -> SpeculativeDecoding | None:
    """Translate the settings; None if speculative decoding is off.

    Raises SpecInvalid if the type needs draft weights and there are none, or takes none and there are some (the CRD's
    own rules), and if the Model does not list the file of the draft.
    """
    if spec is None:
        return None
    if spec.draft_model_ref and spec.draft_model:
        raise SpecInvalid(field=_DRAFT, why="set draftModelRef or draftModel, not both")
    has_draft = bool(spec.draft_model_ref or spec.draft_model)
    if spec.type in NEED_DRAFT and not has_draft:
        raise SpecInvalid(field=_DRAFT, why=f"type {spec.type} needs draft weights: set draftModelRef or draftModel")
    if has_draft and spec.type not in MAY_HAVE_DRAFT:
        raise SpecInvalid(
            field=_DRAFT, why=f"type {spec.type} takes no draft weights: leave out draftModelRef and draftModel"
        )
    if spec.type in _OFF:
        return None
    return SpeculativeDecoding(
        type=_ALIASES.get(spec.type, spec.type),
        draft_path=_draft_path(spec.draft_model or "", model),
        n_draft_max=spec.n_draft_max,
        p_min=spec.p_min,
    )


def draft_of(spec: ServiceSpec, *, model: DesiredModel, draft: DesiredModel | None) -> DesiredModel | None:
    """Return the draft model that pods fetch in addition to the model. Raises NotYet while it does not exist."""
    wanted = (spec.speculative_decoding or SpeculativeDecodingSpec(type="none")).draft_model_ref
    if spec.runtime != "llamacpp" or not wanted:
        return None
    if wanted == model.name:
        return model
    if draft is None or draft.name != wanted:
        raise NotYet(
            reason="DependencyMissing",
            field=f"{_DRAFT}.draftModelRef",
            why=f"draft Model `{wanted}` does not exist",
        )
    return draft


def _draft_path(path: str, model: DesiredModel) -> str:
    if path == "" or path.startswith("/") or path in model.files:
        return path
    raise SpecInvalid(
        field=f"{_DRAFT}.draftModel",
        why=f"`{path[:64]}` is neither one of spec.files of Model `{model.name}` nor an absolute path",
    )


def check_ranks(ranks: int, gpu: Gpu | None, *, field: str) -> None:
    """Raise SpecInvalid at `field` if a replica has fewer GPUs than ranks.

    GPUs of resource claims are not checked, because only the driver knows how many a claim holds.
    """
    gpus = gpu.count if gpu else 0
    if ranks <= max(gpus, 1) or (gpu is not None and gpu.claims):
        return
    raise SpecInvalid(
        field=field,
        why=f"is {ranks} ranks, which need {ranks} GPUs, and a replica has {gpus}; set spec.resources.gpu or the "
        f"Model's "
        "spec.hardware.gpu.count",
    )
