"""Name the fields of an InferenceService that its path cannot honour, so that none is dropped in silence. Pure.

`parse` offers it beside `parse_service`; the answers become condition SpecHonoured=False. A field counts when it asks
for something: an absent one, an empty one and a switch that is off ask for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from program.desired.base import JsonObject
from program.desired.facts import Problem
from program.desired.model import SourceKind
from program.desired.service import DesiredService
from program.dialects.llmkube.engine_schema import SpeculativeSpec, VllmSpec
from program.dialects.llmkube.service_schema import ResourcesSpec, ServiceSpec
from program.dialects.reading import read, unknown_fields, without_nulls

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
            "tensor_overrides",
            "u_batch_size",
        ),
        _LLAMACPP,
    ),
    "parallel_slots": frozenset({"llamacpp", "vllm"}),
    "extra_args": frozenset({"llamacpp", "vllm", "tgi"}),
    "args": frozenset({"generic"}),
    "vllm_config": frozenset({"vllm"}),
    "tgi_config": frozenset({"tgi"}),
    "persona_plex_config": frozenset({"personaplex"}),
}
_POD_ONLY = (
    "autoscaling",
    "container_port",
    "image",
    "image_pull_secrets",
    "node_selector",
    "pod_annotations",
    "pod_labels",
    "pod_security_context",
    "priority_class_name",
    "probe_overrides",
    "runtime_class_name",
    "security_context",
    "skip_model_init",
    "tolerations",
)


def unhonoured(cr: JsonObject, desired: DesiredService) -> tuple[Problem, ...]:
    """List what the service asks for and will not get, in the order of the schema. None of it is fatal."""
    spec = read(ServiceSpec, without_nulls(cr.get("spec")), field="spec")
    return (
        *_of_runtime(spec),
        *(_of_host(spec, desired) if desired.host_placement else _of_pods(spec, desired)),
        *_of_gpu(spec, desired),
        *_of_model(desired),
        *_unknown(spec),
    )


def _problem(field: str, message: str, reason: str = "NotHonoured") -> Problem:
    return Problem(reason=reason, message=message, field=field, terminal=True)


def _wire_name(field: str) -> str:
    return f"spec.{ServiceSpec.model_fields[field].alias}"


def _of_runtime(spec: ServiceSpec) -> Iterator[Problem]:
    for field, runtimes in _RUNTIMES_OF.items():
        value = getattr(spec, field)
        asked = value is not None and value is not False and value != []
        if asked and spec.runtime not in runtimes:
            yield _problem(_wire_name(field), f"has no effect with runtime {spec.runtime}")
    if spec.runtime == "llamacpp" and spec.reasoning_budget_message and spec.reasoning_budget is None:
        yield _problem("spec.reasoningBudgetMessage", "has no effect without reasoningBudget")
    speculative = (spec.vllm_config or VllmSpec()).speculative or SpeculativeSpec()
    if spec.runtime == "vllm" and speculative.enabled and not speculative.model:
        yield _problem(
            "spec.vllmConfig.speculative.model",
            "is empty, so speculative decoding stays off; name the draft Model",
            "SpeculativeMissingModel",
        )


def _of_host(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    for field in _POD_ONLY:
        if getattr(spec, field):
            yield _problem(_wire_name(field), "has no effect on a host, where the service runs as a process")
    if spec.command and spec.runtime != "generic":
        yield _problem("spec.command", f"has no effect on a host with runtime {spec.runtime}")
    for index, variable in enumerate(spec.env):
        if variable.value_from is not None:
            yield _problem(f"spec.env[{index}].valueFrom", "cannot be resolved on a host; give a value")
    if spec.replicas > 1:
        yield _problem("spec.replicas", f"a host runs one process per service, not {spec.replicas}")
    resources = spec.resources or ResourcesSpec()
    if resources.cpu:
        yield _problem("spec.resources.cpu", "has no effect on a host")
    if spec.flash_attention and spec.runtime == "llamacpp" and desired.model.accelerator == "cpu":
        yield _problem("spec.flashAttention", "has no effect without a GPU")


def _of_pods(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    if spec.eviction_protection:
        yield _problem("spec.evictionProtection", "protects processes on hosts; pods are kept by spec.priority")
    if (spec.resources or ResourcesSpec()).gpu_memory:
        yield _problem("spec.resources.gpuMemory", "has no effect: Kubernetes counts GPUs, not their memory")
    if spec.runtime == "llamacpp" and spec.flash_attention is not None:
        if spec.flash_attention and desired.gpu is None:
            yield _problem("spec.flashAttention", "has no effect without a GPU")
        if not spec.flash_attention and desired.gpu is not None:
            yield _problem(
                "spec.flashAttention", "false leaves the choice to llama.cpp; set extraArgs --flash-attn off"
            )


def _of_gpu(spec: ServiceSpec, desired: DesiredService) -> Iterator[Problem]:
    asked = (spec.resources or ResourcesSpec()).gpu
    count = desired.gpu.count if desired.gpu else 0
    if asked is not None and asked != count:
        yield _problem("spec.resources.gpu", f"asks for {asked}, and Model `{desired.model.name}` decides on {count}")
    if spec.runtime != "vllm" or desired.gpu is not None:
        return
    config = spec.vllm_config or VllmSpec()
    if config.cpu_offload_gb:
        yield _problem("spec.vllmConfig.cpuOffloadGB", "has no effect without a GPU")
    if config.gpu_memory_utilization is not None:
        yield _problem("spec.vllmConfig.gpuMemoryUtilization", "has no effect without a GPU")


def _of_model(desired: DesiredService) -> Iterator[Problem]:
    model = desired.model
    at = f"Model/{model.name} spec"
    if desired.host_placement is None:
        if model.memory_budget_bytes is not None:
            yield _problem(f"{at}.hardware.memoryBudget", "bounds processes on hosts; pods take spec.resources")
        if model.memory_fraction is not None:
            yield _problem(f"{at}.hardware.memoryFraction", "bounds processes on hosts; pods take spec.resources")
    if model.gpu is not None and model.gpu.layer_split and not (desired.gpu and desired.gpu.tensor_split):
        yield _problem(f"{at}.hardware.gpu.sharding.layerSplit", "has no effect unless layers are split over GPUs")
    if model.source.kind is SourceKind.REPOSITORY and model.source.revision and desired.engine.kind == "llamacpp":
        yield _problem(f"{at}.source", f"llama-server takes no revision; `{model.source.revision}` is ignored")


def _unknown(spec: ServiceSpec) -> Iterator[Problem]:
    for path, _ in unknown_fields(spec, field="spec"):
        yield _problem(path, "is not known to this version", "UnknownField")
