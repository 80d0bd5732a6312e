"""One service, fully resolved: what a dialect parses a custom resource into, and everything below it builds from.

Dialects create these; `components` render them for Kubernetes, `automation.admission` turns them into host plans.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kubeapi.json_types import Json
from program.desired.base import FrozenModel
from program.desired.engines import EngineSettings, SecretKey
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel, Gpu
from program.desired.priorities import Priority
from program.desired.workloads import Workloads


class Endpoint(FrozenModel):
    """How clients reach the service."""

    port: int | None = None
    """The Service's port as the user wrote it; None means 8080 (LLMKube's URL), whatever port the container has."""
    path: str = "/v1/chat/completions"
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    node_port: int | None = None
    """The port on every node, for type NodePort; None lets the cluster choose."""


class Exposure(FrozenModel):
    """How clients outside the cluster reach the service."""

    by: Literal["gateway", "ingress"]
    host: str = ""
    """DNS name; empty means any that leads to the gateway or ingress."""
    gateway: str = ""
    gateway_namespace: str = ""
    """Namespace of the Gateway; empty means the service's own."""
    ingress_class: str = ""
    tls_secret: str = ""
    model_name: str = ""
    """Requests for this model only, by the header that an AI gateway sets; empty means all."""


class NetworkAccess(FrozenModel):
    """The clients that may connect to the pods."""

    namespaces: tuple[str, ...] = ()
    """Names of namespaces whose pods may connect; the service's own always may."""


class Disruption(FrozenModel):
    """Limits on the eviction of pods."""

    protect_startup: bool = True
    """Keep node autoscalers off a pod until it serves."""
    protect_always: bool = False
    """Keep node autoscalers off the pods for good."""
    max_unavailable: str = ""
    """Pods (`1`) or share (`25%`) that may be away at once; asks for a PodDisruptionBudget. Empty asks for none."""


class RolloutPolicy(FrozenModel):
    """How a changed pod template replaces pods that serve."""

    wait_for_idle: bool = False
    """Hold the change until no replica works on a request, and let each pod finish its requests before it stops."""
    idle_timeout_s: int = 300
    force: bool = False
    """Do not wait, whatever `wait_for_idle` says."""
    rollback: bool = False
    """A rollout that fails goes back to the last template that served."""


class ServiceLevelObjective(FrozenModel):
    """The share of the time, or of requests, in which the service must do well."""

    name: str = ""
    objective: str
    """Percent, as written (`99.5`)."""
    window: str = "28d"
    indicator: Literal["availability", "latency"] = "availability"
    latency_threshold: str = ""


class ModelStorage(FrozenModel):
    """Where pods keep the weights."""

    persistence: Literal["Cached", "Ephemeral"] = "Cached"
    claim_name: str = ""
    """A PersistentVolumeClaim of the user's instead of the namespace's cache."""


class ScalingMetric(FrozenModel):
    type: Literal["Pods", "Resource"]
    name: str
    target_average_value: str | None = None
    target_average_utilization: int | None = None


DEFAULT_UTILIZATION = 80
"""Percent of the request, where a resource is followed without a target. Kubernetes' own default."""


class Autoscaling(FrozenModel):
    """An autoscaler. While it exists, Herdsman does not set `replicas`.

    A HorizontalPodAutoscaler, or where `min_replicas` is 0 a KEDA ScaledObject, since only KEDA scales to nothing.
    """

    min_replicas: int = 1
    max_replicas: int
    metrics: tuple[ScalingMetric, ...] = ()
    """Empty means the runtime's own default metric, or the CPU where it has none."""
    query: str = ""
    """PromQL for KEDA instead of the metrics."""


class PodSettings(FrozenModel):
    """The user's settings of the pods, passed through to the pod template."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    runtime_class_name: str | None = None
    pod_security_context: Json | None = None
    security_context: Json | None = None
    image_pull_secrets: tuple[Json, ...] = ()
    env: tuple[Json, ...] = ()
    startup_probe: Json | None = None
    liveness_probe: Json | None = None
    readiness_probe: Json | None = None
    priority_class_name: str = "llmkube-normal"
    cpu_request: str | None = None
    memory_request: str | None = None
    ephemeral_storage: str | None = None
    affinity: Json | None = None
    topology_spread: tuple[Json, ...] = ()
    extra_volumes: tuple[Json, ...] = ()
    extra_volume_mounts: tuple[Json, ...] = ()


class Written(FrozenModel):
    """Where a custom resource says what a process on a host is started with, for errors that name a field."""

    arguments: tuple[str, ...] = ()
    """The user's own, in the order of the field."""
    arguments_field: str
    variables: tuple[str, ...] = ()
    """Names of the user's variables, in the field's order."""
    variables_field: str
    model_field: str


class HostPlacement(FrozenModel):
    """The service runs as processes on hosts, each replica on another."""

    host: str | None = None
    """Of replica 0; None while no host has been chosen."""
    others: tuple[str | None, ...] = ()
    """Of the further replicas, in their order."""
    pinned: bool = False
    """The user named `host`; nothing else is asked of it."""
    selector: dict[str, str] = Field(default_factory=dict)
    """Labels that a host must have, beside those of `pod.node_selector`."""
    preferred: tuple[str, ...] = ()
    """Names; the first that fits wins."""
    excluded: tuple[str, ...] = ()
    strategy: Literal["spread", "pack"] = "spread"
    """Onto the emptiest host, or the fullest that fits."""
    may_move: bool = True
    """False: replicas wait for a host that was lost or is drained."""
    memory_check: Literal["enforce", "warn", "off"] | None = None
    """None is the host's own rule: enforce."""
    residency: Literal["pinned", "preferred", "onDemand"] | None = None
    """Whether the process may be stopped when others of its group want its memory; None: it is in no group."""
    group: str = ""
    min_dwell_s: float | None = None
    written: Written | None = None
    """None: in the fields of an InferenceService."""

    @property
    def hosts(self) -> tuple[str | None, ...]:
        """The host of each replica, from replica 0 on."""
        return (self.host, *self.others)


class Sleep(FrozenModel):
    """Replicas are stopped while there are no requests. The next request starts them, and waits for them."""

    idle_timeout_s: float
    wake_timeout_s: float | None = None
    """How long a request waits; None leaves it to the proxy."""
    max_held_requests: int | None = None
    """How many wait at once; None leaves it to the proxy."""


DriftAction = Literal["repair", "report"]


class DriftPolicy(FrozenModel):
    """The action where somebody else changes or deletes an object of the service."""

    default: DriftAction = "repair"
    kinds: dict[str, DriftAction] = Field(default_factory=dict)
    """The action for single kinds instead."""
    ignored: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By kind the paths of fields that others may change, in the notation of Pulumi's property paths."""

    def of(self, kind: str) -> DriftAction:
        """Return the action for objects of a kind."""
        return self.kinds.get(kind, self.default)


class DesiredService(FrozenModel):
    """A service as it should be, with its model resolved."""

    key: ServiceKey
    owner: Owner | None
    """None: nothing in the cluster owns what is made, as in a static fleet, where there is no custom resource."""
    generation: int = 0
    model: DesiredModel
    engine: EngineSettings
    image: str | None = None
    """The user's own image; None means the runtime's default for the accelerator."""
    command: tuple[str, ...] = ()
    replicas: int = 1
    autoscaling: Autoscaling | None = None
    endpoint: Endpoint = Endpoint()
    container_port: int | None = None
    gpu: Gpu | None = None
    pod: PodSettings = PodSettings()
    skip_model_init: bool = False
    priority: Priority = "normal"
    eviction_protection: bool = False
    host_placement: HostPlacement | None = None
    """None: the service runs in the cluster's pods."""
    workloads: Workloads | None = None
    """The pods as the custom resource describes them. None: `components.engine_workloads` makes one
    Deployment from engine and model. A service on hosts has none."""
    mode: Literal["chat", "embedding", "rerank"] = "chat"
    suspended: bool = False
    """No replica runs and no autoscaler exists, whatever `replicas` says, until this is taken back."""
    draft: DesiredModel | None = None
    """The draft model of speculative decoding, when pods must fetch it beside the model."""
    bind_address: str = ""
    """Address that the engine listens on in a pod; empty means all, of both families."""
    expose: Exposure | None = None
    api_key: SecretKey | None = None
    """The key that clients must send as a Bearer token."""
    network: NetworkAccess | None = None
    """None: no NetworkPolicy."""
    disruption: Disruption = Disruption()
    rollout: RolloutPolicy = RolloutPolicy()
    storage: ModelStorage = ModelStorage()
    slo: ServiceLevelObjective | None = None
    revision_history_limit: int | None = None
    max_pod_lifetime_s: int | None = None
    """A pod that is older is replaced, one at a time, while the service is otherwise whole."""
    pod_lifetime_idle_timeout_s: int | None = None
    """How long to wait for an old pod to be idle before it is replaced; None means not to wait for it."""
    gpu_memory_bytes: int | None = None
    """GPU memory that each replica is said to need; quotas count it."""
    completion_check: bool = True
    """A replica counts as ready only once it has answered one real request."""
    readiness_gate: bool = False
    """Kubernetes, too, waits for the completion check before it sends requests to a pod."""
    sleep: Sleep | None = None
    """None: replicas run with and without requests."""
    served_name: str = ""
    """The model's name for clients; empty leaves it to the engine. Only some engines can be given one."""
    drain_s: float | None = None
    """How long requests under way may take when a replica stops; 0 does not wait for them, None leaves it to
    the rollout policy, on a host to the agent."""
    drift: DriftPolicy = DriftPolicy()
    adopt: bool = False
    """Take over objects of the same names that somebody else made (annotation `herdsman.dev/adopt: "true"`)."""
