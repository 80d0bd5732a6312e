"""What was observed of a service or a model, as pure data; dialects turn it into status."""

from __future__ import annotations

from typing import Literal

from program.desired.base import FrozenModel
from program.desired.model import GgufFacts


class Problem(FrozenModel):
    """Why a thing is not as it should be, ready for a condition."""

    reason: str
    """CamelCase."""
    message: str
    """What was asked, what is wrong, what to do."""
    field: str = ""
    """Path in the custom resource, where the cause is there."""
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
    """Its label `app.kubernetes.io/component`, by which sets of pods of one service are told apart."""
    node: str = ""
    node_lost: str = ""
    """Why its node does not run it any more, in the words of the node's condition; empty while the node is well."""
    leaving: bool = False
    """It is being deleted; on a lost node that takes until the node is back or gone."""
    phase: str = "Pending"
    ready: bool = False
    """What the kubelet says; `proof` is what Herdsman found out itself."""
    proof: Literal["", "proved", "failed", "unknown"] = ""
    """Of a ready pod: it answered one real completion since its engine started, it did not, or it cannot be asked.
    Empty while the check has not ended, or where none is asked for."""
    proof_message: str = ""
    unschedulable: str = ""
    """The scheduler's own message, empty once scheduled."""
    waiting_reason: str = ""
    """A container's waiting or terminated reason: ImagePullBackOff, CrashLoopBackOff, OOMKilled, …"""
    waiting_message: str = ""
    """What the container or the kubelet said last: the tail of a terminated container's log, the pull's error."""
    container: str = ""
    init: bool = False
    """`container` is an init container: the one that fetches the model, as a rule."""
    oom_killed: bool = False
    """The last end of `container` was by the kernel, for want of memory."""
    exit_code: int | None = None
    restarts: int = 0
    image: str = ""
    """Image of `container`."""
    preempted: bool = False
    """The scheduler took its place for a pod of higher priority."""
    nominated_node: str = ""
    """Node where the scheduler makes room for it."""
    requests: dict[str, str] = {}
    """The limits that its containers ask for, by resource (`nvidia.com/gpu: "2"`)."""


class QueuePosition(FrozenModel):
    """The position of a service among those that wait for a GPU."""

    position: int
    """From 1, by effective priority, then by age."""
    length: int
    """Services that wait for the same resource."""
    ahead: str = ""
    """`namespace/name` of the one before it; empty for the first."""


class RolloutFacts(FrozenModel):
    """How far a change of the pod template is."""

    deferred: Problem | None = None
    """The change is held back: reason PodsBusy, IdleCheckFailed, IdleCheckUnsupported or PodsCrashLooping."""
    timed_out: bool = False
    """It was held back for as long as allowed and then made regardless."""
    failed: Problem | None = None
    """The Deployment's progress deadline passed, or pods of the new template crash."""
    rolled_back: Problem | None = None
    """The last template that served runs again instead of the wanted one, and why."""
    kept: Problem | None = None
    """An adopted service runs the template that it came with until it is changed."""


class MemoryFacts(FrozenModel):
    """What a replica's engine is estimated to need, in bytes, beside what the service asks for."""

    weights_bytes: int
    cache_bytes: int
    compute_bytes: int
    host_bytes: int = 0
    """The part of the sum that stays in RAM although there is a GPU (`--cpu-moe`, `--no-kv-offload`)."""
    asked_bytes: int | None = None
    """Memory of the pod's request (without a GPU), or GPU memory where the service or Model names it."""
    available_bytes: int | None = None
    """Most memory that any node could give a pod; None while nodes are unknown or a GPU's memory counts."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes


class AutoscalerFacts(FrozenModel):
    """What the autoscaler says of itself."""

    kind: str = "HorizontalPodAutoscaler"
    problem: str = ""
    """Why it cannot scale: the metrics API is absent, the metric does not exist. Empty when it can."""


class RefusedObject(FrozenModel):
    """An object that the API refused, and without which the service serves: an autoscaler, a route, a monitor."""

    kind: str
    name: str
    reason: str
    """ApplyFailed or ForeignObject."""
    message: str


class HostedFacts(FrozenModel):
    """The processes of a service on hosts; where they differ, of the first replica that does not serve."""

    host: str | None = None
    phase: str = ""
    """`agent.contract.ProcessPhase`, empty while there is no report."""
    reason: str = ""
    message: str = ""
    heartbeat_age_s: float | None = None
    """Seconds since the host last said it lives; None when it never did, or where its Lease says that."""
    lost: bool = False
    """The host has not renewed its Lease for as long as it promised."""
    refusal: str = ""
    """Why no host fits a replica that has none; empty while every replica has one, and while there is no host."""
    stuck: str = ""
    """Why a replica stays on a host that it should leave; empty when none does."""


class ClaimFacts(FrozenModel):
    """A PersistentVolumeClaim that a model or a cache uses."""

    name: str
    found: bool
    bound: bool = False
    phase: str = ""


class AccelerationFacts(FrozenModel):
    """What the engine's log says of the hardware that computes."""

    device: str
    """CUDA, ROCm, Vulkan, Metal, OpenCL or CPU."""
    layers_offloaded: int
    layers_total: int


class ConditionFact(FrozenModel):
    """A condition of an object of Kubernetes' or an extension's, in its controller's words."""

    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""


class WorkloadFacts(FrozenModel):
    """How far one set of pods is: a Deployment or a LeaderWorkerSet."""

    part: str
    """`PodSet.part`; empty for one that exists and is not wanted any more."""
    kind: Literal["Deployment", "LeaderWorkerSet"]
    name: str
    found: bool = False
    seen: bool = False
    """Its controller has looked at the spec as it is now; before that its status is about another."""
    behind: bool = False
    """Its controller has looked at an earlier spec and not yet at this one."""
    wanted_replicas: int = 1
    """Of the live object where it exists, so that an autoscaler's choice counts."""
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    unproved_replicas: int = 0
    """Ready pods that `ready_replicas` leaves out, because they have not answered a completion."""
    available: ConditionFact | None = None
    progressing: ConditionFact | None = None
    replica_failure: str = ""
    """Why pods cannot be made at all, in the API's words."""
    selector: str = ""
    """Label selector of its pods, as a scale subresource tells it."""


class GatewayFacts(FrozenModel):
    """What the Gateway or Ingress controller says of the service's route."""

    accepted: bool
    message: str = ""
    """Why it is not accepted, in that controller's words."""
    endpoint: str = ""
    """URL that clients outside the cluster use; empty while no address is known."""


class PendingChange(FrozenModel):
    """A change that is worked out and not made, because somebody must approve it first, or nothing may be changed."""

    digest: str
    """Names exactly this change; an approval of another does not count."""
    summary: str
    """How many objects, what restarts, what is downloaded: one line."""
    changes: tuple[str, ...] = ()
    """One phrase for each object, as Events tell it."""
    paused: bool = False
    """Mode Paused: no approval helps, only another mode."""


class ServiceFacts(FrozenModel):
    """All that the status of a service is made of."""

    desired_replicas: int
    """The live target: the Deployment's `spec.replicas` once it exists, so that an autoscaler's choice counts."""
    replicas: int = 0
    """Replicas that exist (ready or not)."""
    ready_replicas: int = 0
    model_found: bool = True
    model_ready: bool = False
    model_failed: str = ""
    """Why the Model failed, in its own words; empty where it did not."""
    behind: str = ""
    """Kind and name of a set of pods whose controller has not looked at its last change yet; its status is about the
    pods before that. Empty when there is none."""
    objects_exist: bool = False
    """The service's objects are all there as rendered."""
    applying: bool = False
    """An engine batch with this service is waiting or under way."""
    problem: Problem | None = None
    """What stops this service: an invalid spec, a failed batch, a foreign object in the way."""
    refused: tuple[RefusedObject, ...] = ()
    """What could not be applied and does not keep the service from serving; it is tried again with a back-off."""
    unsupported: tuple[Problem, ...] = ()
    """Fields that the chosen path cannot honour; each is named in condition SpecHonoured=False."""
    queue: QueuePosition | None = None
    """None when the service waits for no GPU."""
    never_fits: str = ""
    """Why no node of the cluster could ever hold a replica; empty when one could, or nothing is known."""
    quota: Problem | None = None
    """A GPUQuota that leaves no room: what exists stays, nothing more is made."""
    replica_failure: str = ""
    """Why the Deployment cannot make pods at all (a ResourceQuota, a missing PriorityClass), in the API's words."""
    cache_claim: ClaimFacts | None = None
    """The claim that the pods mount for their weights, while it is not bound."""
    preemption: tuple[Problem, ...] = ()
    """Whose place this service took, or who took its place, and by what right."""
    sleep: Literal["", "asleep", "waking"] = ""
    """Nobody uses the service and no replica runs, or the first request has come; requests are taken either way."""
    pending: PendingChange | None = None
    """What mode Preview or Paused holds back; None when nothing is."""
    advice: tuple[Problem, ...] = ()
    """Violations of advisory policies; those of mandatory ones are a `problem`."""
    drift: tuple[Problem, ...] = ()
    """Fields of ours that somebody else changed and that are reported, not repaired."""
    rollout: RolloutFacts = RolloutFacts()
    memory: MemoryFacts | None = None
    autoscaler: AutoscalerFacts | None = None
    unproved_replicas: int = 0
    """Ready pods that do not count in `ready_replicas`, because they have not answered a completion."""
    acceleration: AccelerationFacts | None = None
    priority_value: int | None = None
    """Value of the PriorityClass that the pods name; None where it was not looked up."""
    template_hash: str = ""
    """Hash of the pod template that every replica runs; empty during a rollout and while none exists."""
    gateway: GatewayFacts | None = None
    """None: not exposed, or nothing has been said of the route yet."""
    pods: tuple[PodFacts, ...] = ()
    hosted: HostedFacts | None = None
    """None: the service runs in pods."""
    workloads: tuple[WorkloadFacts, ...] = ()
    """The sets of pods of a service that describes them itself, in the order of `Workloads.pods`."""


class ProbeFacts(FrozenModel):
    """What a look at the source said, without downloading it."""

    outcome: Literal["read", "unreachable", "refused", "mismatch", "not-gguf"]
    """read: header and size are known. unreachable: the loop cannot see it, a pod may. refused: not allowed to look.
    mismatch: the file is there and its SHA-256 is another. not-gguf: there, but not a GGUF file."""
    message: str = ""
    reason: str = ""
    """CamelCase reason for a condition when the outcome is not `read`."""
    gguf: GgufFacts | None = None
    size_bytes: int | None = None
    etag: str | None = None
    sha256: str = ""
    """SHA-256 of the whole file where it was read whole (local or small files), else empty."""
    source: str = ""
    """The source that was looked at; facts of another source do not count."""


class TransferFacts(FrozenModel):
    """A download of a model that is under way, as the pod that does it says."""

    done_bytes: int
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    where: str = ""
    """`pod/<name>` or `job/<name>`."""


class PrefetchFacts(FrozenModel):
    """The Job that fetches a model ahead of its services."""

    job: str
    state: Literal["started", "running", "done", "failed", "invalid"]
    message: str = ""


class ModelFacts(FrozenModel):
    """All that the status of a model is made of."""

    problem: Problem | None = None
    probe: ProbeFacts | None = None
    claim: ClaimFacts | None = None
    accelerator_ready: bool = True
    transfer: TransferFacts | None = None
    refetched: bool = False
    """A pod has fetched the source again since it was found to differ from what the caches hold."""
    prefetch: PrefetchFacts | None = None
