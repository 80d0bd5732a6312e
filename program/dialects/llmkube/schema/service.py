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
    type: Literal["Pods", "Resource"] = required("Where the metric comes from.")


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
    max_replicas: int = required("Most replicas.", ge=1, le=100)
    metrics: list[Metric] = optional("What to scale on; empty: requests in flight, 2 per pod, or the CPU.", [])
    min_replicas: int = optional("Fewest replicas; 0 lets KEDA stop an idle service.", 1, ge=0, le=10)


class GatewayReference(CrdModel):
    name: str = required("Name of the Gateway.")
    namespace: str | None = optional("Its namespace; the service's own when absent.")


class GatewaySpec(CrdModel):
    enabled: bool | None = optional("Route requests from the Gateway to this service.")
    gateway_ref: GatewayReference = required("The Gateway.")
    model_name: str | None = optional("The `model` of the requests that come here; modelRef when absent.")


class EndpointSpec(CrdModel):
    gateway: GatewaySpec | None = optional("A way in from outside the cluster, by a Gateway that is there already.")
    node_port: int | None = optional("The port of every node, for type NodePort.", ge=30000, le=32767)
    path: str = optional("HTTP path that clients are told.", "/v1/chat/completions")
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
        "The whole GPU, a shared one, or a part.", "exclusive"
    )
    profile: str | None = optional("Profile of the part, for example `1g.10gb` for NVIDIA's MIG.")


class ResourcesSpec(CrdModel):
    cpu: str | None = optional("CPU request, a quantity.")
    ephemeral_storage: str | None = optional("Disk of the node, request and limit, a quantity.", pattern=QUANTITY)
    gpu: int | None = optional("GPUs per pod; a count on the Model wins.", ge=0, le=8)
    gpu_memory: str | None = optional("GPU memory that quotas count for this service, a quantity; nothing enforces it.")
    gpu_sharing: GpuSharingSpec | None = optional("How a pod uses its GPU; alone when absent.")
    host_memory: str | None = optional("Memory request when weights or KV cache live in RAM; wins over `memory`.")
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
                    "claimName names a volume to keep weights on, and persistence Ephemeral keeps none; set one",
                )
            ]
        }
    )
    claim_name: str | None = optional(
        "A PersistentVolumeClaim of your own, in the same namespace, instead of the shared cache.",
        min_length=1,
        max_length=253,
    )
    persistence: Literal["Cached", "Ephemeral"] | None = optional(
        "Cached keeps weights over restarts; Ephemeral downloads them into each pod."
    )


class DisruptionSpec(CrdModel):
    protect_always: bool | None = optional("Keep node autoscalers off the pods for good.")
    protect_startup: bool = optional("Keep node autoscalers off a pod until it serves.", True)


class RolloutPolicySpec(CrdModel):
    force: bool | None = optional("Do not wait, whatever waitForIdle says.")
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
    indicator: Literal["availability", "latency"] = optional("What is measured.", "availability")
    latency_threshold: str | None = optional("Seconds that a good request stays below.", pattern=_DECIMAL)
    name: str | None = optional("Name of the objective; `<service>-<indicator>` when absent.")
    objective: str = required(
        "Percent that must be good, from 50 to 99.999.",
        pattern=_DECIMAL,
        max_length=16,
        x_kubernetes_validations=[
            rule("double(self) >= 50.0 && double(self) <= 99.999", "objective must be from 50 to 99.999")
        ],
    )
    window: str = optional("Time over which it is measured.", "28d", pattern=r"^[0-9]+[mhdw]$")


class ServiceSpec(CrdModel):
    """What the service should be."""

    affinity: dict[str, Any] | None = optional("Affinity of the pods, as Kubernetes writes it.")
    args: list[str] = optional("The container's arguments, for runtime generic only.", [])
    autoscaling: AutoscalingSpec | None = optional("A HorizontalPodAutoscaler; `replicas` is then only the start.")
    batch_size: int | None = optional("Prompt batch in tokens (--batch-size).", ge=1, le=16384)
    bind_address: str | None = optional("Address that the engine listens on; `::`, all, when absent.")
    cache_type_custom_k: str | None = optional("A --cache-type-k beyond the list; wins over cacheTypeK.")
    cache_type_custom_v: str | None = optional("A --cache-type-v beyond the list; wins over cacheTypeV.")
    cache_type_k: CacheType | None = optional("Type of the KV cache's keys (--cache-type-k).")
    cache_type_v: CacheType | None = optional("Type of the KV cache's values (--cache-type-v).")
    command: list[str] = optional("The container's entrypoint instead of the runtime's own.", [])
    container_port: int | None = optional("Port that the container listens on.", ge=1, le=65535)
    context_size: int | None = optional("Context in tokens (--ctx-size).", ge=128, le=2097152)
    disruption: DisruptionSpec | None = optional("What may take pods away.")
    endpoint: EndpointSpec | None = optional("How clients reach the service.")
    env: list[EnvVar] = optional("Environment variables of the container.", [])
    eviction_protection: bool | None = optional("Never evict this service when a host runs short of memory.")
    extra_args: list[str] = optional("More arguments, after all others; a flag here wins over its field.", [])
    extra_volume_mounts: list[VolumeMount] = optional("Mounts of extraVolumes in the engine's container.", [])
    extra_volumes: list[Volume] = optional("More volumes of the pods, as Kubernetes writes them.", [])
    flash_attention: bool | None = optional("Flash attention (--flash-attn), on a GPU.")
    hot_cache_max_size: str | None = optional("Size of oMLX's cache in RAM, for example 50GB.")
    image: str | None = optional("The container's image; required for runtime generic.")
    image_pull_secrets: list[LocalObjectReference] = optional("Secrets for private registries.", [])
    jinja: bool | None = optional("Render chat templates with Jinja, as tool calls need (--jinja).")
    max_pod_lifetime_idle_timeout_seconds: Int64 | None = optional(
        "Longest wait for an old pod to be idle; 0 for none, no end when absent.", ge=0
    )
    max_pod_lifetime_seconds: Int64 | None = optional("Replace pods that are older than this, one at a time.", ge=1)
    metadata_overrides: list[str] = optional("GGUF metadata as key=type:value (--override-kv each).", [])
    mode: Literal["chat", "embedding", "rerank"] | None = optional("What the model is for; chat when absent.")
    model_cache: ModelCacheSpec | None = optional("Where pods keep the weights.")
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
    pod_labels: dict[str, str] = optional("Labels of the pods; the controller's own win.", {})
    pod_security_context: PodSecurityContext | None = optional("Security context of the pods.")
    priority: Priority = optional("Who keeps GPUs and memory when they are short.", "normal")
    priority_class_name: str | None = optional("A PriorityClass of your own; wins over `priority`.")
    probe_overrides: ProbeOverrides | None = optional("Probes instead of the runtime's own, one by one.")
    reasoning_budget: int | None = optional("Most reasoning tokens per answer; 0 for none (--reasoning-budget).", ge=0)
    reasoning_budget_message: str | None = optional("Text put in when the budget is spent; needs reasoningBudget.")
    replicas: int = optional("Number of replicas; 0 stops the service.", 1, ge=0, le=10)
    resources: ResourcesSpec | None = optional("What each pod asks for.")
    revision_history_limit: int | None = optional("Old pod templates that are kept for a rollback.", ge=0)
    rollout_policy: RolloutPolicySpec | None = optional("How a change replaces pods that serve.")
    rope_scaling: RopeScalingSpec | None = optional("Context beyond what the model was trained with.")
    runtime: Runtime = optional("The inference engine; omlx runs on hosts only.", "llamacpp")
    runtime_class_name: str | None = optional("RuntimeClass of the pods, for example nvidia.")
    security_context: SecurityContext | None = optional("Security context of the container.")
    sglang_config: SglangSpec | None = optional("Settings of runtime sglang.")
    skip_model_init: bool | None = optional("Do not download the model; the image or the engine brings it.")
    slo: SloSpec | None = optional("A service level objective, which Pyrra turns into rules.")
    speculative_decoding: SpeculativeDecodingSpec | None = optional("Speculative decoding of llama.cpp.")
    suspend: bool = optional("Run nothing, and keep `replicas` for later.", False)
    tensor_rt_llm_config: TensorRtLlmSpec | None = optional(
        "Settings of runtime tensorrt-llm.", name="tensorRTLLMConfig"
    )
    tensor_overrides: list[str] = optional("Tensor placement as name=device (--override-tensor each).", [])
    tgi_config: TgiSpec | None = optional("Settings of runtime tgi.")
    tolerations: list[Toleration] = optional("Taints that the pods tolerate.", [])
    topology_spread_constraints: list[TopologySpreadConstraint] = optional("How the pods spread over nodes.", [])
    turbo_quant_bits: Literal[3, 6, 8] | None = optional("Bits of oMLX's quantized KV cache.")
    u_batch_size: int | None = optional("Micro batch in tokens (--ubatch-size).", ge=1)
    vllm_config: VllmSpec | None = optional("Settings of runtime vllm.")
