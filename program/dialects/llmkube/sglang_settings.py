"""SGLang's settings from an InferenceService. Pure; `engine_settings` calls it."""

from __future__ import annotations

import json

from program.desired.engines import SecretKey, Sglang, SglangSpeculative
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, Gpu
from program.dialects.llmkube.engine_schema import SglangSpec
from program.dialects.llmkube.parallelism import check_ranks
from program.dialects.llmkube.service_schema import ServiceSpec

_AT = "spec.sglangConfig"

UNKNOWN_PARSERS = ("functionary",)
"""Tool call parsers of LLMKube's list that SGLang has not."""
UNKNOWN_ALGORITHMS = ("Medusa",)
"""Speculative algorithms of LLMKube's list that SGLang has not."""
# What LLMKube calls otherwise than SGLang does: SGLang would refuse to start with these words.
_PARSERS = {"qwen3": "qwen"}
_BACKENDS = {"flash_attn": "fa3"}


def sglang_settings(spec: ServiceSpec, *, model: DesiredModel, gpu: Gpu | None, hf_token: SecretKey | None) -> Sglang:
    """Fill the settings. Raises SpecInvalid for more ranks than GPUs, and for adapters that cannot be read."""
    config = spec.sglang_config or SglangSpec()
    tensor, data = config.tensor_parallel_size or 1, config.data_parallel_size or 1
    check_ranks(tensor * data, gpu, field=f"{_AT}.{'tensorParallelSize' if tensor > 1 else 'dataParallelSize'}")
    check_ranks(config.expert_parallel_size or 1, gpu, field=f"{_AT}.expertParallelSize")
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
        speculative=_speculative(config),
        lora_adapters=_adapters(config),
        max_lora_rank=config.max_lora_rank,
        lora_target_modules=tuple(config.lora_target_modules),
        log_level=config.log_level,
        trust_remote_code=config.trust_remote_code,
        skip_tokenizer_init=config.skip_tokenizer_init,
        hf_token=hf_token,
        extra_args=tuple(spec.extra_args),
    )


def _speculative(config: SglangSpec) -> SglangSpeculative | None:
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
    """Join both ways of writing adapters; of two with one name the newer way's counts."""
    found = dict(_module(text, f"{_AT}.loraModules[{index}]") for index, text in enumerate(config.lora_modules))
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
