"""Finds the places where a model can run, and their free memory: hosts and GPU nodes of a cluster, or this machine."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable

from agent.contract import Accelerator
from agent.server.host_facts import Binaries
from agent.server.memory.budget import Budget, MemoryLimits, host_budget
from agent.server.memory.machine import Machine
from automation.catalog.fitting import Room
from kubeapi.json_types import JsonView

GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
"""MiB of one GPU, which NVIDIA's GPU feature discovery writes on a node."""
_GPU_RESERVE_BYTES = 512 << 20
_MIB = 1 << 20


def rooms_of_host(host: JsonView) -> list[Room]:
    """Return the rooms of a Host: one, or with separate GPUs one for them and one for the machine's memory.

    Empty while the host is not ready, accepts no service, or has not reported its memory. Processes that run count
    against the GPUs first, because Herdsman puts all layers there.
    """
    spec, status = host.get("spec") or {}, host.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
    total = _whole((status.get("allocatable") or {}).get("memory"))
    if not ready or not total or spec.get("unschedulable") or spec.get("drain"):
        return []
    name = str(host["metadata"]["name"])
    reserved = sum(_whole(each.get("reserved")) for each in status.get("processes") or ())
    devices = [dict(each) for each in status.get("accelerators") or ()]
    if any(each.get("type") == "metal" for each in devices):
        return [Room(name, max(0, total - reserved), "metal")]
    gpu_bytes = sum(
        max(0, _whole(each.get("memory")) - _GPU_RESERVE_BYTES * (_whole(each.get("count")) or 1)) for each in devices
    )
    if not gpu_bytes:
        return [Room(name, max(0, total - reserved))]
    on_gpus = min(reserved, gpu_bytes)
    return [
        Room(name, gpu_bytes - on_gpus, str(devices[0].get("type") or "cuda")),
        Room(name, max(0, total - gpu_bytes - (reserved - on_gpus))),
    ]


def rooms_of_node(node: JsonView) -> list[Room]:
    """Return the memory of one GPU of a node; empty if no label names it. Other pods' use of the GPU is not known."""
    text = str((node["metadata"].get("labels") or {}).get(GPU_MEMORY_LABEL) or "")
    if not text.isdecimal() or (node.get("spec") or {}).get("unschedulable"):
        return []
    free = max(0, int(text) * _MIB - _GPU_RESERVE_BYTES)
    return [Room(str(node["metadata"]["name"]), free, "cuda", "node")]


def rooms_of_this_machine(find_binary: Callable[[str], str | None] | None = None) -> list[Room]:
    """Return the rooms of this machine, measured as an agent would. Calls llama-server for its devices, if it exists.

    Nothing is subtracted: what an agent on this machine runs is not known here.
    """
    machine = Machine(find_binary or Binaries().find)
    machine.measure()
    return rooms_of_budget(
        platform.node() or "this machine", host_budget(MemoryLimits(), machine.capacity), machine.accelerators
    )


def rooms_of_budget(name: str, budget: Budget, accelerators: Iterable[Accelerator]) -> list[Room]:
    """Return the rooms of one machine by its budget and its devices."""
    devices = [each.type for each in accelerators]
    if budget.gpu_bytes:
        return [Room(name, budget.gpu_bytes, devices[0], "machine"), Room(name, budget.bytes, "", "machine")]
    return [Room(name, budget.bytes, "metal" if "metal" in devices else "", "machine")]


def _whole(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) and value > 0 else 0
