"""Observations of a service or a model, as pure data. Dialects build the status from them."""

from __future__ import annotations

from typing import Literal

from program.desired.base import FrozenModel
from program.desired.model import GgufFacts


class Problem(FrozenModel):
    """Why an object is not as it should be, ready for a condition."""

    reason: str
    """In CamelCase."""
    message: str
    """The wanted value, the error, and how to correct it."""
    field: str = ""
    """Path in the custom resource, if the cause is there."""
    terminal: bool = False
    """True: only an edit helps (Stalled). False: Herdsman keeps trying (Reconciling)."""


def unsupported_field(field: str, message: str, reason: str = "NotHonoured") -> Problem:
    """Return the problem that a field has no effect. `field` is its path as users write it."""
    return Problem(reason=reason, message=message, field=field, terminal=True)


class PodFacts(FrozenModel):
    """One pod of a service: whether it serves, and if not, why."""

    name: str
    uid: str = ""
    component: str = ""
    """Its label `app.kubernetes.io/component`, which distinguishes the sets of pods of one service."""
    node: str = ""
    node_lost: str = ""
    """Why its node no longer runs it, from the node's condition; empty while the node is healthy."""
    leaving: bool = False
    """The pod is being deleted. On a lost node, the deletion ends when the node returns or is removed."""
    phase: str = "Pending"
    ready: bool = False
    """As reported by the kubelet. `proof` is the result of Herdsman's own check."""
    proof: Literal["", "proved", "failed", "unknown"] = ""
    """Whether a ready pod answered one real completion since its engine started; `unknown` if it cannot be asked. Empty
    until the check has ended, and if no check is wanted.
    """
    proof_message: str = ""
    unschedulable: str = ""
    """The scheduler's message; empty once the pod is scheduled."""
    waiting_reason: str = ""
    """A container's waiting or terminated reason: ImagePullBackOff, CrashLoopBackOff, OOMKilled, …"""
    waiting_message: str = ""
    """The last message of the container or the kubelet: the tail of an ended container's log, or the error of
    the pull.
    """
    container: str = ""
    init: bool = False
    """`container` is an init container, usually the one that fetches the model."""
    oom_killed: bool = False
    """The kernel killed `container` the last time, because memory ran out."""
    exit_code: int | None = None
    restarts: int = 0
    image: str = ""
    """The image of `container`."""
    preempted: bool = False
    """The scheduler preempted the pod for one of higher priority."""
    nominated_node: str = ""
    """The node on which the scheduler preempts other pods for this one."""
    requests: dict[str, str] = {}
    """The limits of its containers, by resource (`nvidia.com/gpu: "2"`)."""


class QueuePosition(FrozenModel):
    """The position of a service in the queue for a GPU."""

    position: int
    """Starts at 1; ordered by effective priority, then by age."""
    length: int
    """The number of services that wait for the same resource."""
    ahead: str = ""
    """`namespace/name` of the service before it; empty for the first."""


class RolloutFacts(FrozenModel):
    """The progress of a change of the pod template."""

    deferred: Problem | None = None
    """Why the change is held back: reason PodsBusy, IdleCheckFailed, IdleCheckUnsupported or PodsCrashLooping."""
    timed_out: bool = False
    """The change was held back for the longest time allowed, and then made although pods were busy."""
    failed: Problem | None = None
    """The Deployment's progress deadline passed, or pods of the new template crash."""
    rolled_back: Problem | None = None
    """Why the last template that served runs again instead of the wanted one."""
    kept: Problem | None = None
    """An adopted service runs its original template until it is changed."""


class MemoryFacts(FrozenModel):
    """The estimated memory of a replica's engine in bytes, and the memory that the service asks for."""

    weights_bytes: int
    cache_bytes: int
    compute_bytes: int
    host_bytes: int = 0
    """The part of the sum that stays in RAM although there is a GPU (`--cpu-moe`, `--no-kv-offload`)."""
    asked_bytes: int | None = None
    """Memory of the pod's request (without a GPU), or GPU memory if the service or Model names it."""
    available_bytes: int | None = None
    """The largest memory that a node could give a pod; None if nodes are unknown, and for GPU memory."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes


class AutoscalerFacts(FrozenModel):
    """The state of the autoscaler, from its status."""

    kind: str = "HorizontalPodAutoscaler"
    problem: str = ""
    """Why it cannot scale: the metrics API is absent, the metric does not exist. Empty if it can."""


class RefusedObject(FrozenModel):
    """An object that the API refused. The service serves without it: an autoscaler, a route, a monitor."""

    kind: str
    name: str
    reason: str
    """ApplyFailed or ForeignObject."""
    message: str


class HostedFacts(FrozenModel):
    """The processes of a service on hosts. If they differ, the facts are of the first replica that does not serve."""

    host: str | None = None
    phase: str = ""
    """`agent.contract.ProcessPhase`, empty while there is no report."""
    reason: str = ""
    message: str = ""
    heartbeat_age_s: float | None = None
    """Seconds since the host's last heartbeat; None if there was none, or if the host renews a Lease instead."""
    lost: bool = False
    """The host did not renew its Lease before the Lease's duration ended."""
    refusal: str = ""
    """Why no host fits a replica that has none; empty if every replica has one, and if there is no host."""
    stuck: str = ""
    """Why a replica stays on a host that it should leave; empty if no replica does."""
    earlier: str = ""
    """For what a replica waits that serves by an earlier plan, because files are missing; empty if no replica does."""
    earlier_fails: bool = False
    """The files of such a replica cannot be fetched, so that a person must act."""


class ClaimFacts(FrozenModel):
    """A PersistentVolumeClaim that a model or a cache uses."""

    name: str
    found: bool
    bound: bool = False
    phase: str = ""


class AccelerationFacts(FrozenModel):
    """The device that computes, as found in the engine's log."""

    device: str
    """CUDA, ROCm, Vulkan, Metal, OpenCL or CPU."""
    layers_offloaded: int
    layers_total: int


class ConditionFact(FrozenModel):
    """A condition of an object of Kubernetes or of an extension, as its controller wrote it."""

    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""


class WorkloadFacts(FrozenModel):
    """The progress of one set of pods: a Deployment or a LeaderWorkerSet."""

    part: str
    """`PodSet.part`; empty for a set that exists and is no longer wanted."""
    kind: Literal["Deployment", "LeaderWorkerSet"]
    name: str
    found: bool = False
    seen: bool = False
    """Its controller has observed the current spec. Before that, its status describes another spec."""
    behind: bool = False
    """Its controller has observed an earlier spec and not yet the current one."""
    wanted_replicas: int = 1
    """From the live object if it exists, so that an autoscaler's choice counts."""
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    unproved_replicas: int = 0
    """Ready pods that `ready_replicas` leaves out, because they have not answered a completion."""
    available: ConditionFact | None = None
    progressing: ConditionFact | None = None
    replica_failure: str = ""
    """Why pods cannot be created, as the API server reported it."""
    selector: str = ""
    """Label selector of its pods, in the format of a scale subresource."""


class GatewayFacts(FrozenModel):
    """The state of the service's route, from the Gateway or Ingress controller."""

    accepted: bool
    message: str = ""
    """Why it is not accepted, as that controller reported it."""
    endpoint: str = ""
    """URL for clients outside the cluster; empty while no address is known."""


class PendingChange(FrozenModel):
    """A change that is planned but not applied: it waits for approval, or the service is paused."""

    digest: str
    """Identifies this change; an approval of another digest does not count."""
    summary: str
    """One line: the number of objects, the restarts, the downloads."""
    changes: tuple[str, ...] = ()
    """One phrase for each object, as in Events."""
    paused: bool = False
    """The mode is Paused: an approval has no effect, only another mode helps."""


class ServiceFacts(FrozenModel):
    """All facts that the status of a service is built from."""

    desired_replicas: int
    """The live target: the Deployment's `spec.replicas` if it exists, so that an autoscaler's choice counts."""
    replicas: int = 0
    """Replicas that exist, ready or not."""
    ready_replicas: int = 0
    model_found: bool = True
    model_ready: bool = False
    model_failed: str = ""
    """Why the Model failed, from its status; empty if it did not."""
    behind: str = ""
    """Kind and name of a set of pods whose controller has not observed the last change yet, so that its status
    describes the pods before the change. Empty if there is none.
    """
    objects_exist: bool = False
    """All objects of the service exist as rendered."""
    applying: bool = False
    """An engine batch with this service is waiting or running."""
    problem: Problem | None = None
    """The error that stops this service: an invalid spec, a failed batch, a foreign object of the same name."""
    refused: tuple[RefusedObject, ...] = ()
    """Objects that could not be applied and that the service can serve without. The loop retries them with back-off."""
    unsupported: tuple[Problem, ...] = ()
    """Fields that the service's runtime or platform does not support. Condition SpecHonoured=False lists them."""
    queue: QueuePosition | None = None
    """None if the service does not wait for a GPU."""
    never_fits: str = ""
    """Why no node of the cluster can ever hold a replica; empty if one can, or if nothing is known."""
    quota: Problem | None = None
    """A GPUQuota that is used up: existing objects stay, and no new ones are created."""
    replica_failure: str = ""
    """Why the Deployment cannot create pods (a ResourceQuota, a missing PriorityClass), from the API server."""
    cache_claim: ClaimFacts | None = None
    """The claim that the pods mount for their weights, while it is not bound."""
    preemption: tuple[Problem, ...] = ()
    """Preemptions: services that lost their place to this one, or that took its place, with the priorities."""
    sleep: Literal["", "asleep", "waking"] = ""
    """`asleep`: idle, and no replica runs. `waking`: the first request has arrived. Both accept requests."""
    pool: str = ""
    """The ModelPool in which a service that is `asleep` waits for its turn; empty for none."""
    pending: PendingChange | None = None
    """The change that mode Preview or Paused holds back; None if there is none."""
    advice: tuple[Problem, ...] = ()
    """Violations of advisory policies. A violation of a mandatory policy is a `problem`."""
    drift: tuple[Problem, ...] = ()
    """Fields of Herdsman's objects that another client changed, if the drift policy is to report them."""
    rollout: RolloutFacts = RolloutFacts()
    memory: MemoryFacts | None = None
    autoscaler: AutoscalerFacts | None = None
    unproved_replicas: int = 0
    """Ready pods that do not count in `ready_replicas`, because they have not answered a completion."""
    acceleration: AccelerationFacts | None = None
    priority_value: int | None = None
    """Value of the PriorityClass that the pods name; None if it was not read."""
    template_hash: str = ""
    """Hash of the pod template that every replica runs; empty during a rollout and while there is none."""
    gateway: GatewayFacts | None = None
    """None: the service is not exposed, or its route has no status yet."""
    pods: tuple[PodFacts, ...] = ()
    hosted: HostedFacts | None = None
    """None: the service runs in pods."""
    workloads: tuple[WorkloadFacts, ...] = ()
    """The sets of pods of a service that describes its pods itself, in the order of `Workloads.pods`."""


class ProbeFacts(FrozenModel):
    """The result of reading a model's source without downloading it."""

    outcome: Literal["read", "unreachable", "refused", "mismatch", "not-gguf"]
    """read: header and size are known. unreachable: the loop cannot reach it; a pod may. refused: access is denied.
    mismatch: the file exists with another SHA-256. not-gguf: the file exists and is not a GGUF file.
    """
    message: str = ""
    reason: str = ""
    """CamelCase reason for a condition if the outcome is not `read`."""
    gguf: GgufFacts | None = None
    size_bytes: int | None = None
    etag: str | None = None
    sha256: str = ""
    """SHA-256 of the file if it was read completely (local or small files), else empty."""
    source: str = ""
    """The source that was read; facts of another source do not count."""


class TransferFacts(FrozenModel):
    """A running download of a model, as reported by the pod that downloads it."""

    done_bytes: int
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    where: str = ""
    """`pod/<name>` or `job/<name>`."""


class PrefetchFacts(FrozenModel):
    """The Job that fetches a model before its services need it."""

    job: str
    state: Literal["started", "running", "done", "failed", "invalid"]
    message: str = ""


class ModelFacts(FrozenModel):
    """All facts that the status of a model is built from."""

    problem: Problem | None = None
    probe: ProbeFacts | None = None
    claim: ClaimFacts | None = None
    accelerator_ready: bool = True
    transfer: TransferFacts | None = None
    refetched: bool = False
    """A pod has fetched the source again after it was found to differ from the cached files."""
    prefetch: PrefetchFacts | None = None
