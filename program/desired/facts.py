"""What was observed of a service or a model, as pure data; dialects turn it into status."""

from __future__ import annotations

from typing import Literal

from program.desired.base import Desired
from program.desired.model import GgufFacts


class Problem(Desired):
    """Why a thing is not as it should be, ready for a condition."""

    reason: str
    """CamelCase."""
    message: str
    """What was asked, what is wrong, what to do."""
    field: str = ""
    """Path in the custom resource, where the cause is there."""
    terminal: bool = False
    """True: only an edit helps (Stalled). False: Herdsman keeps trying (Reconciling)."""


class PodFacts(Desired):
    """One pod of a service that is not ready, and why."""

    name: str
    phase: str = "Pending"
    unschedulable: str = ""
    """The scheduler's own message, empty once scheduled."""
    waiting_reason: str = ""
    """A container's waiting or terminated reason: ImagePullBackOff, CrashLoopBackOff, OOMKilled, …"""
    waiting_message: str = ""
    container: str = ""
    requests: dict[str, str] = {}
    """The limits that its containers ask for, by resource (`nvidia.com/gpu: "2"`)."""


class HostedFacts(Desired):
    """The process of a host-placed service."""

    host: str | None = None
    phase: str = ""
    """`agent.contract.ProcessPhase`, empty while there is no report."""
    reason: str = ""
    message: str = ""
    heartbeat_age_s: float | None = None
    """Seconds since the host last said it lives; None when it never did."""


class ServiceFacts(Desired):
    """All that the status of a service is made of."""

    desired_replicas: int
    """The live target: the Deployment's `spec.replicas` once it exists, so that an autoscaler's choice counts."""
    replicas: int = 0
    """Replicas that exist (ready or not)."""
    ready_replicas: int = 0
    model_found: bool = True
    model_ready: bool = False
    objects_exist: bool = False
    """The service's objects are all there as rendered."""
    applying: bool = False
    """An engine batch with this service is waiting or under way."""
    problem: Problem | None = None
    """What stops this service: an invalid spec, a failed batch, a foreign object in the way."""
    unhonoured: tuple[Problem, ...] = ()
    """Fields that the chosen path cannot honour; each is named in condition SpecHonoured=False."""
    queue_position: int = 0
    """Place among the services that wait for a GPU, oldest first, from 1; 0 when unknown or not waiting."""
    priority_value: int | None = None
    """Value of the PriorityClass that the pods name; None where it was not looked up."""
    pods: tuple[PodFacts, ...] = ()
    hosted: HostedFacts | None = None
    """None: the service runs in pods."""


class ClaimFacts(Desired):
    """A PersistentVolumeClaim that a model or a cache uses."""

    name: str
    found: bool
    bound: bool = False
    phase: str = ""


class ProbeFacts(Desired):
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


class ModelFacts(Desired):
    """All that the status of a model is made of."""

    problem: Problem | None = None
    probe: ProbeFacts | None = None
    claim: ClaimFacts | None = None
    accelerator_ready: bool = True
