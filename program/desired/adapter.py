"""A LoRA adapter of a service, and what its replicas said of it.

`program.dialects.llmkube` parses the custom resource and writes its status; `automation.serving.adapters` decides and
acts; the gateway has the names and the replicas from the same object.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from program.desired.base import FrozenModel
from program.desired.facts import Problem


class Adapter(FrozenModel):
    """One adapter, as its custom resource describes it."""

    namespace: str
    resource: str
    """Name of the custom resource."""
    uid: str
    created: str
    """When the custom resource was created, as the API server writes times."""
    service: str
    """Name of the InferenceService, in the same namespace."""
    name: str
    """The name that clients and the engine use."""
    path: str

    @property
    def claim(self) -> tuple[str, str, str]:
        """What only one adapter may have: namespace, service and name."""
        return self.namespace, self.service, self.name


class AdapterReason(StrEnum):
    """The closed list of reasons of Ready, Reconciling, Stalled and Loaded on a LoRAAdapter."""

    LOADED = "Loaded"
    """All running replicas have loaded the adapter."""
    LOADING = "Loading"
    """Replicas are loading the adapter."""
    NO_REPLICA = "NoReplica"
    """No replica of the service runs: it starts, it is stopped, or it sleeps."""
    UNLOADING = "Unloading"
    """The adapter is being deleted, and replicas still have it."""
    LOAD_UNSUCCESSFUL = "LoadUnsuccessful"
    """The engine refuses the adapter. The message has the engine's answer."""
    REPLICA_UNREACHABLE = "ReplicaUnreachable"
    """A replica does not answer. Herdsman tries again."""
    SERVICE_NOT_FOUND = "InferenceServiceNotFound"
    """There is no such InferenceService in the adapter's namespace."""
    SERVICE_NOT_MANAGED = "InferenceServiceNotManaged"
    """Another controller manages the InferenceService."""
    POLICY_VIOLATED = "PolicyViolated"
    """A mandatory policy does not allow the adapter. No replica is asked to load it."""
    SPEC_INVALID = "SpecInvalid"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    """The spec names a service of another namespace."""
    NAME_TAKEN = "NameTaken"
    """An older LoRAAdapter of the service, or the service's own model, has this name."""
    RUNTIME_MISMATCH = "RuntimeMismatch"
    """The service's engine cannot serve adapters."""
    HOSTS_NOT_SUPPORTED = "HostsNotSupported"
    """The service runs on hosts. Adapters are loaded into pods only."""
    RUNTIME_LOADING_DISABLED = "RuntimeLoadingDisabled"
    """The engine was started without the setting that allows adapters to be loaded while it runs."""
    NOT_IN_ARGUMENTS = "NotInArguments"
    """llama-server loads adapters only at its start, and its arguments lack this one, or `--cache-ram 0`."""
    ENGINE_KEY_NOT_READABLE = "EngineKeyNotReadable"
    """The engine requires an API key, and the loop cannot read its Secret."""
    ENGINE_KEY_REFUSED = "EngineKeyRefused"
    """The engine refuses the API key of the Secret."""


NEEDS_A_PERSON = frozenset(
    {
        AdapterReason.SPEC_INVALID,
        AdapterReason.NAMESPACE_NOT_ALLOWED,
        AdapterReason.NAME_TAKEN,
        AdapterReason.RUNTIME_MISMATCH,
        AdapterReason.HOSTS_NOT_SUPPORTED,
        AdapterReason.RUNTIME_LOADING_DISABLED,
        AdapterReason.NOT_IN_ARGUMENTS,
        AdapterReason.ENGINE_KEY_NOT_READABLE,
        AdapterReason.ENGINE_KEY_REFUSED,
        AdapterReason.SERVICE_NOT_MANAGED,
        AdapterReason.POLICY_VIOLATED,
    }
)
"""Waiting does not help against these."""


class AdapterOutcome(FrozenModel):
    """What one replica said of an adapter."""

    state: Literal["loaded", "absent", "failed", "waiting"]
    """waiting: another request to the replica is under way, so that it was not asked."""
    adapter_id: int | None = None
    """Number by which llama-server knows the adapter."""
    reason: AdapterReason = AdapterReason.LOADED
    message: str = ""
    tries: int = 1
    """Failures in a row."""


class AdapterReplica(FrozenModel):
    """The adapter in one running replica."""

    pod: str
    outcome: AdapterOutcome | None = None
    """None until the first answer."""


class AdapterFacts(FrozenModel):
    """Everything that the status of an adapter is made from."""

    replicas: tuple[AdapterReplica, ...] = ()
    problem: Problem | None = None
    """Why no replica is asked to load the adapter."""
    unloading: bool = False
