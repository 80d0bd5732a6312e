"""InferenceService (`isvc`) of inference.llmkube.dev/v1alpha1. The fields are the same as in LLMKube's CRDs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, optional, required, rule
from program.dialects.llmkube.schema.engine import (
    CacheType,
    PersonaPlexSpec,
    RopeScalingSpec,
    SglangSpec,
    SpeculativeDecodingSpec,
    TensorRtLlmSpec,
    TgiSpec,
    VllmSpec,
)
from program.dialects.llmkube.schema.status import Condition as Condition
from program.dialects.llmkube.schema.status import Phase as Phase
from program.dialects.llmkube.schema.status import ServiceStatus as ServiceStatus
from program.dialects.pods.schema import (
    QUANTITY,
    EnvVar,
    LocalObjectReference,
    PodSecurityContext,
    Probe,
    SecurityContext,
    Toleration,
    TopologySpreadConstraint,
    Volume,
    VolumeMount,
)

Runtime = Literal[
    "llamacpp", "llamacpp-router", "personaplex", "vllm", "tgi", "sglang", "tensorrt-llm", "ollama", "omlx", "generic"
]
_DECIMAL = r"^[0-9]+(\.[0-9]+)?$"
Priority = Literal["critical", "high", "normal", "low", "batch"]


class Metric(CrdModel):
    name: str = required("Name of the metric: a pod metric, or `cpu` or `memory` for type Resource.")
    target_average_utilization: int | None = optional(
        "Target in percent of the request, for type Resource; 80 if absent."
    )
    target_average_value: str | None = optional("Target per pod, a quantity, for type Pods.")
    type: Literal["Pods", "Resource"] = required("Kind of the metric: Pods or Resource.")


class AutoscalingSpec(CrdModel):
    # The API server would also refuse the HorizontalPodAutoscaler; this rule names the field that the user wrote.
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!has(self.minReplicas) || self.maxReplicas < 1 || self.minReplicas <= self.maxReplicas",
                    "minReplicas must not be greater than maxReplicas",
                    field=".minReplicas",
                )
            ]
        }
    )
    max_replicas: int = required("Maximum number of replicas.", ge=1, le=100)
    metrics: list[Metric] = optional(
        "Metrics to scale on. The default is 2 requests in flight per pod, or the CPU.", []
    )
    min_replicas: int = optional("Minimum number of replicas; with 0 KEDA stops an idle service.", 1, ge=0, le=10)


class GatewayReference(CrdModel):
    name: str = required("Name of the Gateway.")
    namespace: str | None = optional("Namespace of the Gateway; the service's namespace when absent.")


class GatewaySpec(CrdModel):
    enabled: bool | None = optional("Route requests from the Gateway to this service.")
    gateway_ref: GatewayReference = required("The Gateway.")
    model_name: str | None = optional("Value of `model` in requests for this service; modelRef when absent.")


class EndpointSpec(CrdModel):
    gateway: GatewaySpec | None = optional("Access from outside the cluster, through an existing Gateway.")
    node_port: int | None = optional("The port of every node, for type NodePort.", ge=30000, le=32767)
    path: str = optional("HTTP path of the endpoint in the status.", "/v1/chat/completions")
    port: int = optional("Port of the Service, and of the container unless containerPort is set.", 8080, ge=1, le=65535)
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = optional("Type of the Service.", "ClusterIP")


class GpuSharingSpec(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!has(self.mode) || self.mode != 'partitioned' || (has(self.profile) && self.profile != '')",
                    "profile is required when mode is partitioned",
                ),
                rule(
                    "!has(self.profile) || self.profile == '' || (has(self.mode) && self.mode == 'partitioned')",
                    "profile is only valid when mode is partitioned",
                ),
                rule(
                    "!has(self.memoryLimitGiB) || (has(self.mode) && self.mode == 'shared')",
                    "memoryLimitGiB is only valid when mode is shared",
                ),
            ]
        }
    )
    memory_limit_gib: int | None = optional(
        "GPU memory, in GiB, that quotas count for this service; nothing enforces it.", name="memoryLimitGiB", ge=1
    )
    mode: Literal["exclusive", "shared", "partitioned"] = optional(
        "exclusive for a whole GPU, shared for time-sharing, partitioned for a part.", "exclusive"
    )
    profile: str | None = optional("Profile of the part, for example `1g.10gb` for NVIDIA's MIG.")


class ResourcesSpec(CrdModel):
    cpu: str | None = optional("CPU request, a quantity.")
    ephemeral_storage: str | None = optional("Disk of the node, request and limit, a quantity.", pattern=QUANTITY)
    gpu: int | None = optional("GPUs per pod; a count on the Model overrides it.", ge=0, le=8)
    gpu_memory: str | None = optional("GPU memory that quotas count for this service, a quantity; nothing enforces it.")
    gpu_sharing: GpuSharingSpec | None = optional("Sharing of the GPU with other pods; exclusive when absent.")
    host_memory: str | None = optional("Memory request for weights or KV cache in RAM; overrides `memory`.")
    memory: str | None = optional("Memory request, a quantity.")


class ProbeOverrides(CrdModel):
    liveness: Probe | None = optional("Replaces the liveness probe.")
    readiness: Probe | None = optional("Replaces the readiness probe.")
    startup: Probe | None = optional("Replaces the startup probe.")


class ModelCacheSpec(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!(has(self.persistence) && self.persistence == 'Ephemeral' && has(self.claimName))",
                    "claimName names a volume for the weights, but persistence Ephemeral keeps no weights; remove "
                    "one of the two",
                )
            ]
        }
    )
    claim_name: str | None = optional(
        "An existing PersistentVolumeClaim in the same namespace, instead of the shared cache.",
        min_length=1,
        max_length=253,
    )
    persistence: Literal["Cached", "Ephemeral"] | None = optional(
        "Cached keeps the weights across restarts; Ephemeral downloads them into each pod."
    )


class DisruptionSpec(CrdModel):
    protect_always: bool | None = optional("Prevent node autoscalers from evicting the pods.")
    protect_startup: bool = optional("Prevent node autoscalers from evicting a pod before it serves.", True)


class RolloutPolicySpec(CrdModel):
    force: bool | None = optional("Do not wait, even if waitForIdle is set.")
    idle_timeout_seconds: int = optional("Longest wait; 0 means 300.", 300, ge=0)
    wait_for_idle: bool | None = optional("Change pods only while no replica works on a request.")


class SloSpec(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!has(self.indicator) || self.indicator != 'latency' || has(self.latencyThreshold)",
                    "latencyThreshold is required when indicator is latency",
                )
            ]
        }
    )
    indicator: Literal["availability", "latency"] = optional("Indicator: availability or latency.", "availability")
    latency_threshold: str | None = optional("Maximum duration of a good request, in seconds.", pattern=_DECIMAL)
    name: str | None = optional("Name of the objective; `<service>-<indicator>` when absent.")
    objective: str = required(
        "Percent that must be good, from 50 to 99.999.",
        pattern=_DECIMAL,
        max_length=16,
        x_kubernetes_validations=[
            rule("double(self) >= 50.0 && double(self) <= 99.999", "objective must be from 50 to 99.999")
        ],
    )
    window: str = optional("Time window of the objective.", "28d", pattern=r"^[0-9]+[mhdw]$")


class ServiceSpec(CrdModel):
    """The wanted state of a service."""

    affinity: dict[str, Any] | None = optional("Affinity of the pods, as Kubernetes writes it.")
    args: list[str] = optional("The container's arguments, for runtime generic only.", [])
    autoscaling: AutoscalingSpec | None = optional(
        "HorizontalPodAutoscaler; `replicas` then has no effect beyond the start."
    )
    batch_size: int | None = optional("Prompt batch in tokens (--batch-size).", ge=1, le=16384)
    bind_address: str | None = optional("Address that the engine listens on; `::` (all addresses) when absent.")
    cache_type_custom_k: str | None = optional("A --cache-type-k that cacheTypeK does not list; overrides cacheTypeK.")
    cache_type_custom_v: str | None = optional("A --cache-type-v that cacheTypeV does not list; overrides cacheTypeV.")
    cache_type_k: CacheType | None = optional("Type of the KV cache's keys (--cache-type-k).")
    cache_type_v: CacheType | None = optional("Type of the KV cache's values (--cache-type-v).")
    command: list[str] = optional("Entrypoint of the container instead of the runtime's default.", [])
    container_port: int | None = optional("Port that the container listens on.", ge=1, le=65535)
    context_size: int | None = optional("Context in tokens (--ctx-size).", ge=128, le=2097152)
    disruption: DisruptionSpec | None = optional("Limits for evictions of pods.")
    endpoint: EndpointSpec | None = optional("Service, port and path for clients.")
    env: list[EnvVar] = optional("Environment variables of the container.", [])
    eviction_protection: bool | None = optional("Do not stop this service under memory pressure on a host.")
    extra_args: list[str] = optional("More arguments, after all others; a flag here overrides its field.", [])
    extra_volume_mounts: list[VolumeMount] = optional("Mounts of extraVolumes in the engine's container.", [])
    extra_volumes: list[Volume] = optional("More volumes of the pods, in Kubernetes' format.", [])
    flash_attention: bool | None = optional("Flash attention (--flash-attn), on a GPU.")
    hot_cache_max_size: str | None = optional("Size of oMLX's cache in RAM, for example 50GB.")
    image: str | None = optional("The container's image; required for runtime generic.")
    image_pull_secrets: list[LocalObjectReference] = optional("Secrets for private registries.", [])
    jinja: bool | None = optional("Render chat templates with Jinja (--jinja). Tool calls need it.")
    max_pod_lifetime_idle_timeout_seconds: Int64 | None = optional(
        "Maximum time to wait for an old pod to be idle; 0 does not wait, and without a value there is no limit.", ge=0
    )
    max_pod_lifetime_seconds: Int64 | None = optional("Replace pods that are older than this, one at a time.", ge=1)
    metadata_overrides: list[str] = optional("GGUF metadata as key=type:value (--override-kv each).", [])
    mode: Literal["chat", "embedding", "rerank"] | None = optional("Use of the model; chat when absent.")
    model_cache: ModelCacheSpec | None = optional("Storage of the weights for the pods.")
    model_ref: str = required("Name of the Model in the same namespace.")
    moe_cpu_layers: int | None = optional("MoE layers kept on the CPU (--n-cpu-moe).", name="moeCPULayers", ge=0)
    moe_cpu_offload: bool | None = optional("All MoE experts on the CPU (--cpu-moe).", name="moeCPUOffload")
    no_kv_offload: bool | None = optional("KV cache in RAM (--no-kv-offload).")
    no_warmup: bool | None = optional("Skip the warm-up run (--no-warmup).")
    node_selector: dict[str, str] = optional("Labels of the nodes to run on.", {})
    paged_ssd_cache_dir: str | None = optional("Directory of oMLX's cache on disk.", name="pagedSSDCacheDir")
    paged_ssd_cache_max_size: str | None = optional("Size of oMLX's cache on disk.", name="pagedSSDCacheMaxSize")
    parallel_slots: int | None = optional("Requests served at once (--parallel).", ge=1, le=64)
    persona_plex_config: PersonaPlexSpec | None = optional("Settings of runtime personaplex.")
    pod_annotations: dict[str, str] = optional("Annotations of the pods.", {})
    pod_labels: dict[str, str] = optional("Labels of the pods; labels of the controller override them.", {})
    pod_security_context: PodSecurityContext | None = optional("Security context of the pods.")
    priority: Priority = optional("Priority of the service when GPUs or memory are short.", "normal")
    priority_class_name: str | None = optional("Name of an existing PriorityClass; overrides `priority`.")
    probe_overrides: ProbeOverrides | None = optional("Probes that replace those of the runtime; each is optional.")
    reasoning_budget: int | None = optional(
        "Maximum number of reasoning tokens per answer; 0 turns reasoning off (--reasoning-budget).", ge=0
    )
    reasoning_budget_message: str | None = optional(
        "Text that is inserted when the budget is used up; needs reasoningBudget."
    )
    replicas: int = optional("Number of replicas; 0 stops the service.", 1, ge=0, le=10)
    resources: ResourcesSpec | None = optional("Resources of each pod.")
    revision_history_limit: int | None = optional("Old pod templates that are kept for a rollback.", ge=0)
    rollout_policy: RolloutPolicySpec | None = optional("Conditions for replacing serving pods in a rollout.")
    rope_scaling: RopeScalingSpec | None = optional(
        "Scaling of RoPE, for a longer context than in the model's training."
    )
    runtime: Runtime = optional("The inference engine; omlx runs on hosts only.", "llamacpp")
    runtime_class_name: str | None = optional("RuntimeClass of the pods, for example nvidia.")
    security_context: SecurityContext | None = optional("Security context of the container.")
    sglang_config: SglangSpec | None = optional("Settings of runtime sglang.")
    skip_model_init: bool | None = optional(
        "Do not download the model, because the image contains it or the engine downloads it."
    )
    slo: SloSpec | None = optional("Service level objective; Pyrra generates recording and alerting rules from it.")
    speculative_decoding: SpeculativeDecodingSpec | None = optional("Speculative decoding of llama.cpp.")
    suspend: bool = optional("Stop all replicas without changing `replicas`.", False)
    tensor_rt_llm_config: TensorRtLlmSpec | None = optional(
        "Settings of runtime tensorrt-llm.", name="tensorRTLLMConfig"
    )
    tensor_overrides: list[str] = optional("Tensor placement as name=device (--override-tensor each).", [])
    tgi_config: TgiSpec | None = optional("Settings of runtime tgi.")
    tolerations: list[Toleration] = optional("Taints that the pods tolerate.", [])
    topology_spread_constraints: list[TopologySpreadConstraint] = optional("Spread of the pods over nodes.", [])
    turbo_quant_bits: Literal[3, 6, 8] | None = optional("Bits of oMLX's quantized KV cache.")
    u_batch_size: int | None = optional("Micro batch in tokens (--ubatch-size).", ge=1)
    vllm_config: VllmSpec | None = optional("Settings of runtime vllm.")
