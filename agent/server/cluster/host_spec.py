"""What people say of a host in its Host object, for the parts of an agent that heed it.

Kept current by `agent.server.cluster.host_object`; read by whoever was put on `on_change` in `agent.server.main`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from program.desired.errors import SpecInvalid
from program.desired.quantities import bytes_of

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class HostSpec:
    """The spec of a Host, as far as its agent heeds it; None: nothing is said."""

    memory_budget_bytes: int | None = None
    memory_fraction: float | None = None
    pressure_warning: float = 0.20
    pressure_critical: float = 0.10
    eviction: bool = False
    store_bytes: int | None = None
    """Most that downloaded models may take on disk."""
    unschedulable: bool = False
    drain: bool = False
    address: str = ""
    """Where Services lead to, if the owner of the host says so."""
    generation: int = 0


def read_host_spec(host: Mapping[str, Any]) -> HostSpec:
    """Read a Host. Raises SpecInvalid for a quantity that is none: the schema has checked all else."""
    spec = host.get("spec") or {}
    pressure = spec.get("memoryPressure") or {}
    return HostSpec(
        memory_budget_bytes=bytes_of(spec.get("memoryBudget"), field="spec.memoryBudget"),
        memory_fraction=spec.get("memoryFraction"),
        pressure_warning=float(pressure.get("warning", HostSpec.pressure_warning)),
        pressure_critical=float(pressure.get("critical", HostSpec.pressure_critical)),
        eviction=bool(pressure.get("eviction", False)),
        store_bytes=bytes_of(spec.get("storeSize"), field="spec.storeSize"),
        unschedulable=bool(spec.get("unschedulable")),
        drain=bool(spec.get("drain")),
        address=str(spec.get("address") or ""),
        generation=int(host["metadata"].get("generation") or 0),
    )


class HostSpecWatch:
    """The spec as they are now. `on_change` is called in one thread, each time that they have changed."""

    def __init__(self) -> None:
        self.current = HostSpec()
        self.on_change: list[Callable[[HostSpec], None]] = []
        self.on_allowance: list[Callable[[Mapping[str, Any]], None]] = []
        """Are told `spec.allow` each time that the Host object was read, also where it says nothing new."""

    def allow(self, said: Mapping[str, Any]) -> None:
        """Pass on what services may ask of the host; `{}` also where the cluster has no Host objects."""
        for listener in self.on_allowance:
            listener(said)

    def update(self, host: Mapping[str, Any] | None) -> None:
        """Take in the Host object, None when it is gone. One that makes no sense changes nothing.

        What a host allows stays as it was when the object goes.
        """
        if host is not None:
            self.allow((host.get("spec") or {}).get("allow") or {})
        try:
            spec = HostSpec() if host is None else read_host_spec(host)
        except SpecInvalid as error:
            _log.warning("Could not read what is said of this host", error=str(error))
            return
        if spec == self.current:
            return
        self.current = spec
        for listener in self.on_change:
            try:
                listener(spec)
            except Exception:
                _log.exception("Failed to heed what is said of this host")
