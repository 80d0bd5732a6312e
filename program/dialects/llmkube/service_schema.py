"""InferenceService (`isvc`) of inference.llmkube.dev/v1alpha1, field by field as LLMKube publishes it.

`parse.py` reads objects through `ServiceSpec`; `crds.py` generates the CRD from both classes below.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crd_schema import CrdModel, optional, required
from program.dialects.llmkube.pod_schema import (
    EnvVar,
    KeySelector,
    LocalObjectReference,
    PodSecurityContext,
    Probe,
    SecurityContext,
    Toleration,
)
from program.dialects.llmkube.service_status_schema import Condition as Condition
from program.dialects.llmkube.service_status_schema import Phase as Phase
from program.dialects.llmkube.service_status_schema import ServiceStatus as ServiceStatus

CacheType = Literal["f16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]
Runtime = Literal["llamacpp", "personaplex", "vllm", "tgi", "generic"]
Priority = Literal["critical", "high", "normal", "low", "batch"]


class Metric(CrdModel):
    name: str = required("Name of the metric: a pod metric, or `cpu` or `memory` for type Resource.")
    target_average_utilization: int | None = optional("Target in percent of the request, for type Resource.")
    target_average_value: str | None = optional("Target per pod, a quantity, for type Pods.")
    type: Literal["Pods", "Resource"] = required("Where the metric comes from.")


class AutoscalingSpec(CrdModel):
    # The HorizontalPodAutoscaler would be refused anyway; this says so at the field that the user wrote.
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.minReplicas) || self.maxReplicas < 1 || self.minReplicas <= self.maxReplicas",
                    "message": "minReplicas must not be greater than maxReplicas",
                    "fieldPath": ".minReplicas",
                }
            ]
        }
    )
    max_replicas: int = required("Most replicas.", ge=1, le=100)
    metrics: list[Metric] = optional("What to scale on; empty means requests in flight, 2 per pod.", [])
    min_replicas: int = optional("Fewest replicas.", 1, ge=1, le=10)


class EndpointSpec(CrdModel):
    path: str = optional("HTTP path that clients are told.", "/v1/chat/completions")
    port: int = optional("Port of the Service, and of the container unless containerPort is set.", 8080, ge=1, le=65535)
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = optional("Type of the Service.", "ClusterIP")


class ResourcesSpec(CrdModel):
    cpu: str | None = optional("CPU request, a quantity.")
    gpu: int | None = optional("GPUs per pod; a count on the Model wins.", ge=0, le=8)
    gpu_memory: str | None = optional("GPU memory that the service expects, a quantity; nothing enforces it.")
    host_memory: str | None = optional("Memory request when weights or KV cache live in RAM; wins over `memory`.")
    memory: str | None = optional("Memory request, a quantity.")


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
    kv_cache_custom_dtype: str | None = optional("A --kv-cache-dtype beyond the list; wins over kvCacheDtype.")
    kv_cache_dtype: Literal["auto", "fp8_e5m2", "fp8_e4m3"] = optional("Type of KV cache elements.", "auto")
    max_model_len: int | None = optional("Longest context (--max-model-len).")
    max_num_batched_tokens: int | None = optional("Tokens per scheduler step (--max-num-batched-tokens).", ge=512)
    quantization: Literal["awq", "gptq", "squeezellm", "fp8", "nvfp4", "compressed-tensors"] | None = optional(
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


class PersonaPlexSpec(CrdModel):
    cpu_offload: bool | None = optional("Offload weights to RAM; the image needs accelerate.")
    hf_token_secret_ref: KeySelector | None = optional("Secret key with the Hugging Face token.")
    quantize_4bit: bool | None = optional("NF4 quantization; the image needs bitsandbytes.", name="quantize4Bit")


class ProbeOverrides(CrdModel):
    liveness: Probe | None = optional("Replaces the liveness probe.")
    readiness: Probe | None = optional("Replaces the readiness probe.")
    startup: Probe | None = optional("Replaces the startup probe.")


class ServiceSpec(CrdModel):
    """What the service should be."""

    args: list[str] = optional("The container's arguments, for runtime generic only.", [])
    autoscaling: AutoscalingSpec | None = optional("A HorizontalPodAutoscaler; `replicas` is then only the start.")
    batch_size: int | None = optional("Prompt batch in tokens (--batch-size).", ge=1, le=16384)
    cache_type_custom_k: str | None = optional("A --cache-type-k beyond the list; wins over cacheTypeK.")
    cache_type_custom_v: str | None = optional("A --cache-type-v beyond the list; wins over cacheTypeV.")
    cache_type_k: CacheType | None = optional("Type of the KV cache's keys (--cache-type-k).")
    cache_type_v: CacheType | None = optional("Type of the KV cache's values (--cache-type-v).")
    command: list[str] = optional("The container's entrypoint instead of the runtime's own.", [])
    container_port: int | None = optional("Port that the container listens on.", ge=1, le=65535)
    context_size: int | None = optional("Context in tokens (--ctx-size).", ge=128, le=2097152)
    endpoint: EndpointSpec | None = optional("How clients reach the service.")
    env: list[EnvVar] = optional("Environment variables of the container.", [])
    eviction_protection: bool | None = optional("Never evict this service when a host runs short of memory.")
    extra_args: list[str] = optional("More arguments, after all others; a flag here wins over its field.", [])
    flash_attention: bool | None = optional("Flash attention (--flash-attn), on a GPU.")
    image: str | None = optional("The container's image; required for runtime generic.")
    image_pull_secrets: list[LocalObjectReference] = optional("Secrets for private registries.", [])
    jinja: bool | None = optional("Render chat templates with Jinja, as tool calls need (--jinja).")
    metadata_overrides: list[str] = optional("GGUF metadata as key=type:value (--override-kv each).", [])
    model_ref: str = required("Name of the Model in the same namespace.")
    moe_cpu_layers: int | None = optional("MoE layers kept on the CPU (--n-cpu-moe).", name="moeCPULayers", ge=0)
    moe_cpu_offload: bool | None = optional("All MoE experts on the CPU (--cpu-moe).", name="moeCPUOffload")
    no_kv_offload: bool | None = optional("KV cache in RAM (--no-kv-offload).")
    no_warmup: bool | None = optional("Skip the warm-up run (--no-warmup).")
    node_selector: dict[str, str] = optional("Labels of the nodes to run on.", {})
    parallel_slots: int | None = optional("Requests served at once (--parallel).", ge=1, le=64)
    persona_plex_config: PersonaPlexSpec | None = optional("Settings of runtime personaplex.")
    pod_annotations: dict[str, str] = optional("Annotations of the pods.", {})
    pod_labels: dict[str, str] = optional("Labels of the pods; the controller's own win.", {})
    pod_security_context: PodSecurityContext | None = optional("Security context of the pods.")
    priority: Priority = optional("Who keeps GPUs and memory when they are short.", "normal")
    priority_class_name: str | None = optional("A PriorityClass of your own; wins over `priority`.")
    probe_overrides: ProbeOverrides | None = optional("Probes instead of the runtime's own, one by one.")
    reasoning_budget: int | None = optional("Most reasoning tokens per answer; 0 for none (--reasoning-budget).", ge=0)
    reasoning_budget_message: str | None = optional("Text put in when the budget is spent; needs reasoningBudget.")
    replicas: int = optional("Number of replicas; 0 stops the service.", 1, ge=0, le=10)
    resources: ResourcesSpec | None = optional("What each pod asks for.")
    rope_scaling: RopeScalingSpec | None = optional("Context beyond what the model was trained with.")
    runtime: Runtime = optional("The inference engine.", "llamacpp")
    runtime_class_name: str | None = optional("RuntimeClass of the pods, for example nvidia.")
    security_context: SecurityContext | None = optional("Security context of the container.")
    skip_model_init: bool | None = optional("Do not download the model; the image or the engine brings it.")
    tensor_overrides: list[str] = optional("Tensor placement as name=device (--override-tensor each).", [])
    tgi_config: TgiSpec | None = optional("Settings of runtime tgi.")
    tolerations: list[Toleration] = optional("Taints that the pods tolerate.", [])
    u_batch_size: int | None = optional("Micro batch in tokens (--ubatch-size).", ge=1)
    vllm_config: VllmSpec | None = optional("Settings of runtime vllm.")
