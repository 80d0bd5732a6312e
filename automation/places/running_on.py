"""Where a service runs: in pods, or on which host. Pure. Used by `cluster_states`, `herdsman get` and `describe`."""

from __future__ import annotations

from collections.abc import Iterable

from automation.cache.owners import service_of
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_HOST, ANNOTATION_HOST_SELECTOR, ServiceKey


def processes_by_service(processes: Iterable[Json]) -> dict[ServiceKey, Json]:
    """Return processes by service; of several replicas, that of the first one."""
    first: dict[ServiceKey, Json] = {}
    for process in sorted(processes, key=lambda each: int(each["spec"].get("replica") or 0), reverse=True):
        if (key := service_of(process)) is not None:
            first[key] = process
    return first


def runs_on(service: Json, process: Json | None) -> str:
    """Return the place of a service: pods, or the host and the address on which the process listens.

    Before the service has a process, its annotations name the host or ask for one.
    """
    if process is None:
        annotations = service["metadata"].get("annotations") or {}
        if host := annotations.get(ANNOTATION_HOST):
            return f"host {host}"
        return "hosts" if annotations.get(ANNOTATION_HOST_SELECTOR) else "pods"
    report = process.get("status") or {}
    place = f"host {process['spec']['host']}"
    if report.get("address") and report.get("port"):
        place += f" ({report['address']}:{report['port']})"
    return place
