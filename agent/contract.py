"""The contract with a host: a HostPlan goes in, a HostReport comes out. Both transports and both sides speak this.

A leaf: imports nothing of ours, so that a host needs neither Pulumi nor the loop. On the wire it is camelCase JSON:
`ProcessPlan` is the `spec` and `ProcessReport` the `status` of a `HostProcess` object (herdsman.dev/v1alpha1).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

ANNOTATION_FENCED = "herdsman.dev/fenced"
"""On a host's Lease: the loop called it lost. Its agent takes this off once nothing runs that is not in its plan."""
ANNOTATION_ENDPOINT = "herdsman.dev/endpoint"
"""On a HostProcess: an `EndpointNotice` as JSON. The loop writes it; an agent may not."""
LABEL_HOST = "herdsman.dev/host"
"""On a HostProcess and on a host's Lease: the name of the host."""
AGENT_FIELD_MANAGER = "herdsman-agent"
"""Field manager of what a host says, and of the Services and EndpointSlices of hosts."""

DRAIN_TIMEOUT_S = 30.0


class Wire(BaseModel):
    """A frozen value on the wire: camelCase names, unknown fields refused where we parse plans."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class FilePlan(Wire):
    """A file that must be in the host's store before the process starts."""

    source: str
    """`http(s)://…`, `s3://bucket/key`, `file:///…`, an absolute path on the host, or, with `directory`, a repository
    `hf://org/name[@revision]`."""
    cache_key: str
    """The directory of the store that holds the file."""
    file_name: str
    """Below the directory; a file of a set may have folders in its name."""
    sha256: str | None = None
    size_bytes: int | None = None
    directory: bool | None = None
    """True: what stands for it in `argv` is the directory of its set, `<store>/<cache key>`, and not the file."""


class SecretReference(Wire):
    """One key of a Secret in the namespace of the HostProcess. The reference travels; the value never does."""

    secret: str
    """Name of the Secret."""
    key: str
    optional: bool | None = None
    """True: where the Secret or the key does not exist, the process starts without the variable."""


class IdleQuestion(Wire):
    """How to learn by one GET whether a process works on a request (`program.runtimes.base.IdleProbe`)."""

    path: str
    kind: Literal["slots", "gauge", "status"]
    gauge: str = ""


class ProcessPlan(Wire):
    """One process on one host, ready to run: complete but for the binary, the model's path and the address.

    `argv[0]` is the runtime's binary name (`llama-server`); the supervisor finds it on the host. In every other
    argument the tokens `{model}`, `{host}` and `{port}` stand for the file's path in the store, the address on
    which the host lets it listen, and the port that the supervisor allocated; `{NAME}` for the path of the file of that
    name in `files`. A process that does not listen on `{host}:{port}` never becomes ready, because nobody could reach
    it. None means the runtime's or the host's own choice, and is left out on the wire.
    """

    host: str
    service: str
    """Name of the HostProcess of the service's first replica: with LLMKube's services their own."""
    runtime: Literal["llamacpp", "vllm", "ollama", "omlx", "generic"] = "llamacpp"
    """`ollama` and `omlx` are daemons that processes share: nothing is started for the plan but, where it must be, the
    daemon, and `daemon_model` is loaded into it."""
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    secret_env: dict[str, SecretReference] | None = None
    """Environment variables whose values the host looks up at each start: in files that its owner put there, else in
    the Secret itself. None of them is in `env`."""
    file: FilePlan | None = None
    files: dict[str, FilePlan] | None = None
    """More files, by the name that stands for their path in `argv`: `mmproj`, `draft`, the other files of a set."""
    daemon_model: str | None = None
    """Name of the model in a shared daemon."""
    health_path: str = "/health"
    completion_path: str | None = None
    """Where one real completion proves that the process serves, once per start; None: health alone decides. Chat,
    completion, embedding and ranking paths of the OpenAI kind are understood."""
    service_name: str
    """Name of the Kubernetes Service and EndpointSlice that lead to the process."""
    service_port: int = 8080
    startup_timeout_s: float = 1800.0
    stop_grace_s: float = 30.0
    priority: int = 10000
    """Larger is kept longer when memory is short."""
    eviction_protection: bool = False
    memory_bytes: int | None = None
    """Estimated memory of the process; None when it cannot be known."""
    memory_budget_bytes: int | None = None
    """What this process and those before it may take of the host's memory, instead of the host's own budget."""
    memory_fraction: float | None = None
    """The same as a share of the host's memory; `memory_budget_bytes` wins."""
    memory_check: Literal["enforce", "warn", "off"] | None = None
    """None enforces: a process that does not fit, or whose size is not known, is not started."""
    replica: int | None = None
    """Which replica of the service this is, from 0; None is 0."""
    endpoint_slice: str | None = None
    """Name of the EndpointSlice of a replica above 0; None: `service_name`. Replica 0 keeps the Service."""
    idle: IdleQuestion | None = None
    metrics_path: str | None = None
    drain_timeout_s: float | None = None
    """How long requests under way may take to end before the process is stopped; None is `DRAIN_TIMEOUT_S`."""
    idle_timeout_s: float | None = None
    """Stop the process after so long without a request, and start it at the next one; None: it runs always."""
    wake_timeout_s: float | None = None
    """How long a request may wait for a sleeping process before it is answered 503."""
    max_held_requests: int | None = None
    """How many requests may wait at once; more are answered 503 at once."""
    residency: Literal["pinned", "preferred", "onDemand"] | None = None
    """What may happen to the process when others of its `group` want its memory: nothing, it gives way and comes back
    by itself, or it runs only while it is asked for. None: it does not take part."""
    group: str | None = None
    """Processes of one group on one host share its memory in turns."""
    min_dwell_s: float | None = None
    """How long a process stays once it was started, whoever else wants its place."""


class Accelerator(Wire):
    """What computes on a host beside its processors."""

    type: Literal["metal", "cuda", "rocm", "vulkan", "intel"]
    name: str = ""
    count: int = 1
    memory_bytes: int | None = None
    """Memory that models may take there, of all `count` together; on Apple silicon the recommended working set."""


class ProcessPhase(StrEnum):
    """Where a process is in its life on the host."""

    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    STARTING = "Starting"
    READY = "Ready"
    UNHEALTHY = "Unhealthy"
    BACKING_OFF = "BackingOff"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    ASLEEP = "Asleep"
    """Stopped for want of requests; the next one starts it."""


class ProcessReason(StrEnum):
    """Why a process is in its phase, as far as the supervisor and the registration know it.

    Failed downloads add the reasons of `agent.sources.errors`.
    """

    RUNTIME_MISSING = "RuntimeMissing"
    """The binary of `argv[0]` is not on the host."""
    LAUNCH_FAILED = "LaunchFailed"
    """The operating system refused to start the process, or no port was free."""
    EXITED = "ProcessExited"
    """The process ended by itself and is started again after a back-off."""
    CRASH_LOOP = "CrashLoop"
    """The process ended too often in too short a time; only a changed plan starts it again."""
    STARTUP_TIMEOUT = "StartupTimeout"
    NOT_RESPONDING = "NotResponding"
    """The health check fails."""
    COMPLETION_FAILED = "CompletionFailed"
    """Health is good and a real completion fails."""
    REPLACING = "Replacing"
    """The plan changed: the old process stops before the new one starts."""
    FOREIGN_SERVICE = "ForeignService"
    """A Service or EndpointSlice of the name exists and is not ours."""
    REGISTRATION_FAILED = "RegistrationFailed"
    """The API server refused the Service or the EndpointSlice."""
    ADDRESS_REFUSED = "AddressRefused"
    """The loop leads no Service to the address or the port that the host names."""
    ADDRESS_NOT_ANSWERING = "AddressNotAnswering"
    """The process serves, and nobody answers at the address that the Service leads to."""
    PLAN_INVALID = "PlanInvalid"
    """The plan could not be read."""
    NOT_ALLOWED = "NotAllowed"
    """The host's owner does not allow what the plan asks for."""
    RUNTIME_TOO_OLD = "RuntimeTooOld"
    """The binary does not know an argument of the plan."""
    SECRET_UNAVAILABLE = "SecretUnavailable"  # noqa: S105 - a reason
    """The value of an environment variable of `secret_env` cannot be had."""
    DAEMON_UNREACHABLE = "DaemonUnreachable"
    """The shared daemon does not answer."""
    MODEL_LOAD_FAILED = "ModelLoadFailed"
    """The shared daemon refused the model."""
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    """What runs already leaves too little of the host's budget."""
    MEMORY_UNKNOWN = "MemoryUnknown"
    """Nobody can tell how much memory the process will take, and the check is enforced."""
    EVICTED = "Evicted"
    """Stopped because the host was short of memory; it comes back when the pressure is over."""
    SWAPPED_OUT = "SwappedOut"
    """Another process of its group has its memory."""
    IDLE = "Idle"
    """Stopped after its idle timeout."""
    HOST_LOST = "HostLost"
    """The host does not say any more that it lives."""


class ProcessReport(Wire):
    """What the host says of one process."""

    phase: ProcessPhase
    reason: str = ""
    """CamelCase, closed list: `ProcessReason`, or a reason of `agent.sources.errors`; empty when all is well."""
    message: str = ""
    observed_generation: int = 0
    pid: int | None = None
    port: int | None = None
    address: str | None = None
    restarts: int = 0
    downloaded_bytes: int | None = None
    total_bytes: int | None = None
    started_at: str | None = None
    """RFC 3339, UTC."""
    ready: bool = False
    memory_bytes: int | None = None
    """What the process was admitted with: its estimate; None where none was made."""


class HostProcessStatus(ProcessReport):
    """The status of a HostProcess: the report, and who made it."""

    host: str | None = None
    """The host that reports. It differs from the spec's host while a process moves; None: an older agent."""


_SERVES_STILL = (ProcessReason.REGISTRATION_FAILED, ProcessReason.FOREIGN_SERVICE, ProcessReason.ADDRESS_REFUSED)


def claims_to_serve(status: Mapping[str, Any]) -> bool:
    """Tell whether the status of a HostProcess asks for an endpoint.

    With some reasons a process serves and only its endpoint is missing: an agent repeats what the notice says, and an
    older agent, which writes Services itself, says so when it has lost the right to.
    """
    if status.get("ready"):
        return True
    return status.get("phase") == ProcessPhase.READY and status.get("reason") in _SERVES_STILL


class EndpointNotice(BaseModel):
    """What the loop did with the endpoint of a HostProcess; the answer to the last status that it read."""

    model_config = ConfigDict(frozen=True)

    ready: bool = False
    """True from before the endpoint is made ready until after it was taken out."""
    reason: str = ""
    """Why the endpoint cannot be published: a `ProcessReason`."""
    message: str = ""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> EndpointNotice | None:
        """Read the notice of a HostProcess; None where there is none that can be read."""
        text = (metadata.get("annotations") or {}).get(ANNOTATION_ENDPOINT)
        try:
            return cls.model_validate_json(text) if text else None
        except ValidationError:
            return None


class ProcessUsage(Wire):
    """What a process uses at one moment; None where it cannot be measured."""

    rss_bytes: int | None = None
    footprint_bytes: int | None = None
    """macOS: memory that is the process's alone, Metal's buffers included; elsewhere the unique set size."""
    cpu_percent: float | None = None
    """Of one core."""
    tokens_per_second: float | None = None
    slots: int | None = None
    slots_busy: int | None = None


class HostPlan(Wire):
    """All that a host should run; what is not in the plan is stopped."""

    host: str
    processes: dict[str, ProcessPlan] = Field(default_factory=dict)
    """By `namespace/name`."""


class MemoryPressure(StrEnum):
    """How short of memory a host is."""

    NORMAL = "Normal"
    WARNING = "Warning"
    CRITICAL = "Critical"


class HostFacts(Wire):
    """What a host is; measured by its agent or over SSH, kept in the status of its Host object."""

    host: str
    address: str
    os: str
    arch: str
    memory_bytes: int
    cpus: int
    agent_version: str
    runtimes: dict[str, str] = Field(default_factory=dict)
    """Runtime name to version, for each binary found."""
    labels: dict[str, str] = Field(default_factory=dict)
    accelerators: tuple[Accelerator, ...] = ()
    memory_budget_bytes: int | None = None
    """What all processes together may take; None while nobody has worked it out."""
    memory_pressure: MemoryPressure = MemoryPressure.NORMAL
    memory_note: str = ""
    """Who says what the budget is, and what is done, or not, about pressure; for people."""
    endpoint: str = ""
    """URL of the agent's API, where it listens beyond loopback."""
    tls_fingerprint: str = ""
    """SHA-256 of the API's certificate (DER), hex: clients may pin it."""


class LogPiece(Wire):
    """A part of a process's log, and where the next one begins."""

    text: str
    offset: int
    """Bytes from the file's start to behind `text`: ask for what follows from here."""


class HostReport(Wire):
    """All that a host runs."""

    facts: HostFacts
    processes: dict[str, ProcessReport] = Field(default_factory=dict)
    usage: dict[str, ProcessUsage] = Field(default_factory=dict)
    """By the keys of `processes`, of those that run."""
