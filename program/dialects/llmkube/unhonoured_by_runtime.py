"""Fields of an InferenceService that its runtime has no use for. Pure; `unhonoured` calls it."""

from __future__ import annotations

from collections.abc import Iterator

from program.desired.facts import Problem
from program.desired.model import SourceKind
from program.desired.service import DesiredService
from program.dialects.annotations import lost_name
from program.dialects.llmkube.engine_schema import (
    SglangSpec,
    SglangSpeculativeSpec,
    SpeculativeSpec,
    TensorRtLlmSpec,
    VllmSpec,
)
from program.dialects.llmkube.service_schema import ServiceSpec
from program.dialects.llmkube.sglang_settings import UNKNOWN_ALGORITHMS, UNKNOWN_PARSERS
from program.runtimes.ollama import ollama_name, pulls_by_name

_LLAMACPP = frozenset({"llamacpp"})
_RUNTIMES_OF = {
    **dict.fromkeys(
        (
            "batch_size",
            "cache_type_custom_k",
            "cache_type_custom_v",
            "cache_type_k",
            "cache_type_v",
            "context_size",
            "flash_attention",
            "jinja",
            "metadata_overrides",
            "moe_cpu_layers",
            "moe_cpu_offload",
            "no_kv_offload",
            "no_warmup",
            "reasoning_budget",
            "reasoning_budget_message",
            "rope_scaling",
            "speculative_decoding",
            "tensor_overrides",
            "u_batch_size",
        ),
        _LLAMACPP,
    ),
    "parallel_slots": frozenset({"llamacpp", "vllm", "tensorrt-llm"}),
    "extra_args": frozenset({"llamacpp", "llamacpp-router", "vllm", "sglang", "tgi", "tensorrt-llm", "omlx"}),
    "bind_address": frozenset({"llamacpp", "llamacpp-router", "vllm", "sglang", "tgi", "tensorrt-llm", "ollama"}),
    **dict.fromkeys(
        ("hot_cache_max_size", "paged_ssd_cache_dir", "paged_ssd_cache_max_size", "turbo_quant_bits"),
        frozenset({"omlx"}),
    ),
    "args": frozenset({"generic"}),
    "vllm_config": frozenset({"vllm"}),
    "sglang_config": frozenset({"sglang"}),
    "tgi_config": frozenset({"tgi"}),
    "tensor_rt_llm_config": frozenset({"tensorrt-llm"}),
    "persona_plex_config": frozenset({"personaplex"}),
}
_CHAT_ONLY = ("tgi", "personaplex", "llamacpp-router", "tensorrt-llm")


def by_runtime(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    """Name what the runtime ignores, and settings of its own that cannot be had as they are."""
    for field, runtimes in _RUNTIMES_OF.items():
        value = getattr(spec, field)
        asked = value is not None and value is not False and value not in ([], "")
        if asked and spec.runtime not in runtimes:
            yield _problem(wire_name(field), f"has no effect with runtime {spec.runtime}")
    if desired.mode != "chat" and spec.runtime in _CHAT_ONLY:
        yield _problem("spec.mode", f"has no effect with runtime {spec.runtime}")
    if desired.mode == "rerank" and spec.runtime == "ollama":
        yield _problem("spec.mode", "Ollama ranks nothing; it answers chats and embeddings")
    yield from lost_name(desired)
    if spec.runtime == "llamacpp" and spec.reasoning_budget_message and spec.reasoning_budget is None:
        yield _problem("spec.reasoningBudgetMessage", "has no effect without reasoningBudget")
    if spec.runtime == "vllm":
        yield from _vllm((spec.vllm_config or VllmSpec()).speculative or SpeculativeSpec())
    if spec.runtime == "ollama":
        yield from _ollama(desired)
    if spec.runtime == "tensorrt-llm":
        yield from _tensorrt_llm(spec.tensor_rt_llm_config or TensorRtLlmSpec(), desired)
    if spec.runtime == "sglang":
        yield from _sglang(spec.sglang_config or SglangSpec())


def fields_of_runtime(runtime: str) -> tuple[str, ...]:
    """List the fields of the spec that are about a runtime, as users write them."""
    return tuple(str(ServiceSpec.model_fields[field].alias) for field, of in _RUNTIMES_OF.items() if runtime in of)


def wire_name(field: str) -> str:
    """Give the path of a field of the spec, as users write it."""
    return f"spec.{ServiceSpec.model_fields[field].alias}"


def _problem(field: str, message: str, reason: str = "NotHonoured") -> Problem:
    return Problem(reason=reason, message=message, field=field, terminal=True)


def _vllm(speculative: SpeculativeSpec) -> Iterator[Problem]:
    if speculative.enabled and not speculative.model:
        yield _problem(
            "spec.vllmConfig.speculative.model",
            "is empty, so speculative decoding stays off; name the draft Model",
            "SpeculativeMissingModel",
        )


def _ollama(desired: DesiredService) -> Iterator[Problem]:
    model = desired.model
    if pulls_by_name(model):
        why = f"Ollama pulls `{ollama_name(model)}` from its own library, whatever lies at this source"
        yield _problem(f"Model/{model.name} spec.source", why)
    if model.sha256:
        yield _problem(f"Model/{model.name} spec.sha256", "is not checked: Ollama verifies what it pulls by itself")


def _tensorrt_llm(config: TensorRtLlmSpec, desired: DesiredService) -> Iterator[Problem]:
    source = desired.model.source
    if source.kind is SourceKind.REPOSITORY and source.revision and not desired.model.files:
        why = f"trtllm-serve takes no revision; `{source.revision}` is ignored"
        yield _problem(f"Model/{desired.model.name} spec.source", why)
    if desired.gpu is None and config.kv_cache_free_gpu_memory_fraction is not None:
        yield _problem("spec.tensorRTLLMConfig.kvCacheFreeGpuMemoryFraction", "has no effect without a GPU")


def _sglang(config: SglangSpec) -> Iterator[Problem]:
    at = "spec.sglangConfig"
    if config.tool_call_parser in UNKNOWN_PARSERS:
        yield _problem(f"{at}.toolCallParser", f"SGLang has no parser `{config.tool_call_parser}`")
    wish = config.speculative or SglangSpeculativeSpec()
    if wish.algorithm in UNKNOWN_ALGORITHMS and wish.enabled:
        yield _problem(f"{at}.speculative.algorithm", f"SGLang has no `{wish.algorithm}`; use EAGLE or EAGLE3")
    if wish.enabled and not wish.algorithm:
        yield _problem(
            f"{at}.speculative.algorithm",
            "is empty, so speculative decoding stays off; name the algorithm",
            "SpeculativeMissingConfig",
        )
    thresholds = {
        "acceptThresholdSingle": wish.accept_threshold_single,
        "acceptThresholdAcc": wish.accept_threshold_acc,
    }
    for name, value in thresholds.items():
        if value is not None and not wish.enabled:
            yield _problem(
                f"{at}.speculative.{name}",
                "has no effect while speculative decoding is off",
                "SpeculativeAcceptThresholdUnused",
            )
