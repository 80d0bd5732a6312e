"""The contract with a host: the loop sends a HostPlan and receives a HostReport, over HTTP, SSH or the Kubernetes API.

Imports no other module of the project: a host needs neither Pulumi nor the loop. On the wire it is camelCase JSON:
`ProcessPlan` is the `spec` and `ProcessReport` the `status` of a `HostProcess` object (herdsman.dev/v1alpha1).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

ANNOTATION_FENCED = "herdsman.dev/fenced"
"""On a host's Lease: the loop considers the host lost. The agent removes the annotation
when every running process is in its plan."""
ANNOTATION_ENDPOINT = "herdsman.dev/endpoint"
"""On a HostProcess: an `EndpointNotice` as JSON. Only the loop may write it."""
LABEL_HOST = "herdsman.dev/host"
"""On a HostProcess and on a host's Lease: the name of the host."""
AGENT_FIELD_MANAGER = "herdsman-agent"
"""Field manager of the status that a host reports, and of the Services and EndpointSlices of hosts."""

DRAIN_TIMEOUT_S = 30.0


class Wire(BaseModel):
    """A frozen value on the wire, with camelCase names. Parsing fails on unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class FilePlan(Wire):
    """A file that must be in the host's store before the process starts."""

    source: str
    """`http(s)://…`, `s3://bucket/key`, `file:///…`, an absolute path on the host, or, with `directory`, a repository
    `hf://org/name[@revision]`."""
    cache_key: str
    """The directory of the store that holds the file."""
    file_name: str
    """Path below that directory; a file of a set may include folders."""
    sha256: str | None = None
    size_bytes: int | None = None
    directory: bool | None = None
    """True: the token in `argv` is replaced by the directory of the set, `<store>/<cache key>`, instead of the path of
    the file."""


class SecretReference(Wire):
    """One key of a Secret in the namespace of the HostProcess. The plan carries this reference, never the value."""

    secret: str
    """Name of the Secret."""
    key: str
    optional: bool | None = None
    """True: if the Secret or the key does not exist, the process starts without the variable."""


class IdleQuestion(Wire):
    """The GET request that shows whether a process works on a request (`program.runtimes.base.IdleProbe`)."""

    path: str
    kind: Literal["slots", "gauge", "status"]
    gauge: str = ""


class ProcessPlan(Wire):
    """One process on one host. The host adds only the binary, the model's path and the address.

    `argv[0]` is the name of the runtime's binary (`llama-server`), which the supervisor finds on the host. In the other
    arguments the supervisor replaces these tokens:
    - `{model}`: the path of the model's file in the store
    - `{host}`: the address on which the host lets the process listen
    - `{port}`: the port that the supervisor allocated
    - `{NAME}`: the path of the file with that name in `files`

    A process that does not listen on `{host}:{port}` never becomes ready, because clients could not reach it. A field
    that is None is absent on the wire, and the runtime or the host chooses the value.
    """

    host: str
    service: str
    """Name of the HostProcess of the service's first replica. For services of LLMKube it is the service's own name."""
    runtime: Literal["llamacpp", "vllm", "ollama", "omlx", "generic"] = "llamacpp"
    """`ollama` and `omlx` are daemons that several processes share. For such a plan the agent starts the daemon if
    necessary and loads `daemon_model` into it."""
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    secret_env: dict[str, SecretReference] | None = None
    """Environment variables that are not in `env`. At each start the host reads their values from files that the host's
    owner put there, else from the Secret."""
    file: FilePlan | None = None
    files: dict[str, FilePlan] | None = None
    """More files, by the name of their token in `argv`: `mmproj`, `draft`, the other files of a set."""
    daemon_model: str | None = None
    """Name of the model in a shared daemon."""
    health_path: str = "/health"
    completion_path: str | None = None
    """Path for one real completion, sent once per start, which must succeed before the process is ready. None: the
    health check suffices. Chat, completion, embedding and ranking paths of the OpenAI API are supported."""
    service_name: str
    """Name of the Kubernetes Service and EndpointSlice that lead to the process."""
    service_port: int = 8080
    startup_timeout_s: float = 1800.0
    stop_grace_s: float = 30.0
    priority: int = 10000
    """When memory is short, processes with a smaller value are stopped first."""
    eviction_protection: bool = False
    memory_bytes: int | None = None
    """Estimated memory of the process; None when it cannot be known."""
    memory_budget_bytes: int | None = None
    """Upper limit for the memory of this process and those admitted before it, instead of the host's own budget."""
    memory_fraction: float | None = None
    """The same limit as a share of the host's memory. `memory_budget_bytes` takes precedence."""
    memory_check: Literal["enforce", "warn", "off"] | None = None
    """None means `enforce`: a process that does not fit, or whose size is unknown, is not started."""
    replica: int | None = None
    """Index of the replica in the service, from 0. None means 0."""
    endpoint_slice: str | None = None
    """Name of the EndpointSlice of a replica above 0. None: `service_name`. The Service belongs to replica 0."""
    idle: IdleQuestion | None = None
    metrics_path: str | None = None
    drain_timeout_s: float | None = None
    """How long running requests may take to end before the process is stopped. None means `DRAIN_TIMEOUT_S`."""
    idle_timeout_s: float | None = None
    """Stop the process after this time without a request, and start it at the next request. None: it always runs."""
    wake_timeout_s: float | None = None
    """How long a request may wait for a sleeping process before it gets a 503 response."""
    max_held_requests: int | None = None
    """How many requests may wait at the same time. Further requests get a 503 response immediately."""
    residency: Literal["pinned", "preferred", "onDemand"] | None = None
    """How the process gives way when others of its `group` need the memory. `pinned`: it keeps running. `preferred`: it
    is stopped and starts again by itself. `onDemand`: it runs only while there are requests for it. None: it does not
    take part."""
    group: str | None = None
    """Processes of one group on one host take turns in the same memory."""
    min_dwell_s: float | None = None
    """Minimum time for which a started process keeps its memory, even if another process of the group needs it."""


class Accelerator(Wire):
    """A GPU or another device on a host that computes besides the CPUs."""

    type: Literal["metal", "cuda", "rocm", "vulkan", "intel"]
    name: str = ""
    count: int = 1
    memory_bytes: int | None = None
    """Memory for models on all `count` devices together. On Apple silicon it is the recommended working set size."""


class ProcessPhase(StrEnum):
    """The phase of a process on its host."""

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
    """Stopped because it had no requests. The next request starts it."""


class ProcessReason(StrEnum):
    """Why a process is in its phase, as the supervisor and the registration know it.

    Failed downloads have the reasons of `agent.sources.errors`.
    """

    RUNTIME_MISSING = "RuntimeMissing"
    """The binary of `argv[0]` is not on the host."""
    LAUNCH_FAILED = "LaunchFailed"
    """The operating system refused to start the process, or no port was free."""
    EXITED = "ProcessExited"
    """The process ended by itself. It starts again after a back-off."""
    CRASH_LOOP = "CrashLoop"
    """The process ended too often in a short time. It starts again only after its plan changes."""
    STARTUP_TIMEOUT = "StartupTimeout"
    NOT_RESPONDING = "NotResponding"
    """The health check fails."""
    COMPLETION_FAILED = "CompletionFailed"
    """The health check succeeds, but a real completion fails."""
    REPLACING = "Replacing"
    """The plan changed. The old process stops before the new one starts."""
    FOREIGN_SERVICE = "ForeignService"
    """A Service or EndpointSlice of this name exists, and Herdsman did not create it."""
    REGISTRATION_FAILED = "RegistrationFailed"
    """The API server refused the Service or the EndpointSlice."""
    ADDRESS_REFUSED = "AddressRefused"
    """The loop does not publish the address or the port that the host reports."""
    ADDRESS_NOT_ANSWERING = "AddressNotAnswering"
    """The process serves, but the address in the Service does not answer."""
    PLAN_INVALID = "PlanInvalid"
    """The agent could not parse the plan."""
    NOT_ALLOWED = "NotAllowed"
    """The host's owner does not allow something that the plan requests."""
    RUNTIME_TOO_OLD = "RuntimeTooOld"
    """The binary does not accept an argument of the plan."""
    SECRET_UNAVAILABLE = "SecretUnavailable"  # noqa: S105 - a reason
    """The value of a variable in `secret_env` is not available."""
    DAEMON_UNREACHABLE = "DaemonUnreachable"
    """The shared daemon does not answer."""
    MODEL_LOAD_FAILED = "ModelLoadFailed"
    """The shared daemon could not load the model."""
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    """The running processes leave too little of the host's memory budget."""
    MEMORY_UNKNOWN = "MemoryUnknown"
    """The memory that the process needs is unknown, and the memory check is enforced."""
    EVICTED = "Evicted"
    """Stopped because the host was short of memory. It starts again when the memory pressure has ended."""
    SWAPPED_OUT = "SwappedOut"
    """Another process of its group uses the memory."""
    IDLE = "Idle"
    """Stopped after its idle timeout."""
    HOST_LOST = "HostLost"
    """The host no longer renews its heartbeat."""


class EarlierProcess(Wire):
    """A process of an earlier plan, which serves until the files of the present plan are on the host."""

    phase: ProcessPhase
    """The phase of that process. The phase of the report is that of the present plan."""
    adapters: tuple[str, ...] | None = None
    """The LoRA adapters of that process in the order of llama-server's numbers: names of tokens in `argv`, or paths.
    None if they are unknown."""


class ProcessReport(Wire):
    """The state of one process, as its host reports it."""

    phase: ProcessPhase
    reason: str = ""
    """CamelCase, from a closed list: `ProcessReason`, or a reason of `agent.sources.errors`. Empty when there is no
    problem."""
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
    """The estimated memory with which the process was admitted. None: no estimate was made."""
    earlier: EarlierProcess | None = None
    """The process that runs, if it is that of an earlier plan and serves until the files of this plan are there."""

    @property
    def running_phase(self) -> ProcessPhase:
        """The phase of the process that runs, whether it is of the present plan or of an earlier one."""
        return self.earlier.phase if self.earlier is not None else self.phase


class HostProcessStatus(ProcessReport):
    """The status of a HostProcess: the report and the name of the host that wrote it."""

    host: str | None = None
    """The host that reports. It differs from the spec's host while a process moves. None: written by an older agent."""


_SERVES_STILL = (ProcessReason.REGISTRATION_FAILED, ProcessReason.FOREIGN_SERVICE, ProcessReason.ADDRESS_REFUSED)


def claims_to_serve(status: Mapping[str, Any]) -> bool:
    """Return whether the status of a HostProcess requests an endpoint.

    With the reasons in `_SERVES_STILL` the process serves and only its endpoint is missing. An agent copies these
    reasons from the notice. An older agent, which writes Services itself, reports them when it has lost the permission
    to do so.
    """
    if status.get("ready"):
        return True
    return status.get("phase") == ProcessPhase.READY and status.get("reason") in _SERVES_STILL


class EndpointNotice(BaseModel):
    """The state of a HostProcess's endpoint, written by the loop in answer to the last status that it read."""

    model_config = ConfigDict(frozen=True)

    ready: bool = False
    """True from before the endpoint becomes ready until after it is removed."""
    reason: str = ""
    """Why the endpoint cannot be published, a `ProcessReason`."""
    message: str = ""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> EndpointNotice | None:
        """Parse the notice of a HostProcess. Returns None if it is absent or invalid."""
        text = (metadata.get("annotations") or {}).get(ANNOTATION_ENDPOINT)
        try:
            return cls.model_validate_json(text) if text else None
        except ValidationError:
            return None


class ProcessUsage(Wire):
    """The current resource usage of a process. A value is None if it cannot be measured."""

    rss_bytes: int | None = None
    footprint_bytes: int | None = None
    """On macOS, the physical footprint of the process, including Metal buffers. Elsewhere, the unique set size."""
    cpu_percent: float | None = None
    """100 is one core."""
    tokens_per_second: float | None = None
    slots: int | None = None
    slots_busy: int | None = None


class HostPlan(Wire):
    """All processes that a host should run. The host stops every other process."""

    host: str
    processes: dict[str, ProcessPlan] = Field(default_factory=dict)
    """By `namespace/name` of the HostProcess."""


class MemoryPressure(StrEnum):
    """How short of memory a host is."""

    NORMAL = "Normal"
    WARNING = "Warning"
    CRITICAL = "Critical"


class HostFacts(Wire):
    """The properties of a host, measured by its agent or over SSH, and kept in the status of its Host object."""

    host: str
    address: str
    os: str
    arch: str
    memory_bytes: int
    cpus: int
    agent_version: str
    runtimes: dict[str, str] = Field(default_factory=dict)
    """Runtime name to version, for each binary that was found."""
    labels: dict[str, str] = Field(default_factory=dict)
    accelerators: tuple[Accelerator, ...] = ()
    memory_budget_bytes: int | None = None
    """Memory that all processes together may use. None: not calculated yet."""
    memory_pressure: MemoryPressure = MemoryPressure.NORMAL
    memory_note: str = ""
    """For people: where the budget comes from, and how the host handles memory pressure."""
    endpoint: str = ""
    """URL of the agent's API, if it listens on more than loopback."""
    tls_fingerprint: str = ""
    """SHA-256 of the API's certificate (DER) in hex. Clients may pin it."""


class LogPiece(Wire):
    """A part of a process's log, and the offset of the next part."""

    text: str
    offset: int
    """Byte position after `text`, from the start of the file. The next request starts there."""


class HostReport(Wire):
    """All processes that a host runs."""

    facts: HostFacts
    processes: dict[str, ProcessReport] = Field(default_factory=dict)
    usage: dict[str, ProcessUsage] = Field(default_factory=dict)
    """By the keys of `processes`, for running processes only."""
