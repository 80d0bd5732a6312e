"""The interface of every transport to a host: set or delete the plan of a process, and read the reports.

Implemented by `agent.client.http` (an agent's HTTP API) and `agent.client.ssh.host`; called by
`components.providers.host_provider` and the CLI.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agent.contract import HostPlan, HostReport, ProcessPlan, ProcessReport


class HostError(Exception):
    """A host did not do what was requested. `reason` is CamelCase; `message` is for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class HostUnreachable(HostError):
    """No answer arrived. It is unknown whether the request took effect; a retry is safe."""


class HostRefused(HostError):
    """The host refused: an invalid plan, a wrong token, or plans that come from another source."""


class ProcessNotFound(HostRefused):
    """The host has no process of this key."""


@dataclass(frozen=True)
class ProcessState:
    """The plan and the report of one process. `plan` is None while the process is being removed.

    The report belongs to this plan once its `observed_generation` equals `generation`.
    """

    plan: ProcessPlan | None
    report: ProcessReport
    generation: int = 0


class HostClient(Protocol):
    """One host. Keys are `namespace/name`. Every method may raise HostError."""

    def plan(self) -> HostPlan:
        """Return the plan of the host."""
        ...

    def report(self) -> HostReport:
        """Return the facts of the host and the reports of its processes."""
        ...

    def get(self, key: str) -> ProcessState:
        """Return one process. Raises ProcessNotFound."""
        ...

    def put(self, key: str, plan: ProcessPlan) -> ProcessState:
        """Run a process with this plan. The same plan again changes nothing. Returns before the process runs."""
        ...

    def delete(self, key: str) -> None:
        """Remove a process. No error if it does not exist. Returns before the process has stopped."""
        ...
