"""A service whose custom resource describes its pods itself: sets of pods, groups of them, and the way to them.

The dialects of KServe and llmaz build these from presets and pod templates; `components.workloads` makes the objects.
A service of LLMKube's has none of it: its one Deployment follows from engine and model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kubeapi.json_types import Json
from program.desired.base import FrozenModel


class ModelArtifact(FrozenModel):
    """One set of weights that the pods load."""

    role: Literal["main", "draft", "adapter"]
    name: str
    """What clients ask for, where they can."""
    address: str
    """Where it comes from, as written."""
    path: str
    """Where pods find it, or what the engine is told instead."""


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
    """What an autoscaler scales, where that is not the set of pods itself."""

    api_version: str
    kind: str
    name: str


class Scaler(FrozenModel):
    """An autoscaler of one set of pods; while it exists, their number is not ours."""

    part: str
    """Its name within the service; the logical name follows from it."""
    kind: Literal["HorizontalPodAutoscaler", "ScaledObject"]
    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    spec: Json
    """As Kubernetes or KEDA write it, but for `scaleTargetRef`."""
    target: ScaleTarget | None = None
    """None: the set of pods that it belongs to."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages where the cluster does not serve the kind."""


class PodSet(FrozenModel):
    """Like pods with one task. A Deployment; with `group` a LeaderWorkerSet."""

    part: str
    """Its name within the service: `main`, `prefill`, `scheduler`, `tokenizer`. The first set of a service serves."""
    name: str
    """Of the object."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    selector: dict[str, str] = Field(default_factory=dict)
    """Labels that select its pods. It can never change on a live Deployment: another one replaces the object."""
    template: Json
    """The pod template (`metadata`, `spec`); in a group that of the workers."""
    counted: Json | None = None
    """The template as hashes count it; None: as it is. Pods that run keep what they have where the two differ, until
    what is counted changes (docs/adr/0042)."""
    replicas: int | None = None
    """Pods, or groups. None: as many as there are, and one at first."""
    strategy: Json | None = None
    """The Deployment's `strategy`; None leaves it to Kubernetes."""
    group: PodGroup | None = None
    scaler: Scaler | None = None


class FrontService(FrozenModel):
    """A Kubernetes Service before some of the pods."""

    part: str
    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
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


class Pool(FrozenModel):
    """An InferencePool: the pods that an endpoint picker chooses among for each request."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    spec: Json
    """As `inference.networking.k8s.io/v1` writes it."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages where the cluster does not serve the kind."""


class Route(FrozenModel):
    """An HTTPRoute that leads requests from gateways to the service."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    spec: Json
    """As `gateway.networking.k8s.io/v1` writes it."""
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages where the cluster does not serve the kind."""


class Certificate(FrozenModel):
    """A certificate that the service's pods serve with. The loop issues it and no program sees the key."""

    secret: str
    """Name of the Secret of type kubernetes.io/tls."""
    labels: dict[str, str] = Field(default_factory=dict)
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...] = ()
    renewal_annotations: tuple[str, ...] = ()
    """Annotations by which others expect to read when it is replaced."""


class ClaimTemplate(FrozenModel):
    """A ResourceClaimTemplate for devices of the pods (dynamic resource allocation)."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    spec: Json
    asked_by: str = ""
    """Field of the custom resource that asks for it, for messages where the cluster does not serve the kind."""


class Workloads(FrozenModel):
    """All that is made for a service beside what every service has."""

    pods: tuple[PodSet, ...]
    """The first one serves; it is made last and carries the applied hash."""
    services: tuple[FrontService, ...] = ()
    access: tuple[Access, ...] = ()
    pool: Pool | None = None
    route: Route | None = None
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
