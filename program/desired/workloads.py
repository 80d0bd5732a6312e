"""The workloads of a service in a cluster: sets of pods, groups of pods, and the objects that route requests to them.

The dialects of KServe and llmaz build these from presets and pod templates. `components.engine_workloads` builds them
for a service that names an engine and a model. `components.render` creates the objects.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field

from kubeapi.json_types import Json
from program.desired.base import FrozenModel

_Model = TypeVar("_Model", bound=FrozenModel)


class Part(FrozenModel):
    """An object of a service that may have several objects of the same kind."""

    part: str
    """Its name within the service. The logical name in the Pulumi program is derived from it."""
    logical_part: str = ""
    """The last segment of the logical name, if it is not derived from `part`."""
    name: str
    """The object's name."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class ObjectSpec(FrozenModel):
    """An object of a kind that a service has at most once, or whose name identifies it."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    spec: Json
    """In the format of its kind's API."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages if the cluster does not serve the kind."""


class ModelArtifact(FrozenModel):
    """One set of weights that the pods load."""

    role: Literal["main", "draft", "adapter"]
    name: str
    """The name by which clients ask for it."""
    address: str
    """Its source, as the user wrote it."""
    path: str
    """Its path in pods, or the engine's argument instead."""


class PodGroup(FrozenModel):
    """Pods that start and stop together: a leader and `size - 1` workers, as a LeaderWorkerSet creates them."""

    size: int = 1
    leader: Json | None = None
    """Pod template of the leader; None means the workers' template."""
    restart_policy: Literal["RecreateGroupOnPodRestart", "None", "Default", ""] = ""
    startup_policy: Literal["LeaderCreated", "LeaderReady", ""] = ""
    sub_group_policy: Json | None = None
    rollout: Json | None = None
    """The LeaderWorkerSet's `rolloutStrategy`."""
    counted_leader: Json | None = None
    """The leader's template that the hashes are computed from; None means `leader`."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages if the cluster does not serve the kind."""


class ScaleTarget(FrozenModel):
    """The object that an autoscaler scales instead of the set of pods."""

    api_version: str
    kind: str
    name: str


class Scaler(Part):
    """An autoscaler of one set of pods; while it exists, Herdsman does not set their number."""

    kind: Literal["HorizontalPodAutoscaler", "ScaledObject"]
    spec: Json
    """In the format of Kubernetes or KEDA, without `scaleTargetRef`."""
    target: ScaleTarget | None = None
    """None: the set of pods that it belongs to."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages if the cluster does not serve the kind."""


class ReplicaBounds(FrozenModel):
    """The bounds in which a set of pods follows the number of the serving pods."""

    least: int
    most: int

    def of(self, replicas: int) -> int:
        """Return the number in the bounds that is nearest to `replicas`."""
        return min(max(replicas, self.least), self.most)


class PodSet(Part):
    """Identical pods with one task: a Deployment, or with `group` a LeaderWorkerSet.

    Parts are `main`, `prefill`, `scheduler`, `tokenizer`. The first set of a service serves its requests.
    """

    selector: dict[str, str] = Field(default_factory=dict)
    """Labels that select its pods. A live Deployment's selector is immutable: a changed one replaces the object."""
    template: Json
    """The pod template (`metadata`, `spec`); in a group, the template of the workers."""
    counted: Json | None = None
    """The template that the hashes are computed from; None means `template`. If the two differ, running pods keep their
    values until this template changes (docs/adr/0042).
    """
    replicas: int | None = None
    """The number of pods, or of groups. None keeps the live number; a new set gets one."""
    is_stopped: bool = False
    """No pod runs, whatever `replicas` and the autoscaler ask for."""
    strategy: Json | None = None
    """The Deployment's `strategy`; None uses Kubernetes' default."""
    group: PodGroup | None = None
    scaler: Scaler | None = None
    follows: ReplicaBounds | None = None
    """The number is that of the serving pods, in these bounds. None: it is `replicas`."""


class FrontService(Part):
    """A Kubernetes Service in front of some of the pods."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", ""] = ""
    """Empty uses Kubernetes' default."""
    selector: dict[str, str]
    ports: tuple[Json, ...]


class Access(FrozenModel):
    """The ServiceAccount of some pods and its permissions at the API server."""

    part: str
    labels: dict[str, str] = Field(default_factory=dict)
    service_account: str
    account_exists: bool = False
    """The account belongs to the user: Herdsman creates only its roles and bindings."""
    image_pull_secrets: tuple[Json, ...] = ()
    secrets: tuple[Json, ...] = ()
    role: str = ""
    """Name of a Role with `rules`; empty for none."""
    rules: tuple[Json, ...] = ()
    binding: str = ""
    """Name of the RoleBinding of that Role to the account."""
    cluster_role: str = ""
    """An existing ClusterRole that the account is bound to in all namespaces; empty for none."""
    cluster_binding: str = ""
    """Name of that ClusterRoleBinding. It is cluster-scoped, so no namespaced object can own it."""


class Pool(ObjectSpec):
    """An InferencePool: the pods that an endpoint picker chooses among for each request."""


class Route(ObjectSpec):
    """An HTTPRoute that leads requests from gateways to the service."""


class Ingress(ObjectSpec):
    """An Ingress that leads requests from outside the cluster to the service."""


class Certificate(FrozenModel):
    """A TLS certificate of the service's pods. The loop issues it; no Pulumi program has access to the key."""

    secret: str
    """Name of the Secret of type kubernetes.io/tls."""
    labels: dict[str, str] = Field(default_factory=dict)
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...] = ()
    renewal_annotations: tuple[str, ...] = ()
    """Annotations in which other controllers expect the time of its renewal."""


class ClaimTemplate(ObjectSpec):
    """A ResourceClaimTemplate for devices of the pods (dynamic resource allocation)."""


class Workloads(FrozenModel):
    """All objects of a service in a cluster."""

    pods: tuple[PodSet, ...]
    """The first one serves. It is created last and carries the applied hash."""
    services: tuple[FrontService, ...] = ()
    access: tuple[Access, ...] = ()
    pool: Pool | None = None
    route: Route | None = None
    """The route of the pool. It exists only together with the pool."""
    exposure: Route | Ingress | None = None
    """The route from outside the cluster, for a service without a pool."""
    budget: ObjectSpec | None = None
    """A PodDisruptionBudget."""
    network_policy: ObjectSpec | None = None
    monitor: ObjectSpec | None = None
    """A PodMonitor."""
    objective: ObjectSpec | None = None
    """A ServiceLevelObjective."""
    uses_cache_claim: bool = False
    """The pods mount the cache's claim. The claim is created if it is missing."""
    certificate: Certificate | None = None
    claim_templates: tuple[ClaimTemplate, ...] = ()
    artifacts: tuple[ModelArtifact, ...] = ()
    """The model, its draft, its adapters: for status, previews and hosts."""

    @property
    def main(self) -> PodSet:
        """The pods that serve."""
        return self.pods[0]

    def pod_set(self, part: str) -> PodSet | None:
        """Return the set of pods of this part; None if there is none."""
        return next((pods for pods in self.pods if pods.part == part), None)

    def without_nulls(self) -> Workloads:
        """Return a copy without nulls. Kubernetes stores none, so they would differ from the live objects forever.

        Empty values stay: `emptyDir: {}` has a meaning.
        """
        return _model_without_nulls(self)


def _model_without_nulls(model: _Model) -> _Model:
    copied: dict[str, Any] = {}
    for name, value in model:
        if isinstance(value, (dict, list)):
            copied[name] = _without_nulls(value)
        elif isinstance(value, FrozenModel):
            copied[name] = _model_without_nulls(value)
        elif isinstance(value, tuple) and value:
            models = isinstance(value[0], FrozenModel)
            copied[name] = tuple(_model_without_nulls(each) if models else _without_nulls(each) for each in value)
    return model.model_copy(update=copied)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(each) for each in value]
    return value
