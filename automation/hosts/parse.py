"""Converts Host objects and desired services to the inputs of placement. Without I/O.

Called by `automation.cache.trim` and `registry`.
"""

from __future__ import annotations

from automation.hosts.placement import (
    LABEL_ACCELERATOR,
    HostCapacity,
    PlacementRequest,
    Requirements,
    Taint,
    pairs,
    tolerations_of,
)
from components.engine_workloads import is_stopped
from components.host_program import host_needs
from kubeapi.json_types import JsonView
from program import sizing
from program.desired.errors import SpecInvalid
from program.desired.priorities import PRIORITIES
from program.desired.quantities import bytes_of
from program.desired.service import DesiredService
from program.host_context import usable_gpu_bytes
from program.runtimes.host_rules import Need, allowance_of


def capacity_of(host: JsonView) -> HostCapacity:
    """Read a Host object. Any field may be missing."""
    metadata, spec, status = host["metadata"], host.get("spec") or {}, host.get("status") or {}
    ssh = spec.get("ssh") or {}
    labels = {str(k): str(v) for k, v in (metadata.get("labels") or {}).items()}
    claimed = labels.get(LABEL_ACCELERATOR, "")
    found = {str(each.get("type") or "") for each in status.get("accelerators") or ()}
    allocatable, capacity = status.get("allocatable") or {}, status.get("capacity") or {}
    return HostCapacity(
        name=str(metadata["name"]),
        labels=pairs(labels),
        os=str(status.get("os") or ""),
        accelerators=frozenset({*found, claimed} - {""}),
        binaries=frozenset(status.get("runtimes") or ()),
        runtimes=frozenset(spec.get("runtimes") or ()),
        taints=tuple(
            Taint(str(t.get("key") or ""), str(t.get("effect") or ""), str(t.get("value") or ""))
            for t in spec.get("taints") or ()
        ),
        memory_bytes=_whole(allocatable.get("memory")) or _budget(spec),
        total_memory_bytes=_whole(capacity.get("memory")),
        gpu_memory_bytes=_gpu_bytes(status),
        unschedulable=bool(spec.get("unschedulable")),
        draining=bool(spec.get("drain")),
        awaited=not status,
        allowance=allowance_of(spec.get("allow")),
        as_root=spec.get("transport") == "ssh" and ssh.get("user") == "root" and not ssh.get("allowRoot"),
        by_ssh=spec.get("transport") == "ssh",
    )


def _gpu_bytes(status: JsonView) -> int | None:
    devices = [dict(each) for each in status.get("accelerators") or () if each.get("type") != "metal"]
    return usable_gpu_bytes((_whole(each.get("memory")) or 0, _whole(each.get("count")) or 1) for each in devices)


def placement_request(desired: DesiredService, *, created: str = "") -> PlacementRequest:
    """Return the requirements of a service for hosts. A service in pods requests no replicas."""
    hosting = desired.host_placement
    if hosting is None:
        return PlacementRequest(replicas=0)
    estimate = sizing.estimate(desired)
    return PlacementRequest(
        requirements=Requirements(
            accelerator=desired.model.accelerator,
            runtime=desired.engine.kind,
            labels=pairs({**desired.pod.node_selector, **hosting.selector}),
            tolerations=tolerations_of(desired.pod.tolerations),
            excluded=frozenset(hosting.excluded),
            needs=_needs(desired),
        ),
        replicas=0 if is_stopped(desired) else desired.replicas,
        memory_bytes=sizing.declared_bytes(desired) if estimate is None else estimate.total_bytes,
        memory_enforced=hosting.memory_check in (None, "enforce"),
        budget_bytes=desired.model.memory_budget_bytes,
        budget_fraction=desired.model.memory_fraction,
        pinned=hosting.host if hosting.pinned else None,
        preferred=hosting.preferred,
        strategy=hosting.strategy,
        group=(desired.key.namespace, hosting.group) if hosting.group else None,
        stays_in_memory=hosting.residency in (None, "pinned"),
        may_move=hosting.may_move,
        priority=PRIORITIES[desired.priority],
        created=created,
    )


def _needs(desired: DesiredService) -> tuple[Need, ...]:
    """List the needs that only a host's owner can allow.

    Empty if no host can run the service, which the renderer refuses.
    """
    try:
        return host_needs(desired)
    except SpecInvalid:
        return ()


def _budget(spec: JsonView) -> int | None:
    """Return the owner's memory budget, used while the host has not reported its memory."""
    try:
        return bytes_of(str(spec.get("memoryBudget") or "") or None, field="spec.memoryBudget")
    except SpecInvalid:
        return None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and value > 0 else None
