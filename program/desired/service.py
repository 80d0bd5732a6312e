"""One service, fully resolved. Dialects parse a custom resource into it, and all later steps build from it.

`components` renders it for Kubernetes, `automation.admission` turns it into host plans.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kubeapi.json_types import Json
from program.desired.adapter import AdapterFile
from program.desired.base import FrozenModel
from program.desired.engines import EngineSettings, SecretKey
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel, Gpu
from program.desired.priorities import Priority
from program.desired.workloads import Workloads


class Endpoint(FrozenModel):
    """How clients reach the service."""

    port: int | None = None
    """The Service's port as the user wrote it. None means 8080 (LLMKube's URL), whatever the container's port is."""
    path: str = "/v1/chat/completions"
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    node_port: int | None = None
    """The port on every node, for type NodePort; None lets the cluster choose."""


class Exposure(FrozenModel):
    """How clients outside the cluster reach the service."""

    by: Literal["gateway", "ingress"]
    host: str = ""
    """DNS name; empty accepts every name that resolves to the gateway or ingress."""
    gateway: str = ""
    gateway_namespace: str = ""
    """Namespace of the Gateway; empty means the service's namespace."""
    ingress_class: str = ""
    tls_secret: str = ""
    model_name: str = ""
    """Route only requests for this model, by the header that an AI gateway sets; empty means all requests."""


class NetworkAccess(FrozenModel):
    """The clients that may connect to the pods."""

    namespaces: tuple[str, ...] = ()
    """Names of namespaces whose pods may connect, in addition to the service's namespace."""
    gateway: str = ""
    """The namespace of Herdsman's gateway and loop, if nothing else may connect. Empty: the rule above applies."""


class Disruption(FrozenModel):
    """Limits on the eviction of pods."""

    protect_startup: bool = True
    """Prevent node autoscalers from evicting a pod until it serves."""
    protect_always: bool = False
    """Prevent node autoscalers from evicting the pods at any time."""
    max_unavailable: str = ""
    """Pods (`1`) or share (`25%`) that may be unavailable at once, as a PodDisruptionBudget. Empty creates none."""


class RolloutPolicy(FrozenModel):
    """How a changed pod template replaces pods that serve."""

    wait_for_idle: bool = False
    """Hold the change until no replica works on a request, and let each pod finish its requests before it stops."""
    idle_timeout_s: int = 300
    force: bool = False
    """Do not wait, even if `wait_for_idle` is set."""
    rollback: bool = False
    """After a failed rollout, return to the last template that served."""


class ServiceLevelObjective(FrozenModel):
    """The share of time, or of requests, in which the service must meet the indicator."""

    name: str = ""
    objective: str
    """Percent, as the user wrote it (`99.5`)."""
    window: str = "28d"
    indicator: Literal["availability", "latency"] = "availability"
    latency_threshold: str = ""


class ModelStorage(FrozenModel):
    """Where pods keep the weights."""

    persistence: Literal["Cached", "Ephemeral"] = "Cached"
    claim_name: str = ""
    """A PersistentVolumeClaim of the user instead of the namespace's cache."""


class ScalingMetric(FrozenModel):
    type: Literal["Pods", "Resource"]
    name: str
    target_average_value: str | None = None
    target_average_utilization: int | None = None


DEFAULT_UTILIZATION = 80
"""Percent of the request, for a resource metric without a target. The same default as Kubernetes."""


class Autoscaling(FrozenModel):
    """An autoscaler. While it exists, Herdsman does not set `replicas`.

    It is a HorizontalPodAutoscaler, or a KEDA ScaledObject if `min_replicas` is 0, since only KEDA scales to zero.
    """

    min_replicas: int = 1
    max_replicas: int
    metrics: tuple[ScalingMetric, ...] = ()
    """Empty means the runtime's default metric, or the CPU if it has none."""
    query: str = ""
    """PromQL for KEDA instead of the metrics."""


class PodSettings(FrozenModel):
    """The user's settings of the pods, copied to the pod template."""

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
    """The fields of a custom resource that set arguments and variables of a process on a host. Errors name them."""

    arguments: tuple[str, ...] = ()
    """The user's own arguments, in the order of the field."""
    arguments_field: str
    variables: tuple[str, ...] = ()
    """Names of the user's variables, in the order of the field."""
    variables_field: str
    model_field: str


class HostContext(FrozenModel):
    """The context of one replica whose service sets none, in tokens of all slots together."""

    tokens: int
    chosen: Literal["", "default", "pending"] = ""
    """`default`: chosen by the model and the host's memory. `pending`: not known yet when the process was made. Empty:
    the process is of a version without this choice, and keeps its context."""


class HostPlacement(FrozenModel):
    """The service runs as processes on hosts, each replica on another host."""

    host: str | None = None
    """The host of replica 0; None while no host has been chosen."""
    others: tuple[str | None, ...] = ()
    """The hosts of the further replicas, in their order."""
    pinned: bool = False
    """The user named `host`. Herdsman does not check the other wishes."""
    selector: dict[str, str] = Field(default_factory=dict)
    """Labels that a host must have, in addition to those of `pod.node_selector`."""
    preferred: tuple[str, ...] = ()
    """Names of hosts. The first that fits is chosen."""
    excluded: tuple[str, ...] = ()
    strategy: Literal["spread", "pack"] = "spread"
    """Choose the emptiest host, or the fullest that fits."""
    may_move: bool = True
    """False: replicas wait for a host that was lost or is drained."""
    memory_check: Literal["enforce", "warn", "off"] | None = None
    """None uses the host's rule, which is enforce."""
    residency: Literal["pinned", "preferred", "onDemand"] | None = None
    """Whether the process may be stopped when others of its group need its memory. None: it is in no group."""
    group: str = ""
    min_dwell_s: float | None = None
    written: Written | None = None
    """None: the fields are those of an InferenceService."""
    contexts: tuple[HostContext | None, ...] = ()
    """By replica: the context if the service sets none. Missing or None: the runtime's default for hosts."""

    def context_of(self, replica: int) -> HostContext | None:
        """Return the chosen context of a replica; None where none was chosen."""
        return self.contexts[replica] if replica < len(self.contexts) else None

    @property
    def hosts(self) -> tuple[str | None, ...]:
        """The host of each replica, starting with replica 0."""
        return (self.host, *self.others)


class Sleep(FrozenModel):
    """Replicas stop while there are no requests. The next request starts them, and waits until they are ready."""

    idle_timeout_s: float
    wake_timeout_s: float | None = None
    """How long a request waits; None uses the proxy's default."""
    max_held_requests: int | None = None
    """How many requests wait at once; None uses the proxy's default."""


class RequestScaling(FrozenModel):
    """The loop sets the number of replicas by the requests at the gateways.

    Where Herdsman serves the external metrics of the cluster, a HorizontalPodAutoscaler sets the number of pods while
    the service is awake.
    """

    min_replicas: int = 1
    """The fewest replicas while the service is awake; at least 1."""
    max_replicas: int = 1
    target: int | None = None
    """Requests under way for each replica. None: the number is `min_replicas` while the service is awake."""
    idle_timeout_s: float | None = None
    """No replica runs after this time without a request. None: the service never sleeps."""
    down_window_s: float = 300.0
    """A replica stops only after this time in which fewer replicas would have been enough. The HorizontalPodAutoscaler
    has the same default."""
    behavior: Json | None = None
    """Speed of scaling in the format of autoscaling/v2, for a HorizontalPodAutoscaler. The loop itself uses only the
    window for scaling down, which is `down_window_s`."""


DriftAction = Literal["repair", "report"]


class DriftPolicy(FrozenModel):
    """The action if another client changes or deletes an object of the service."""

    default: DriftAction = "repair"
    kinds: dict[str, DriftAction] = Field(default_factory=dict)
    """The action for single kinds instead."""
    ignored: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Paths of fields that other clients may change, by kind, in the notation of Pulumi's property paths."""

    def of(self, kind: str) -> DriftAction:
        """Return the action for objects of a kind."""
        return self.kinds.get(kind, self.default)


class DesiredService(FrozenModel):
    """The desired state of a service, with its model resolved."""

    key: ServiceKey
    owner: Owner | None
    """None: the objects have no owner in the cluster, as in a static fleet, which has no custom resource."""
    generation: int = 0
    model: DesiredModel
    engine: EngineSettings
    image: str | None = None
    """The user's image; None means the runtime's default for the accelerator."""
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
    """None: the service runs in pods of the cluster."""
    workloads: Workloads | None = None
    """The pods as the custom resource describes them. None: `components.engine_workloads` builds one Deployment from
    engine and model. A service on hosts has none.
    """
    mode: Literal["chat", "embedding", "rerank"] = "chat"
    suspended: bool = False
    """No replica runs and no autoscaler exists, whatever `replicas` is, until this is False again."""
    draft: DesiredModel | None = None
    """The draft model of speculative decoding, if pods must fetch it in addition to the model."""
    adapters: tuple[AdapterFile, ...] = ()
    """The LoRA adapters that its replicas have when they start, in the order in which llama-server numbers them."""
    bind_address: str = ""
    """Address that the engine listens on in a pod; empty means all IPv4 and IPv6 addresses."""
    expose: Exposure | None = None
    api_key: SecretKey | None = None
    """The key that clients must send as a Bearer token."""
    engine_key: SecretKey | None = None
    """Where the loop keeps the key that it makes for the engines; None: it makes none."""
    network: NetworkAccess | None = None
    """None: no NetworkPolicy."""
    disruption: Disruption = Disruption()
    rollout: RolloutPolicy = RolloutPolicy()
    storage: ModelStorage = ModelStorage()
    slo: ServiceLevelObjective | None = None
    revision_history_limit: int | None = None
    max_pod_lifetime_s: int | None = None
    """Replace a pod that is older, one at a time, while all other replicas of the service are ready."""
    pod_lifetime_idle_timeout_s: int | None = None
    """How long to wait for an old pod to be idle before it is replaced; None means not to wait."""
    gpu_memory_bytes: int | None = None
    """The declared GPU memory of each replica in bytes; quotas count it."""
    completion_check: bool = True
    """A replica counts as ready only after it has answered one real request."""
    readiness_gate: bool = False
    """Kubernetes also waits for the completion check before it sends requests to a pod."""
    sleep: Sleep | None = None
    """None: replicas run even without requests."""
    by_requests: RequestScaling | None = None
    """How the requests at the gateways set the number of replicas. None: they do not."""
    served_name: str = ""
    """The model's name for clients; empty uses the engine's default. Only some engines have a flag for it."""
    drain_s: float | None = None
    """How long running requests may take when a replica stops. 0 does not wait for them. None uses the rollout policy,
    on a host the agent's default.
    """
    drift: DriftPolicy = DriftPolicy()
    adopt: bool = False
    """Take over objects of the same names that another client created (annotation `herdsman.dev/adopt: "true"`)."""
