"""A LoRA adapter of a service, and what its replicas said of it.

`program.dialects.llmkube` parses the custom resource and writes its status; `automation.serving.adapters` decides and
acts; the gateway has the names and the replicas from the same object.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Literal

from program.desired.base import FrozenModel
from program.desired.facts import Problem
from program.desired.model import DesiredModel

Claim = tuple[str, str, str, str]

FOLDER = "/lora-adapters"
"""The folder of the downloaded adapters in pods."""
DOWNLOADER = "adapter-download-"
"""How the names of the init containers begin that download adapters."""


class AdapterFile(FrozenModel):
    """An adapter that is part of its service: the service is rendered with its files."""

    name: str
    """The name that clients and the engine use."""
    source: DesiredModel
    """Where its files are. Several files form a directory, one file is a GGUF."""
    resource: str = ""
    """Name of the LoRAAdapter, in the namespace of the service."""

    @property
    def digest(self) -> str:
        """Eight hex digits that change with the name and with everything that names the content."""
        source = self.source
        said = "\n".join((self.name, source.source.address, source.sha256 or "", *source.files))
        return hashlib.sha256(said.encode()).hexdigest()[:8]

    @property
    def token(self) -> str:
        """The name of the file in a host's plan, and of the token in its arguments."""
        return f"lora-{self.name}-{self.digest}"

    @property
    def container(self) -> str:
        """The name of the init container that downloads it."""
        return f"{DOWNLOADER}{self.digest}"

    @property
    def directory(self) -> str:
        """The directory of its files in a pod."""
        return f"{FOLDER}/{self.digest}"

    @property
    def pod_path(self) -> str:
        """The path in a pod that the engine loads."""
        return self.directory if self.source.files else f"{self.directory}/adapter.gguf"


class Adapter(FrozenModel):
    """One adapter, as its custom resource describes it."""

    namespace: str
    resource: str
    """Name of the custom resource."""
    uid: str
    created: str
    """When the custom resource was created, as the API server writes times."""
    service: str
    """Name of the service, in the same namespace."""
    dialect: str = "llmkube"
    """Whose kind of service it is: the first part of a `ServiceKey`."""
    name: str
    """The name that clients and the engine use."""
    path: str = ""
    """The path that the user named; empty for an adapter with a source."""
    source: DesiredModel | None = None
    """Where Herdsman downloads the adapter from."""

    @property
    def file(self) -> AdapterFile | None:
        """The files of an adapter with a source."""
        if self.source is None:
            return None
        return AdapterFile(name=self.name, source=self.source, resource=self.resource)

    @property
    def location(self) -> str:
        """The path in a pod that the engine is asked to load."""
        return self.file.pod_path if self.file is not None else self.path

    @property
    def claim(self) -> Claim:
        """What only one adapter may have: namespace, dialect and name of the service, and its own name."""
        return self.namespace, self.dialect, self.service, self.name


class AdapterReason(StrEnum):
    """The closed list of reasons of Ready, Reconciling, Stalled and Loaded on a LoRAAdapter."""

    LOADED = "Loaded"
    """All running replicas have loaded the adapter."""
    LOADING = "Loading"
    """Replicas are loading the adapter."""
    DOWNLOADING = "Downloading"
    """Replicas download the adapter. A replica that is replaced serves without it until then."""
    DOWNLOAD_FAILED = "DownloadFailed"
    """The adapter cannot be downloaded. The message has the cause. Herdsman tries again."""
    RESTART_PENDING = "RestartPending"
    """Replicas were started without the adapter. Herdsman replaces them with replicas that have it."""
    REPLICA_FAILED = "ReplicaFailed"
    """A host cannot start a process with the adapter. The message has the cause."""
    NO_REPLICA = "NoReplica"
    """No replica of the service runs: it starts, it is stopped, or it sleeps."""
    UNLOADING = "Unloading"
    """The adapter is being deleted, and replicas still have it."""
    LOAD_UNSUCCESSFUL = "LoadUnsuccessful"
    """The engine refuses the adapter. The message has the engine's answer."""
    REPLICA_UNREACHABLE = "ReplicaUnreachable"
    """A replica does not answer. Herdsman tries again."""
    SERVICE_NOT_FOUND = "InferenceServiceNotFound"
    """There is no such service in the adapter's namespace."""
    SERVICE_NOT_MANAGED = "InferenceServiceNotManaged"
    """Another controller manages the service."""
    POLICY_VIOLATED = "PolicyViolated"
    """A mandatory policy does not allow the adapter. No replica is asked to load it."""
    SPEC_INVALID = "SpecInvalid"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    """The spec names a service of another namespace."""
    NAME_TAKEN = "NameTaken"
    """An older LoRAAdapter of the service, or the service's own model, has this name."""
    RUNTIME_MISMATCH = "RuntimeMismatch"
    """The service's engine cannot serve adapters."""
    SOURCE_MISMATCH = "SourceMismatch"
    """The engine cannot read the files of the source. llama-server reads one GGUF file, vLLM and SGLang a directory."""
    SOURCE_NOT_SUPPORTED = "SourceNotSupported"
    """Herdsman cannot add arguments to the llama-server of a service of KServe or llmaz. The message has the cause."""
    HOSTS_NOT_SUPPORTED = "HostsNotSupported"
    """The service runs on hosts with another engine than llama-server or vLLM, or is no InferenceService."""
    RUNTIME_LOADING_DISABLED = "RuntimeLoadingDisabled"
    """The engine was started without the setting that allows adapters to be loaded while it runs."""
    NOT_IN_ARGUMENTS = "NotInArguments"
    """llama-server loads adapters only at its start, and its arguments lack this one, or `--cache-ram 0`."""
    ENGINE_KEY_NOT_READABLE = "EngineKeyNotReadable"
    """The engine requires an API key, and the loop cannot read its Secret."""
    KEY_OVER_TLS = "EngineKeyOverTLS"
    """The engine demands an API key over TLS, and its certificate cannot be verified. The message has the cause."""
    ENGINE_KEY_REFUSED = "EngineKeyRefused"
    """The engine refuses the API key of the Secret."""


NEEDS_A_PERSON = frozenset(
    {
        AdapterReason.SPEC_INVALID,
        AdapterReason.NAMESPACE_NOT_ALLOWED,
        AdapterReason.NAME_TAKEN,
        AdapterReason.RUNTIME_MISMATCH,
        AdapterReason.SOURCE_MISMATCH,
        AdapterReason.SOURCE_NOT_SUPPORTED,
        AdapterReason.HOSTS_NOT_SUPPORTED,
        AdapterReason.RUNTIME_LOADING_DISABLED,
        AdapterReason.NOT_IN_ARGUMENTS,
        AdapterReason.ENGINE_KEY_NOT_READABLE,
        AdapterReason.ENGINE_KEY_REFUSED,
        AdapterReason.KEY_OVER_TLS,
        AdapterReason.SERVICE_NOT_MANAGED,
        AdapterReason.POLICY_VIOLATED,
    }
)
"""Waiting does not help against these."""


class AdapterOutcome(FrozenModel):
    """What one replica said of an adapter."""

    state: Literal["loaded", "absent", "failed", "waiting"]
    """waiting: the replica was not asked, because another request to it is under way or because it does not serve."""
    adapter_id: int | None = None
    """Number by which llama-server knows the adapter."""
    reason: AdapterReason = AdapterReason.LOADED
    message: str = ""
    tries: int = 1
    """Failures in a row."""


class AdapterReplica(FrozenModel):
    """The adapter in one running replica."""

    pod: str
    """Name of the pod, or of the HostProcess."""
    host: str = ""
    """The host of a process; empty for a pod."""
    outcome: AdapterOutcome | None = None
    """None until the first answer."""


class AdapterFacts(FrozenModel):
    """Everything that the status of an adapter is made from."""

    replicas: tuple[AdapterReplica, ...] = ()
    problem: Problem | None = None
    """Why no replica is asked to load the adapter."""
    runtime: str = ""
    """The engine of the replicas; empty while it is unknown."""
    unloading: bool = False
