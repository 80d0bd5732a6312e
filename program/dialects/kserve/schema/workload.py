"""The pods of an LLMInferenceService: replicas, parallelism, rollout. The fields are those of KServe's CRDs.

The fields are at the top of the spec for serving pods, and again under `prefill`. The rules are those of KServe's
webhooks; the bounds let the API server estimate the cost of a rule. Pod specs are not checked here, because configs
have template expressions in them; `validation` checks them after the merge.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, StringConstraints, WithJsonSchema

from kubeapi.json_types import Json
from program.dialects.crds.schema import CrdModel, optional, required, rule
from program.dialects.pods.schema import QUANTITY

NAME_LENGTH = 253
Quantity = int | Annotated[str, StringConstraints(pattern=QUANTITY)]
_PERCENTAGE = r"^(100|[1-9]?[0-9])%$"
Share = Annotated[
    int | Annotated[str, StringConstraints(pattern=_PERCENTAGE)],
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": _PERCENTAGE}),
]
"""A number, or a percentage of the replicas."""
PodSpec = dict[str, Any]
"""A PodSpec of core/v1. In configs its strings may contain template expressions."""


def with_rules(*rules: Json) -> ConfigDict:
    """Return the config of a class with these CEL rules. A subclass with rules repeats those of its parents."""
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": list(rules)})


class Parallelism(CrdModel):
    """The distribution of a model over devices."""

    model_config = with_rules(
        rule(
            "!(has(self.pipeline) && (has(self.data) || has(self.dataLocal)))",
            "set pipeline, or data and dataLocal, and not both",
        ),
        rule("!has(self.data) || has(self.dataLocal)", "dataLocal is required with data", field=".dataLocal"),
        rule("!has(self.dataLocal) || has(self.data)", "data is required with dataLocal", field=".data"),
        rule(
            "!has(self.data) || !has(self.dataLocal) || self.dataLocal < 1 || self.data % self.dataLocal == 0",
            "data must be a multiple of dataLocal",
            field=".data",
        ),
    )
    tensor: int | None = optional("Number of devices that each layer is split over.", ge=1)
    pipeline: int | None = optional("Number of pods that the layers are split over.", ge=1)
    data: int | None = optional("Number of copies of the model in one group.", ge=1)
    data_local: int | None = optional("Number of copies of the model in one pod.", ge=1)
    data_rpc_port: int | None = optional(
        "Port on which the copies exchange messages.", name="dataRPCPort", ge=1, le=65535
    )
    expert: bool | None = optional("Spread the experts over the devices.")


_SHARE = [rule("type(self) != int || self >= 0", "must not be negative")]


class RolloutStrategy(CrdModel):
    """Limits for the replacement of pods in a rollout."""

    model_config = with_rules(
        rule(
            "!(has(self.maxUnavailable) && has(self.maxSurge)"
            " && (type(self.maxUnavailable) == int ? self.maxUnavailable == 0 : self.maxUnavailable == '0%')"
            " && (type(self.maxSurge) == int ? self.maxSurge == 0 : self.maxSurge == '0%'))",
            "maxUnavailable and maxSurge must not both be zero, because then no pod could be replaced",
        )
    )
    max_unavailable: Share | None = optional(
        "Maximum number or percentage of replicas that may be unavailable during a rollout.",
        x_kubernetes_validations=_SHARE,
    )
    max_surge: Share | None = optional(
        "Maximum number or percentage of replicas above the wanted number during a rollout.",
        x_kubernetes_validations=_SHARE,
    )


class EmptyDirTier(CrdModel):
    size: Quantity = required("Maximum size, a quantity.")


class PvcTierRef(CrdModel):
    name: str = required("Name of a PersistentVolumeClaim in the same namespace.", min_length=1, max_length=NAME_LENGTH)
    path: str | None = optional("Directory in the claim.", max_length=1024)


class PvcTier(CrdModel):
    model_config = with_rules(rule("has(self.spec) != has(self.ref)", "set spec or ref, and not both"))
    spec: dict[str, Any] | None = optional("Spec of a claim that is created for each pod, in the format of core/v1.")
    ref: PvcTierRef | None = optional("An existing claim.")


class FileSystemTier(CrdModel):
    model_config = with_rules(rule("has(self.emptyDir) != has(self.pvc)", "set emptyDir or pvc, and not both"))
    empty_dir: EmptyDirTier | None = optional("Directory on the disk of the node.")
    pvc: PvcTier | None = optional("A volume.")


class SecondaryTier(CrdModel):
    file_system: FileSystemTier = required("Files for entries that do not fit in memory.")


class KvCacheOffloading(CrdModel):
    """Where the part of the KV cache is stored that does not fit on the device."""

    model_config = with_rules(
        rule(
            "!has(self.secondary) || size(self.secondary) == 0 || has(self.cpu)",
            "cpu is required with secondary tiers",
            field=".cpu",
        )
    )
    cpu: Quantity | None = optional("Memory of the pod for offloaded entries, a quantity.")
    eviction_policy: Literal["lru", "arc"] = optional(
        "Policy that selects the entries to drop when memory is full.", "lru"
    )
    secondary: list[SecondaryTier] = optional("Slower tiers, in order.", [], max_length=16)


class HpaActuator(CrdModel):
    behavior: dict[str, Any] | None = optional("Speed of scaling, in the format of autoscaling/v2.")


class HorizontalPodAutoscalerConfig(CrdModel):
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    name: str | None = optional("Name of the HPA; must not be set.", max_length=NAME_LENGTH)
    behavior: dict[str, Any] | None = optional("Speed of scaling, in the format of autoscaling/v2.")


class KedaAdvanced(CrdModel):
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    restore_to_original_replica_count: bool | None = optional(
        "True: when the ScaledObject is deleted, KEDA restores the earlier number of replicas."
    )
    horizontal_pod_autoscaler_config: HorizontalPodAutoscalerConfig | None = optional("The HPA that KEDA makes.")
    scaling_modifiers: dict[str, Any] | None = optional("A formula over several triggers.")


_HPA_NAME = rule(
    "!has(self.advanced) || !has(self.advanced.horizontalPodAutoscalerConfig)"
    " || !has(self.advanced.horizontalPodAutoscalerConfig.name)"
    " || self.advanced.horizontalPodAutoscalerConfig.name == ''",
    "advanced.horizontalPodAutoscalerConfig.name must not be set",
)


class KedaSettings(CrdModel):
    """KEDA's settings, which do not depend on the source of the number of replicas."""

    model_config = with_rules(_HPA_NAME)
    polling_interval: int | None = optional("Seconds between two checks of the triggers.", ge=0)
    cooldown_period: int | None = optional("Seconds without use before scaling to idleReplicaCount.", ge=0)
    initial_cooldown_period: int | None = optional(
        "Seconds after the creation of the ScaledObject during which KEDA does not scale to idleReplicaCount.", ge=0
    )
    idle_replica_count: int | None = optional("Replicas while no trigger is active; fewer than minReplicas.", ge=0)
    fallback: dict[str, Any] | None = optional("Behaviour while triggers fail, in KEDA's format.")
    advanced: KedaAdvanced | None = optional("Advanced settings, in KEDA's format.")


class KedaScaling(KedaSettings):
    model_config = with_rules(_HPA_NAME)
    triggers: list[dict[str, Any]] = required("Triggers to scale on, in KEDA's format.", min_length=1, max_length=100)


class WvaScaling(CrdModel):
    """The workload variant autoscaler decides on the number, and an HPA or KEDA sets it."""

    model_config = with_rules(
        rule("has(self.hpa) != has(self.keda)", "set hpa or keda, and not both"),
        rule(
            "!has(self.keda) || !has(self.keda.advanced) || !has(self.keda.advanced.scalingModifiers)",
            "keda.advanced.scalingModifiers must not be set, because the workload variant autoscaler sets the metric",
        ),
    )
    variant_cost: str = optional("Cost of a replica in relation to other variants.", "10.0", pattern=r"^\d+(\.\d+)?$")
    hpa: HpaActuator | None = optional("Scale by a HorizontalPodAutoscaler.")
    keda: KedaSettings | None = optional("Scale by KEDA's ScaledObject.")


class Scaling(CrdModel):
    """Autoscaler for the number of replicas."""

    model_config = with_rules(
        rule("has(self.wva) != has(self.keda)", "set wva or keda, and not both"),
        rule(
            "(has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",
            "minReplicas must not be greater than maxReplicas",
        ),
        rule(
            "!has(self.keda) || !has(self.keda.idleReplicaCount)"
            " || self.keda.idleReplicaCount < (has(self.minReplicas) ? self.minReplicas : 1)",
            "idleReplicaCount must be less than minReplicas",
        ),
        rule(
            "!has(self.wva) || !has(self.wva.keda) || !has(self.wva.keda.idleReplicaCount)"
            " || self.wva.keda.idleReplicaCount < (has(self.minReplicas) ? self.minReplicas : 1)",
            "idleReplicaCount must be less than minReplicas",
        ),
    )
    min_replicas: int = optional("Minimum number of replicas.", 1, ge=1)
    max_replicas: int = required("Maximum number of replicas.", ge=1)
    wva: WvaScaling | None = optional("Scale by the workload variant autoscaler.")
    keda: KedaScaling | None = optional("Scale by KEDA's triggers.")


def _group_size(of: str) -> str:
    """Return the CEL expression of the number of pods in one group."""
    parallelism = f"{of}.parallelism"
    return (
        f"(!has({parallelism}) ? 1"
        f" : has({parallelism}.data) && has({parallelism}.dataLocal) && {parallelism}.dataLocal > 0"
        f" ? {parallelism}.data / {parallelism}.dataLocal"
        f" : has({parallelism}.pipeline) ? {parallelism}.pipeline : 1)"
    )


WORKLOAD_RULES = (
    rule(
        "!has(self.replicas) || !has(self.scaling)",
        "set replicas (a fixed number) or scaling (an autoscaler), and not both",
    ),
    rule(
        "!has(self.worker) || has(self.parallelism) && (has(self.parallelism.pipeline) || has(self.parallelism.data)"
        " || has(self.parallelism.dataLocal))",
        "worker needs parallelism.pipeline, or parallelism.data and dataLocal",
        field=".worker",
    ),
    rule(
        f"!has(self.worker) || !has(oldSelf.worker) || {_group_size('self')} == {_group_size('oldSelf')}",
        "the number of pods in a group cannot change; create another service",
        field=".parallelism",
    ),
    rule(
        "!has(self.worker) || !has(self.rolloutStrategy) || !has(self.rolloutStrategy.maxUnavailable)"
        " || !(type(self.rolloutStrategy.maxUnavailable) == int ? self.rolloutStrategy.maxUnavailable == 0"
        " : self.rolloutStrategy.maxUnavailable == '0%') || has(self.rolloutStrategy.maxSurge)",
        "groups of pods with maxUnavailable 0 need maxSurge",
        field=".rolloutStrategy.maxSurge",
    ),
)


class WorkloadSpec(CrdModel):
    """Identical pods with one task."""

    model_config = with_rules(*WORKLOAD_RULES)
    replicas: int | None = optional(
        "Number of pods, or of groups of pods; when absent, the present number stays.", ge=0
    )
    scaling: Scaling | None = optional("Autoscaler for the number of replicas.")
    parallelism: Parallelism | None = optional("Distribution of the model over devices.")
    labels: dict[str, str] | None = optional("Labels of the pods.")
    annotations: dict[str, str] | None = optional("Annotations of the pods.")
    template: PodSpec | None = optional(
        "PodSpec of the pods, or of the first pod of each group; overrides the PodSpec of the presets."
    )
    worker: PodSpec | None = optional("PodSpec of the other pods of each group. If it is set, pods run in groups.")
    kv_cache_offloading: KvCacheOffloading | None = optional(
        "Storage for entries of the KV cache that do not fit on the device."
    )
    rollout_strategy: RolloutStrategy | None = optional("Limits for the replacement of pods in a rollout.")
