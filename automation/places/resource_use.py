"""Computes the use of hosts and services from the cluster's objects, for `herdsman top` and the web console. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from automation.places.service_view import conditions_of, view_of
from components import naming
from kubeapi.json_types import Json
from program.desired.keys import LABEL_DIALECT
from program.dialects.registry import LLMKUBE, dialect_of


@dataclass(frozen=True)
class HostUse:
    """One host."""

    name: str
    state: str
    ready: bool
    serving: int
    processes: int
    memory_bytes: int | None
    """The memory of its processes; None without measurements."""
    budget_bytes: int | None
    pressure: str
    tokens_per_second: float | None

    @property
    def share(self) -> float | None:
        """The used share of the budget; may be above 1."""
        return self.memory_bytes / self.budget_bytes if self.memory_bytes is not None and self.budget_bytes else None


@dataclass(frozen=True)
class ServiceUse:
    """One service, in pods or on hosts. Values that are not measured for pods are None."""

    namespace: str
    name: str
    phase: str
    ready_replicas: int
    replicas: int
    runs_on: str
    memory_bytes: int | None
    cpu_percent: float | None
    tokens_per_second: float | None
    slots_busy: int | None
    slots: int | None
    kind: str = ""
    """Empty for an InferenceService."""


def host_uses(hosts: Iterable[Json], processes: Iterable[Json]) -> list[HostUse]:
    """Return the use of each host. A process that its host has not reported yet counts without values."""
    placed: dict[str, list[Json]] = {}
    for process in processes:
        placed.setdefault(str(process["spec"].get("host", "")), []).append(process)
    return [_host_use(host, placed.get(host["metadata"]["name"], [])) for host in hosts]


def _host_use(host: Json, placed: Sequence[Json]) -> HostUse:
    status = host.get("status") or {}
    told = [each for each in status.get("processes") or () if isinstance(each, dict)]
    state = state_of_host(host)
    return HostUse(
        name=host["metadata"]["name"],
        state=state,
        ready=state.startswith("Ready"),
        serving=sum(1 for process in placed if (process.get("status") or {}).get("ready")),
        processes=max(len(placed), len(told)),
        memory_bytes=_sum(each.get("memory") for each in told),
        budget_bytes=(status.get("allocatable") or {}).get("memory") or (status.get("capacity") or {}).get("memory"),
        pressure=str(status.get("memoryPressure") or ""),
        tokens_per_second=_sum(each.get("tokensPerSecond") for each in told),
    )


def service_uses(services: Iterable[Json], processes: Iterable[Json], hosts: Iterable[Json]) -> list[ServiceUse]:
    """Return the use of each service: the sums of its processes' values, as the hosts report them."""
    figures = {
        str(each.get("name")): each
        for host in hosts
        for each in (host.get("status") or {}).get("processes") or ()
        if isinstance(each, dict)
    }
    of_service: dict[tuple[str, str, str], list[Json]] = {}
    for process in processes:
        labels = process["metadata"].get("labels") or {}
        name = labels.get(naming.LABEL_SERVICE) or process["spec"].get("service", "")
        key = (labels.get(LABEL_DIALECT, LLMKUBE), process["metadata"]["namespace"], str(name))
        of_service.setdefault(key, []).append(process)
    uses = []
    for service in services:
        metadata, view = service["metadata"], view_of(service)
        own = of_service.get((dialect_of(service) or LLMKUBE, metadata["namespace"], metadata["name"]), [])
        told = [figures.get(f"{each['metadata']['namespace']}/{each['metadata']['name']}", {}) for each in own]
        uses.append(
            ServiceUse(
                namespace=metadata["namespace"],
                name=metadata["name"],
                phase=view.phase,
                ready_replicas=view.ready_replicas,
                replicas=view.desired_replicas,
                runs_on=_runs_on(own, view.desired_replicas),
                memory_bytes=_sum(each.get("memory") for each in told),
                cpu_percent=_sum(each.get("cpuPercent") for each in told),
                tokens_per_second=_sum(each.get("tokensPerSecond") for each in told),
                slots_busy=_sum(each.get("slotsBusy") for each in told),
                slots=_sum(each.get("slots") for each in told),
                kind=view.kind,
            )
        )
    return uses


def _runs_on(processes: Sequence[Json], replicas: int) -> str:
    names = sorted({str(each["spec"].get("host")) for each in processes if each["spec"].get("host")})
    if names:
        return ", ".join(names)
    return f"{replicas} pod{'' if replicas == 1 else 's'}" if replicas else "-"


def state_of_host(host: Json) -> str:
    """Return in one word whether a host works, and whether it accepts services."""
    spec = host.get("spec") or {}
    ready = conditions_of(host).get("Ready", {}).get("status")
    word = {"True": "Ready", "False": "NotReady"}.get(str(ready), "Unknown")
    if spec.get("drain"):
        return f"{word},Draining"
    return f"{word},Unschedulable" if spec.get("unschedulable") else word


def _sum(values: Iterable[Any]) -> Any:
    """Return the sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if known else None
