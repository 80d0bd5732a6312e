"""The workloads of a service in a cluster: sets of pods, groups of pods, and the objects that lead to them.

The dialects of KServe and llmaz build these from presets and pod templates, `components.engine_workloads` builds them
for a service that names an engine and a model. `components.render` makes the objects.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field

from kubeapi.json_types import Json
from program.desired.base import FrozenModel

_Model = TypeVar("_Model", bound=FrozenModel)


class Part(FrozenModel):
    """An object of a service, of which the service may have several of one kind."""

    part: str
    """Its name within the service; the logical name in the Pulumi program follows from it."""
    logical_part: str = ""
    """The last segment of the logical name where it does not follow from `part`."""
    name: str
    """Of the object."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class ObjectSpec(FrozenModel):
    """An object of which a service has one at most, or that its name tells apart."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    spec: Json
    """As the API of its kind writes it."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages where the cluster does not serve the kind."""


class ModelArtifact(FrozenModel):
    """One set of weights that the pods load."""

    role: Literal["main", "draft", "adapter"]
    name: str
    """The name by which clients ask for it."""
    address: str
    """Its source, as written."""
    path: str
    """Its path in pods, or the engine's argument instead."""


class PodGroup(FrozenModel):
    """Pods that live and die together: a leader and `size - 1` workers, as a LeaderWorkerSet makes them."""

    size: int = 1
    leader: Json | None = None
    """Pod template of the leader; None: like the workers."""
    restart_policy: Literal["RecreateGroupOnPodRestart", "None", "Default", ""] = ""
    startup_policy: Literal["LeaderCreated", "LeaderReady", ""] = ""
    sub_group_policy: Json | None = None
    rollout: Json | None = None
    """The LeaderWorkerSet's `rolloutStrategy`."""
    counted_leader: Json | None = None
    """The leader's template as hashes count it; None: as it is."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages where the cluster does not serve the kind."""


class ScaleTarget(FrozenModel):
    """The object that an autoscaler scales instead of the set of pods."""

    api_version: str
    kind: str
    name: str


class Scaler(Part):
    """An autoscaler of one set of pods; while it exists, Herdsman does not set their number."""

    kind: Literal["HorizontalPodAutoscaler", "ScaledObject"]
    spec: Json
    """As Kubernetes or KEDA write it, but for `scaleTargetRef`."""
    target: ScaleTarget | None = None
    """None: the set of pods that it belongs to."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages where the cluster does not serve the kind."""


class PodSet(Part):
    """Like pods with one task. A Deployment; with `group` a LeaderWorkerSet.

    Parts are `main`, `prefill`, `scheduler`, `tokenizer`. The first set of a service serves.
    """

    selector: dict[str, str] = Field(default_factory=dict)
    """Labels that select its pods. It can never change on a live Deployment: another one replaces the object."""
    template: Json
    """The pod template (`metadata`, `spec`); in a group that of the workers."""
    counted: Json | None = None
    """The template as hashes count it; None: as it is. Where the two differ, running pods keep
    their values until the counted template changes (docs/adr/0042)."""
    replicas: int | None = None
    """Pods, or groups. None: as many as there are, and one at first."""
    is_stopped: bool = False
    """No pod runs, whatever `replicas` says and whoever scales the set."""
    strategy: Json | None = None
    """The Deployment's `strategy`; None leaves it to Kubernetes."""
    group: PodGroup | None = None
    scaler: Scaler | None = None


class FrontService(Part):
    """A Kubernetes Service before some of the pods."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", ""] = ""
    """Empty leaves it to Kubernetes."""
    selector: dict[str, str]
    ports: tuple[Json, ...]


class Access(FrozenModel):
    """The account of some pods and what it may ask the API server."""

    part: str
    labels: dict[str, str] = Field(default_factory=dict)
    service_account: str
    account_exists: bool = False
    """The account is the user's own: only what it may ask is made for it."""
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
    """Name of that ClusterRoleBinding, which nothing in a namespace can own."""


class Pool(ObjectSpec):
    """An InferencePool: the pods that an endpoint picker chooses among for each request."""


class Route(ObjectSpec):
    """An HTTPRoute that leads requests from gateways to the service."""


class Ingress(ObjectSpec):
    """An Ingress that leads requests from outside the cluster to the service."""


class Certificate(FrozenModel):
    """A certificate that the service's pods serve with. The loop issues it and no program sees the key."""

    secret: str
    """Name of the Secret of type kubernetes.io/tls."""
    labels: dict[str, str] = Field(default_factory=dict)
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...] = ()
    renewal_annotations: tuple[str, ...] = ()
    """Annotations by which others expect to read when it is replaced."""


class ClaimTemplate(ObjectSpec):
    """A ResourceClaimTemplate for devices of the pods (dynamic resource allocation)."""


class Workloads(FrozenModel):
    """All that is made for a service in a cluster."""

    pods: tuple[PodSet, ...]
    """The first one serves; it is made last and carries the applied hash."""
    services: tuple[FrontService, ...] = ()
    access: tuple[Access, ...] = ()
    pool: Pool | None = None
    route: Route | None = None
    """The route that belongs to the pool, and goes with it."""
    exposure: Route | Ingress | None = None
    """The way in from outside the cluster, for a service without a pool."""
    budget: ObjectSpec | None = None
    """A PodDisruptionBudget."""
    network_policy: ObjectSpec | None = None
    monitor: ObjectSpec | None = None
    """A PodMonitor."""
    objective: ObjectSpec | None = None
    """A ServiceLevelObjective."""
    uses_cache_claim: bool = False
    """The pods mount the cache's claim, which is made where it is missing."""
    certificate: Certificate | None = None
    claim_templates: tuple[ClaimTemplate, ...] = ()
    artifacts: tuple[ModelArtifact, ...] = ()
    """The model, its draft, its adapters: for status, previews and hosts."""

    @property
    def main(self) -> PodSet:
        """The pods that serve."""
        return self.pods[0]

    def pod_set(self, part: str) -> PodSet | None:
        """Find a set of pods by its part."""
        return next((pods for pods in self.pods if pods.part == part), None)

    def without_nulls(self) -> Workloads:
        """Copy all of it without nulls: Kubernetes keeps none, so they would differ from the live objects for ever.

        Empty values stay: `emptyDir: {}` means something.
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
