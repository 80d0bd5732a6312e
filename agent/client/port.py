"""What any way to a host can do: hand over the plan of a process, take it back, and say how all is.

Implemented by `agent.client.http` (an agent's HTTP API); called by `components.providers.host_plugin` and the CLI.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agent.contract import HostPlan, HostReport, ProcessPlan, ProcessReport


class HostError(Exception):
    """A host did not do what it was asked. `reason` is CamelCase; `message` is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class HostUnreachable(HostError):
    """No answer came; whether the request took effect is unknown. Trying again is safe."""


class HostRefused(HostError):
    """The host answered no: an invalid plan, a wrong token, a plan that comes from elsewhere."""


class ProcessNotFound(HostRefused):
    """The host has no process of this key."""


@dataclass(frozen=True)
class ProcessState:
    """One process: what is wanted and what is. `plan` is None while it is being removed.

    The report speaks of this plan once its `observed_generation` is `generation`.
    """

    plan: ProcessPlan | None
    report: ProcessReport
    generation: int = 0


class HostClient(Protocol):
    """One host. Keys are `namespace/name`. Every method may raise HostError."""

    def plan(self) -> HostPlan:
        """Give all that the host should run."""
        ...

    def report(self) -> HostReport:
        """Give what the host is and all that it runs."""
        ...

    def get(self, key: str) -> ProcessState:
        """Give one process. Raises ProcessNotFound."""
        ...

    def put(self, key: str, plan: ProcessPlan) -> ProcessState:
        """Want a process to run so; the same plan again changes nothing. Returns at once, before it runs."""
        ...

    def delete(self, key: str) -> None:
        """Want a process gone; no error when it is. Returns at once, before it has stopped."""
        ...
