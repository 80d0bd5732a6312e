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
    """How a model is spread over devices."""

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
    tensor: int | None = optional("Devices that share each layer.", ge=1)
    pipeline: int | None = optional("Pods that share the layers.", ge=1)
    data: int | None = optional("Copies of the model in one group.", ge=1)
    data_local: int | None = optional("Copies of the model in one pod.", ge=1)
    data_rpc_port: int | None = optional("Port by which copies find each other.", name="dataRPCPort", ge=1, le=65535)
    expert: bool | None = optional("Experts are spread over the devices.")


_SHARE = [rule("type(self) != int || self >= 0", "must not be negative")]


class RolloutStrategy(CrdModel):
    """How pods are replaced."""

    model_config = with_rules(
        rule(
            "!(has(self.maxUnavailable) && has(self.maxSurge)"
            " && (type(self.maxUnavailable) == int ? self.maxUnavailable == 0 : self.maxUnavailable == '0%')"
            " && (type(self.maxSurge) == int ? self.maxSurge == 0 : self.maxSurge == '0%'))",
            "maxUnavailable and maxSurge must not both be zero: no pod could ever be replaced",
        )
    )
    max_unavailable: Share | None = optional(
        "Most replicas that may be missing, a number or a percentage.",
        x_kubernetes_validations=_SHARE,
    )
    max_surge: Share | None = optional(
        "Most replicas beyond those wanted, a number or a percentage.",
        x_kubernetes_validations=_SHARE,
    )


class EmptyDirTier(CrdModel):
    size: Quantity = required("Most that it may hold, a quantity.")


class PvcTierRef(CrdModel):
    name: str = required("Name of a PersistentVolumeClaim in the same namespace.", min_length=1, max_length=NAME_LENGTH)
    path: str | None = optional("Directory in it.", max_length=1024)


class PvcTier(CrdModel):
    model_config = with_rules(rule("has(self.spec) != has(self.ref)", "set spec or ref, and not both"))
    spec: dict[str, Any] | None = optional("A claim that is made for each pod, as core/v1 writes its spec.")
    ref: PvcTierRef | None = optional("A claim that is there already.")


class FileSystemTier(CrdModel):
    model_config = with_rules(rule("has(self.emptyDir) != has(self.pvc)", "set emptyDir or pvc, and not both"))
    empty_dir: EmptyDirTier | None = optional("Disk of the node.")
    pvc: PvcTier | None = optional("A volume.")


class SecondaryTier(CrdModel):
    file_system: FileSystemTier = required("Files that hold what does not fit in memory.")


class KvCacheOffloading(CrdModel):
    """Where the part of the KV cache is stored that does not fit on the device."""

    model_config = with_rules(
        rule(
            "!has(self.secondary) || size(self.secondary) == 0 || has(self.cpu)",
            "cpu is required with secondary tiers",
            field=".cpu",
        )
    )
    cpu: Quantity | None = optional("Memory of the pod that holds it, a quantity.")
    eviction_policy: Literal["lru", "arc"] = optional("What goes first when it is full.", "lru")
    secondary: list[SecondaryTier] = optional("Slower tiers behind it, in order.", [], max_length=16)


class HpaActuator(CrdModel):
    behavior: dict[str, Any] | None = optional("How fast it scales, as autoscaling/v2 writes it.")


class HorizontalPodAutoscalerConfig(CrdModel):
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    name: str | None = optional("Its name; must not be set.", max_length=NAME_LENGTH)
    behavior: dict[str, Any] | None = optional("How fast it scales, as autoscaling/v2 writes it.")


class KedaAdvanced(CrdModel):
    model_config = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    restore_to_original_replica_count: bool | None = optional("Deleting it restores the number of replicas.")
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
    polling_interval: int | None = optional("Seconds between two looks at the triggers.", ge=0)
    cooldown_period: int | None = optional("Seconds without use before scaling to idleReplicaCount.", ge=0)
    initial_cooldown_period: int | None = optional("The same after the start.", ge=0)
    idle_replica_count: int | None = optional("Replicas while no trigger is active; fewer than minReplicas.", ge=0)
    fallback: dict[str, Any] | None = optional("What to do while triggers fail, as KEDA writes it.")
    advanced: KedaAdvanced | None = optional("More, as KEDA writes it.")


class KedaScaling(KedaSettings):
    model_config = with_rules(_HPA_NAME)
    triggers: list[dict[str, Any]] = required("What to scale on, as KEDA writes it.", min_length=1, max_length=100)


class WvaScaling(CrdModel):
    """The workload variant autoscaler decides on the number, and an HPA or KEDA sets it."""

    model_config = with_rules(
        rule("has(self.hpa) != has(self.keda)", "set hpa or keda, and not both"),
        rule(
            "!has(self.keda) || !has(self.keda.advanced) || !has(self.keda.advanced.scalingModifiers)",
            "keda.advanced.scalingModifiers must not be set: the metric is the autoscaler's own",
        ),
    )
    variant_cost: str = optional("What a replica costs beside other variants.", "10.0", pattern=r"^\d+(\.\d+)?$")
    hpa: HpaActuator | None = optional("By a HorizontalPodAutoscaler.")
    keda: KedaSettings | None = optional("By a ScaledObject of KEDA's.")


class Scaling(CrdModel):
    """The number of replicas follows use."""

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
    min_replicas: int = optional("Fewest replicas.", 1, ge=1)
    max_replicas: int = required("Most replicas.", ge=1)
    wva: WvaScaling | None = optional("The workload variant autoscaler decides.")
    keda: KedaScaling | None = optional("KEDA decides by triggers.")


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
        "set replicas for a fixed number or scaling for one that follows use, and not both",
    ),
    rule(
        "!has(self.worker) || has(self.parallelism) && (has(self.parallelism.pipeline) || has(self.parallelism.data)"
        " || has(self.parallelism.dataLocal))",
        "worker needs parallelism.pipeline, or parallelism.data and dataLocal",
        field=".worker",
    ),
    rule(
        f"!has(self.worker) || !has(oldSelf.worker) || {_group_size('self')} == {_group_size('oldSelf')}",
        "the number of pods in a group cannot change; make another service",
        field=".parallelism",
    ),
    rule(
        "!has(self.worker) || !has(self.rolloutStrategy) || !has(self.rolloutStrategy.maxUnavailable)"
        " || !(type(self.rolloutStrategy.maxUnavailable) == int ? self.rolloutStrategy.maxUnavailable == 0"
        " : self.rolloutStrategy.maxUnavailable == '0%') || has(self.rolloutStrategy.maxSurge)",
        "maxUnavailable 0 needs maxSurge where pods come in groups",
        field=".rolloutStrategy.maxSurge",
    ),
)


class WorkloadSpec(CrdModel):
    """Identical pods with one task."""

    model_config = with_rules(*WORKLOAD_RULES)
    replicas: int | None = optional("Pods, or groups of pods; as many as there are when absent.", ge=0)
    scaling: Scaling | None = optional("The number of replicas follows use.")
    parallelism: Parallelism | None = optional("How the model is spread over devices.")
    labels: dict[str, str] | None = optional("Labels of the pods.")
    annotations: dict[str, str] | None = optional("Annotations of the pods.")
    template: PodSpec | None = optional("The pod, or the first of each group, over what the presets say; a PodSpec.")
    worker: PodSpec | None = optional("The other pods of each group; a PodSpec. Its presence makes groups.")
    kv_cache_offloading: KvCacheOffloading | None = optional("Where the KV cache goes that has no room.")
    rollout_strategy: RolloutStrategy | None = optional("How pods are replaced.")
