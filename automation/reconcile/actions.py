"""The actions of a pass, as values. `decide` and the checks of replicas return them; `act` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from automation.admission.quota import QuotaClaim
from automation.approval.modes import Mode
from automation.drift.drift_watch import Considered
from automation.engine.submissions import Asked
from automation.hosts.registry import HostProposal
from automation.reconcile.observe import Observed
from automation.reconcile.plan import LiveObject
from automation.status.event_recorder import EventType
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.service import DesiredService
from program.desired.workloads import Certificate


@dataclass(frozen=True)
class ApplyObjects:
    """Submit the objects of a service to the engine."""

    considered: Considered
    """The rendered objects, and the drift that applying them repairs."""
    asked: Asked
    """Versions of the custom resources from which the objects were rendered."""
    mode: Mode


@dataclass(frozen=True)
class WithdrawQuota:
    """Wait for no quota any more: the service cannot be applied as it is."""


@dataclass(frozen=True)
class DeleteObjects:
    """Delete objects of a service that the engine's state does not hold."""

    objects: tuple[LiveObject, ...]


@dataclass(frozen=True)
class PatchObject:
    """Change the metadata of a custom resource, if its version is still that of `obj`."""

    kind: Kind
    obj: Json
    metadata: Json


@dataclass(frozen=True)
class PatchPod:
    """Set annotations of a pod; None removes one."""

    pod: Json
    annotations: Mapping[str, str | None]


@dataclass(frozen=True)
class SetPodCondition:
    """Write the result of a replica's completion check into the status of its pod."""

    pod: Json
    status: bool
    reason: str
    message: str


@dataclass(frozen=True)
class DeletePod:
    """Delete a replica that does not serve. Its ReplicaSet makes another."""

    name: str
    uid: str
    why: str
    """The reason, from the answer of the replica."""


@dataclass(frozen=True)
class EvictPod:
    """Evict a pod that is older than the service allows. PodDisruptionBudgets may forbid it."""

    name: str
    uid: str
    lifetime_s: int


@dataclass(frozen=True)
class EnsureCertificate:
    """Issue or renew the certificate that the pods of a service serve with."""

    certificate: Certificate
    desired: DesiredService


@dataclass(frozen=True)
class EnsureEngineKey:
    """Make the key that the engines of a service demand of the gateway."""

    desired: DesiredService


@dataclass(frozen=True)
class UpdateSleep:
    """Put a service in pods to sleep or wake it, and meanwhile route its clients to the proxy."""

    desired: DesiredService
    observed: Observed


@dataclass(frozen=True)
class ReserveHosts:
    """Reserve the hosts that were proposed for the replicas of a service; none for a service in pods."""

    proposal: HostProposal
    service: DesiredService | None = None
    """The service with the contexts of its replicas, whose memory is reserved."""


@dataclass(frozen=True)
class ReserveQuota:
    """Count the resources of a service against the GPUQuotas, or let it wait for room."""

    claim: QuotaClaim
    without_model: bool
    """The Model is unknown. Only the service's spec is used."""
    admitted: bool
    """Whether the review found room."""


@dataclass(frozen=True)
class ClearPending:
    """Drop the change that waited for approval, because the service is as rendered."""

    mode: Mode


@dataclass(frozen=True)
class ClearFailure:
    """Drop the failure of the last engine run, because the service is as rendered: the run failed after its writes."""

    fingerprint: str


@dataclass(frozen=True)
class RecordEvent:
    """Record an Event about the custom resource."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True)
class RequeueAfter:
    """Reconcile the service again."""

    seconds: float


Action = (
    ApplyObjects
    | DeleteObjects
    | PatchObject
    | PatchPod
    | SetPodCondition
    | DeletePod
    | EvictPod
    | EnsureCertificate
    | EnsureEngineKey
    | UpdateSleep
    | ReserveHosts
    | ReserveQuota
    | WithdrawQuota
    | ClearPending
    | ClearFailure
    | RecordEvent
    | RequeueAfter
)
PodAction = PatchPod | SetPodCondition | DeletePod | EvictPod
