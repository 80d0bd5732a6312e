"""Lists the fields of an InferenceService that Herdsman does not support for this service. Pure.

The result becomes condition SpecHonoured=False. A field counts if it requests something; absent fields, empty fields
and disabled switches do not count. `platform` lists the fields that pods or hosts do not support. This module lists the
fields that the runtime, the GPUs or the model do not support.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeapi.json_types import Json
from program.desired.facts import Problem, unsupported_field
from program.desired.model import SourceKind
from program.desired.service import DesiredService
from program.dialects.annotations import lost_name
from program.dialects.crds.reading import read, unknown_fields, without_nulls
from program.dialects.llmkube.parse.engines import UNKNOWN_ALGORITHMS, UNKNOWN_PARSERS
from program.dialects.llmkube.parse.gpu import split_problem
from program.dialects.llmkube.schema.engine import (
    SglangSpec,
    SglangSpeculativeSpec,
    SpeculativeSpec,
    TensorRtLlmSpec,
    VllmSpec,
)
from program.dialects.llmkube.schema.service import ResourcesSpec, ServiceSpec
from program.dialects.llmkube.unsupported.platform import in_pods, on_hosts, wire_name
from program.runtimes import runtime_for
from program.runtimes.ollama import ollama_name, pulls_by_name
from program.runtimes.ranks import misfit, ranks_of

_LLAMA_SERVERS = ("llamacpp", "llamacpp-router")


def unsupported_fields(cr: Json, desired: DesiredService) -> tuple[Problem, ...]:
    """List the fields of a service that have no effect. None of them is fatal.

    `components.extensions` lists the fields that depend on an extension of the cluster, such as KEDA or the Gateway
    API.
    """
    spec = read(ServiceSpec, without_nulls(cr.get("spec")), field="spec")
    annotations = (cr.get("metadata") or {}).get("annotations") or {}
    of_place = (on_hosts if desired.host_placement else in_pods)(spec, annotations, desired)
    of_gpus = (*_of_gpu(spec, desired), *_of_ranks(spec, desired))
    return (*by_runtime(spec, desired), *of_place, *of_gpus, *_of_model(desired), *_unknown(spec))


def _of_gpu(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    resources = spec.resources or ResourcesSpec()
    count = desired.gpu.count if desired.gpu else 0
    if resources.gpu is not None and resources.gpu != count:
        yield unsupported_field(
            "spec.resources.gpu", f"is {resources.gpu}, but Model `{desired.model.name}` sets {count}, which wins"
        )
    if desired.gpu is not None:
        return
    if resources.gpu_memory:
        yield unsupported_field("spec.resources.gpuMemory", "has no effect without a GPU")
    if spec.runtime == "vllm" and spec.vllm_config:
        if spec.vllm_config.cpu_offload_gb:
            yield unsupported_field("spec.vllmConfig.cpuOffloadGB", "has no effect without a GPU")
        if spec.vllm_config.gpu_memory_utilization is not None:
            yield unsupported_field("spec.vllmConfig.gpuMemoryUtilization", "has no effect without a GPU")
    if spec.runtime == "sglang" and spec.sglang_config and spec.sglang_config.mem_fraction_static is not None:
        yield unsupported_field("spec.sglangConfig.memFractionStatic", "has no effect without a GPU")


def _of_ranks(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    """Yield arguments that create more or fewer ranks than a replica has GPUs, except for GPUs from resource claims."""
    engine, gpu = desired.engine.kind, desired.gpu
    own = ranks_of(engine, spec.extra_args)
    if own.at is None or gpu is None or gpu.claims:
        return
    every = runtime_for(desired.engine).argv(desired, model_path="", port=0, host="")
    if why := misfit(engine, every, gpu.count):
        yield unsupported_field(f"spec.extraArgs[{own.at}]", why)


def _of_model(desired: DesiredService) -> Iterator[Problem]:
    model, engine = desired.model, desired.engine.kind
    at = f"Model/{model.name} spec"
    for name in model.asked_resources:
        yield unsupported_field(
            f"{at}.resources.{name}", f"has no effect; set spec.resources.{name} of the InferenceService"
        )
    if desired.host_placement is None:
        if model.memory_budget_bytes is not None:
            yield unsupported_field(
                f"{at}.hardware.memoryBudget", "has an effect on hosts only; for pods, set spec.resources"
            )
        if model.memory_fraction is not None:
            yield unsupported_field(
                f"{at}.hardware.memoryFraction", "has an effect on hosts only; for pods, set spec.resources"
            )
    gpu = model.gpu
    split = f"{at}.hardware.gpu.sharding.layerSplit"
    if gpu is not None and desired.gpu and (found := split_problem(gpu, count=desired.gpu.count, at=split)):
        yield unsupported_field(*found)
    elif gpu is not None and gpu.layer_split and not (desired.gpu and desired.gpu.tensor_split):
        yield unsupported_field(split, "has no effect unless layers are split over GPUs")
    if gpu is not None and gpu.backend and engine not in _LLAMA_SERVERS:
        yield unsupported_field(
            f"{at}.hardware.gpu.runtime", f"selects a build of llama.cpp and has no effect with runtime {engine}"
        )
    if model.mmproj and engine != "llamacpp":
        yield unsupported_field(f"{at}.mmproj", f"has no effect with runtime {engine}")
    if engine == "llamacpp":
        draft = desired.draft
        for each in (model, *([draft] if draft is not None and draft.name != model.name else [])):
            source = each.source
            if source.kind is SourceKind.REPOSITORY and source.revision and not each.files:
                why = f"names revision `{source.revision}`, which has no effect: llama-server cannot choose a revision"
                yield unsupported_field(f"Model/{each.name} spec.source", why)


def _unknown(spec: ServiceSpec) -> Iterator[Problem]:
    for path, _ in unknown_fields(spec, field="spec"):
        yield unsupported_field(path, "is not known to this version of Herdsman", "UnknownField")


# --- by runtime -------------------------------------------------------------------------------------------------------

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
    """List the fields that the runtime ignores, and settings of the runtime that it does not accept."""
    for field, runtimes in _RUNTIMES_OF.items():
        value = getattr(spec, field)
        asked = value is not None and value is not False and value not in ([], "")
        if asked and spec.runtime not in runtimes:
            yield unsupported_field(wire_name(field), f"has no effect with runtime {spec.runtime}")
    if desired.mode != "chat" and spec.runtime in _CHAT_ONLY:
        yield unsupported_field("spec.mode", f"has no effect with runtime {spec.runtime}")
    if desired.mode == "rerank" and spec.runtime == "ollama":
        yield unsupported_field("spec.mode", "rerank has no effect: Ollama serves only chats and embeddings")
    yield from lost_name(desired)
    if spec.runtime == "llamacpp" and spec.reasoning_budget_message and spec.reasoning_budget is None:
        yield unsupported_field("spec.reasoningBudgetMessage", "has no effect without reasoningBudget")
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


def _vllm(speculative: SpeculativeSpec) -> Iterator[Problem]:
    if speculative.enabled and not speculative.model:
        yield unsupported_field(
            "spec.vllmConfig.speculative.model",
            "is empty, so speculative decoding stays off; name the draft Model",
            "SpeculativeMissingModel",
        )


def _ollama(desired: DesiredService) -> Iterator[Problem]:
    model = desired.model
    if pulls_by_name(model):
        why = f"has no effect: Ollama pulls `{ollama_name(model)}` from its library"
        yield unsupported_field(f"Model/{model.name} spec.source", why)
    if model.sha256:
        yield unsupported_field(
            f"Model/{model.name} spec.sha256", "is not checked: Ollama verifies its downloads itself"
        )


def _tensorrt_llm(config: TensorRtLlmSpec, desired: DesiredService) -> Iterator[Problem]:
    source = desired.model.source
    if source.kind is SourceKind.REPOSITORY and source.revision and not desired.model.files:
        why = f"names revision `{source.revision}`, which has no effect: trtllm-serve cannot choose a revision"
        yield unsupported_field(f"Model/{desired.model.name} spec.source", why)
    if desired.gpu is None and config.kv_cache_free_gpu_memory_fraction is not None:
        yield unsupported_field("spec.tensorRTLLMConfig.kvCacheFreeGpuMemoryFraction", "has no effect without a GPU")


def _sglang(config: SglangSpec) -> Iterator[Problem]:
    at = "spec.sglangConfig"
    if config.tool_call_parser in UNKNOWN_PARSERS:
        yield unsupported_field(f"{at}.toolCallParser", f"SGLang has no parser `{config.tool_call_parser}`")
    wish = config.speculative or SglangSpeculativeSpec()
    if wish.algorithm in UNKNOWN_ALGORITHMS and wish.enabled:
        yield unsupported_field(f"{at}.speculative.algorithm", f"SGLang has no `{wish.algorithm}`; use EAGLE or EAGLE3")
    if wish.enabled and not wish.algorithm:
        yield unsupported_field(
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
            yield unsupported_field(
                f"{at}.speculative.{name}",
                "has no effect while speculative decoding is off",
                "SpeculativeAcceptThresholdUnused",
            )
