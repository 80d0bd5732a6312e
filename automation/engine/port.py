"""The interface of the engine, which applies rendered services.

`batches` and the command line call it. `pulumi_engine.PulumiEngine` implements it, and the fake in
`tests/fakes/engine.py` passes the same contract tests.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from components.rendered import RenderedService
from program.desired.facts import RefusedObject
from program.desired.keys import ServiceKey

APPLY_FAILED = "ApplyFailed"
FOREIGN_OBJECT = "ForeignObject"
STATE_UNREACHABLE = "StateUnreachable"
STATE_LOCKED = "StateLocked"
STATE_SEALED = "StateSealed"
ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"

Op = Literal["create", "update", "replace", "delete", "same"]


@dataclass(frozen=True, order=True)
class Stack:
    """One unit of state and locking: a namespace, or one part of a large one."""

    namespace: str
    shard: int = 0

    @property
    def name(self) -> str:
        """The name in the state backend. Namespaces hold no dots, so the names of parts never clash."""
        return f"{self.namespace}.{self.shard}" if self.shard else self.namespace

    @staticmethod
    def parse(name: str) -> Stack:
        """Read a stack from its name; the inverse of `name`."""
        namespace, _, shard = name.partition(".")
        return Stack(namespace, int(shard) if shard.isdecimal() else 0)


@dataclass(frozen=True)
class Batch:
    """Services of one stack to apply as rendered, and services to remove. All others stay as they are."""

    stack: Stack
    apply: tuple[RenderedService, ...] = ()
    remove: tuple[ServiceKey, ...] = ()

    @property
    def keys(self) -> tuple[ServiceKey, ...]:
        return (*(service.key for service in self.apply), *self.remove)


@dataclass(frozen=True)
class Change:
    """The change of one object that a run made, or a preview found. `paths` are the changed fields, by the provider.

    `details` describe them for users, with the values that are not secret (`differences`).
    """

    urn: str
    kind: str
    name: str
    op: Op
    paths: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


class EngineFailed(Exception):
    """The engine could not do what was requested. `urn` names the object at fault, if it is one object's fault."""

    retry_cap_s = 300.0
    """The longest wait before the next try."""

    def __init__(self, reason: str, message: str, urn: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """One of the above: the reason of a condition. The type of the error is more specific."""
        self.message = message
        self.urn = urn

    def __str__(self) -> str:
        return self.message


APPLIED_WITHOUT = "the service is applied without"
"""The beginning of the message of AccessoriesRefused, also in the result of a revision."""


class AccessoriesRefused(EngineFailed):
    """All objects of a service exist but accessories, without which it can serve: an autoscaler, a route, a monitor."""

    def __init__(self, refused: Sequence[RefusedObject], urn: str | None = None) -> None:
        message = "; ".join(f"{each.kind} {each.name}: {each.message}" for each in refused)
        super().__init__(refused[0].reason, f"{APPLIED_WITHOUT} {message}", urn)
        self.refused = tuple(refused)


class EngineTimeout(EngineFailed):
    """The run was stopped at its timeout. Its changes so far stay, and the next run continues."""

    def __init__(self, message: str) -> None:
        super().__init__(APPLY_FAILED, message)


class EngineCancelled(EngineFailed):
    """The caller stopped the run."""

    def __init__(self, message: str = "the run was cancelled") -> None:
        super().__init__(APPLY_FAILED, message)


class StackLocked(EngineFailed):
    """Another process holds the lock of this stack. Nothing was done; that process or a person must release it."""

    retry_cap_s = 30.0

    def __init__(self, message: str, *, by: str, since: str, foreign: bool = True) -> None:
        super().__init__(STATE_LOCKED, message)
        self.by = by
        """The holder, as user@host (pid)."""
        self.since = since
        """The time in the lock, RFC 3339."""
        self.foreign = foreign


class StateUnreachable(EngineFailed):
    """The state backend does not answer, or refuses access. Nothing was done; it is tried again after a back-off."""

    retry_cap_s = 30.0

    def __init__(self, message: str) -> None:
        super().__init__(STATE_UNREACHABLE, message)


class StateUnreadable(EngineFailed):
    """The backend has an object for the stack that is not a valid state."""

    def __init__(self, message: str) -> None:
        super().__init__(APPLY_FAILED, message)


class StateSealed(EngineFailed):
    """The state holds secrets, and the passphrase does not open them. Nothing was done; a person must decide."""

    def __init__(self, message: str) -> None:
        super().__init__(STATE_SEALED, message)


@dataclass(frozen=True)
class ServiceOutcome:
    """The outcome of a run for one service: `ok` when all its objects are as requested, else `error` says why not."""

    key: ServiceKey
    ok: bool
    changes: tuple[Change, ...] = ()
    error: EngineFailed | None = None


@dataclass(frozen=True)
class BatchOutcome:
    """The outcome of a run. `services` has one entry for each key of the batch."""

    services: Mapping[ServiceKey, ServiceOutcome]
    duration_s: float
    cli_processes: int
    shared: tuple[Change, ...] = ()
    """Changes to objects that belong to no single service (cache claims)."""


@dataclass(frozen=True)
class HistoryEntry:
    """One past run of a stack."""

    version: int
    kind: str
    started: datetime | None
    finished: datetime | None
    succeeded: bool
    changes: Mapping[str, int] = field(default_factory=dict)
    """How many objects, by operation."""


class Engine(Protocol):
    """Applies services, one run of a stack at a time. Thread-safe; calls for one stack wait in line.

    Every method raises EngineFailed or one of its subclasses when the run as a whole fails. The failure of one service
    among several is in its ServiceOutcome.
    """

    def up(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Apply the batch's services as rendered, and remove those to remove.

        A service that is requested again with an unchanged fingerprint is repaired: its objects are read first, so that
        objects that another client deleted or changed are restored.
        """
        ...

    def preview(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Return what `up` would do, without a change of objects."""
        ...

    def destroy(self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Delete all objects of the stack, except retained ones (cache claims), then the stack itself."""
        ...

    def release(
        self,
        stack: Stack,
        keys: Sequence[ServiceKey],
        *,
        timeout_s: float = 600.0,
        cancel: threading.Event | None = None,
    ) -> int:
        """Drop services from the state without a change of their objects. Returns the number of CLI processes.

        Shared objects are dropped with the last service. Services that the stack does not hold are ignored.
        """
        ...

    def drift(
        self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None
    ) -> tuple[Change, ...]:
        """Compare the state with the live objects: `update` is changed, `delete` is gone. Changes nothing."""
        ...

    def history(self, stack: Stack) -> tuple[HistoryEntry, ...]:
        """Return past runs, the newest first. Empty for a stack that does not exist."""
        ...

    def export(self, stack: Stack) -> dict[str, Any]:
        """The stack's state as Pulumi exports it. Empty for a stack that does not exist."""
        ...

    def stacks(self) -> set[Stack]:
        """Every stack that the state backend holds."""
        ...

    def services(self, stack: Stack) -> set[ServiceKey]:
        """The services of which the stack's state still holds objects."""
        ...

    def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
        """How many resources the stack's state holds of each of these services: objects, and components around them."""
        ...

    def discard_stack(self, stack: Stack) -> None:
        """Delete the state of a stack without a change of objects: for a namespace that is deleted with its objects."""
        ...
