"""The protocol between the everyday commands and the place where services run.

A place is a cluster (`automation.places.cluster`) or this machine alone (`automation.local.place`). The commands know
nothing else about either. All methods raise PlaceError with a message for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kubeapi.json_types import Json


class PlaceError(Exception):
    """What a place refuses or cannot do. The message says what is wrong, `hint` what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NoSuchService(PlaceError):
    """The named service does not exist there, or the name means several services."""


class NoAccess(PlaceError):
    """The place refuses the caller, or cannot be reached."""


class State(StrEnum):
    """What a service is doing, for the commands. The `phase` of a service has the API's own word."""

    READY = "ready"
    STARTING = "starting"
    """It is being made, downloads its model, or loads it."""
    WAITING = "waiting"
    """It waits for something that it does not control: a GPU, memory, an approval."""
    ASLEEP = "asleep"
    """It has no running replica, and the first request starts one."""
    STOPPED = "stopped"
    FAILED = "failed"
    """It does not become ready without a change."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Download:
    """The download of a service's model files."""

    done_bytes: int
    total_bytes: int | None = None


@dataclass(frozen=True)
class ServiceState:
    """One service as its place shows it."""

    namespace: str
    name: str
    state: State
    phase: str
    reason: str = ""
    message: str = ""
    """Why it is not ready; empty when it is."""
    model: str = ""
    kind: str = ""
    """Empty for an InferenceService."""
    ready_replicas: int = 0
    desired_replicas: int = 0
    context_size: int | None = None
    """Tokens of context for one request; None where the place does not know it."""
    runs_on: str = ""
    endpoint: str = ""
    is_current: bool = True
    """Whether this state is of the service's latest spec."""
    download: Download | None = None
    document: Json = field(default_factory=dict, repr=False)
    """The custom resource."""


@dataclass(frozen=True)
class Reached:
    """An OpenAI API that answers for one service while its context is open."""

    base_url: str
    """Ends in `/v1`."""
    model: str
    """The value of `model` in requests."""
    how: str
    """For people: `port-forward to pod chat-0`."""
    key: str = field(default="", repr=False)
    """Sent as a bearer token; empty for none."""
    ca_file: str = ""
    """CA certificates for https; empty for those of the system."""
    is_gateway: bool = False
    """Whether a gateway answers, which knows all services and wakes the sleeping ones."""


@dataclass(frozen=True)
class PlannedChange:
    """What applying documents would do."""

    text: str
    """A report for people; its parts are clean for a terminal."""
    has_changes: bool


class Place(Protocol):
    """A place where services run."""

    @property
    def title(self) -> str:
        """Name the place in messages: `cluster kind-dev`, `this machine`."""

    @property
    def default_namespace(self) -> str:
        """Return the namespace of commands that name none."""

    def services(self, namespace: str | None) -> list[ServiceState]:
        """Return the services of a namespace, or of all."""

    def find(self, name: str, namespace: str | None = None) -> ServiceState:
        """Return a service by `NAME` or `KIND/NAME`. Raises NoSuchService, with near names in its hint."""

    def document(self, kind: str, name: str, namespace: str) -> Json | None:
        """Return a Model or InferenceService as the place has it; None without one."""

    def plan(self, documents: Sequence[Json]) -> PlannedChange:
        """Return what applying the documents would change. Changes nothing."""

    def apply(self, documents: Sequence[Json]) -> None:
        """Create or update Models and services. Fields that the documents do not name stay as they are."""

    def scale(self, service: ServiceState, replicas: int) -> str:
        """Change the number of replicas. Returns a note for people, such as an autoscaler that owns the number."""

    def stop(self, service: ServiceState) -> None:
        """End all replicas; the number of replicas is kept for `start`."""

    def start(self, service: ServiceState) -> None:
        """Start a stopped service again."""

    def delete(self, service: ServiceState, *, purge: bool = False) -> str:
        """Delete a service, and its Model where no other service uses it; with `purge` also the model's files.

        Returns what was deleted, for people.
        """

    def reach(self, service: ServiceState) -> AbstractContextManager[Reached]:
        """Open a way to the service's OpenAI API: nobody needs `kubectl port-forward`."""

    def watch(self, service: ServiceState, *, pause_s: float) -> ServiceState:
        """Wait for a change of the service, at most this long, and return its state. NoSuchService: it was deleted."""
