"""The spec of a Host object, as an agent uses it.

Kept current by `agent.server.cluster.host_object`; read by the listeners that `agent.server.main` adds to `on_change`.
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
    """The fields of a Host's spec that its agent applies. None: not set."""

    memory_budget_bytes: int | None = None
    memory_fraction: float | None = None
    pressure_warning: float = 0.20
    pressure_critical: float = 0.10
    eviction: bool = False
    store_bytes: int | None = None
    """Most disk space that downloaded models may take."""
    unschedulable: bool = False
    drain: bool = False
    address: str = ""
    """The address for Services, if the owner of the host sets one."""
    generation: int = 0


def read_host_spec(host: Mapping[str, Any]) -> HostSpec:
    """Parse a Host. Raises SpecInvalid for an invalid quantity; the schema has checked all other fields."""
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
    """The current spec. The listeners in `on_change` are called in one thread after each change."""

    def __init__(self) -> None:
        self.current = HostSpec()
        self.on_change: list[Callable[[HostSpec], None]] = []
        self.on_allowance: list[Callable[[Mapping[str, Any]], None]] = []
        """Called with `spec.allow` each time that the Host object was read, even if it has not changed."""

    def allow(self, said: Mapping[str, Any]) -> None:
        """Pass on what services may request of the host. `{}` also applies if the cluster has no Host objects."""
        for listener in self.on_allowance:
            listener(said)

    def update(self, host: Mapping[str, Any] | None) -> None:
        """Apply a new version of the Host object; None means that it was deleted. An invalid object changes nothing.

        After a deletion the last `spec.allow` remains in force.
        """
        if host is not None:
            self.allow((host.get("spec") or {}).get("allow") or {})
        try:
            spec = HostSpec() if host is None else read_host_spec(host)
        except SpecInvalid as error:
            _log.warning("Could not read the spec of this host's Host", error=str(error))
            return
        if spec == self.current:
            return
        self.current = spec
        for listener in self.on_change:
            try:
                listener(spec)
            except Exception:
                _log.exception("Failed to apply the spec of this host's Host")
