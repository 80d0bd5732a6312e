"""The contract with a host: a HostPlan goes in, a HostReport comes out. Both transports and both sides speak this.

A leaf: imports nothing of ours, so that a host needs neither Pulumi nor the loop. On the wire it is camelCase JSON:
`ProcessPlan` is the `spec` and `ProcessReport` the `status` of a `HostProcess` object (herdsman.dev/v1alpha1).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Wire(BaseModel):
    """A frozen value on the wire: camelCase names, unknown fields refused where we parse plans."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class FilePlan(Wire):
    """A file that must be in the host's store before the process starts."""

    source: str
    """`http(s)://…`, `file:///…` or an absolute path on the host."""
    cache_key: str
    """The directory of the store that holds the file."""
    file_name: str
    sha256: str | None = None
    size_bytes: int | None = None


class ProcessPlan(Wire):
    """One process on one host, ready to run: complete but for the binary, the model's path and the address.

    `argv[0]` is the runtime's binary name (`llama-server`); the supervisor finds it on the host. In every other
    argument the tokens `{model}`, `{host}` and `{port}` stand for the file's path in the store, the address on
    which the host lets it listen, and the port that the supervisor allocated. A process that does not listen on
    `{host}:{port}` never becomes ready, because nobody could reach it.
    """

    host: str
    service: str
    """Name of the InferenceService, in the namespace of the HostProcess object."""
    runtime: Literal["llamacpp", "generic"] = "llamacpp"
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    file: FilePlan | None = None
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


class ProcessReason(StrEnum):
    """Why a process is in its phase, as far as the supervisor and the registration know it.

    Failed downloads add the reasons of `agent.server.errors`.
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
    PLAN_INVALID = "PlanInvalid"
    """The plan could not be read."""


class ProcessReport(Wire):
    """What the host says of one process."""

    phase: ProcessPhase
    reason: str = ""
    """CamelCase, closed list: `ProcessReason`, or a reason of `agent.server.errors`; empty when all is well."""
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


class HostPlan(Wire):
    """All that a host should run; what is not in the plan is stopped."""

    host: str
    processes: dict[str, ProcessPlan] = Field(default_factory=dict)
    """By `namespace/name`."""


class HostFacts(Wire):
    """What a host is; measured by the agent, kept as annotations of its Lease."""

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


class HostReport(Wire):
    """All that a host runs."""

    facts: HostFacts
    processes: dict[str, ProcessReport] = Field(default_factory=dict)
