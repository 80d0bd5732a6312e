"""Decides whether any node of the cluster could hold a pod, by the nodes' allocatable resources. Pure.

`observe` calls it for pods that are not scheduled, the controller for pods that do not exist yet. Free resources,
taints and affinity do not count: they change, and the scheduler reports them on the pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from program.desired.quantities import read_quantity

_COUNTED = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True)
class NodeCapacity:
    """The allocatable resources of one node (`status.allocatable`), as Kubernetes quantities by resource."""

    name: str
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def never_fits(requests: Mapping[str, str], node_selector: Mapping[str, str], nodes: Iterable[NodeCapacity]) -> str:
    """Return why no node could hold a pod with these requests; empty when one could, or when there are no nodes.

    Counts cpu, memory, ephemeral storage and extended resources (`nvidia.com/gpu`).
    """
    everyone = tuple(nodes)
    if not everyone:
        return ""
    wanted = {
        resource: amount
        for resource, text in requests.items()
        if (resource in _COUNTED or "/" in resource) and (amount := _amount(text)) > 0
    }
    selected = [n for n in everyone if all(n.labels.get(k) == v for k, v in node_selector.items())]
    among = ""
    if node_selector:
        text = ",".join(f"{key}={value}" for key, value in sorted(node_selector.items()))
        if not selected:
            return f"no node has the labels {text} that the service selects"
        among = f" with the labels {text}"
    if any(all(_has(node, resource) >= amount for resource, amount in wanted.items()) for node in selected):
        return ""
    # The scarcest resource first: services usually wait for a GPU, and every node has some memory.
    for resource in sorted(wanted, key=lambda name: ("/" not in name, name)):
        largest = max(selected, key=lambda node: _has(node, resource))
        most = _has(largest, resource)
        if most == 0:
            return f"{requests[resource]} of {resource} requested for each replica, and no node{among} has any"
        if most < wanted[resource]:
            return (
                f"{requests[resource]} of {resource} requested for each replica, and the largest node{among}, "
                f"{largest.name}, has {largest.allocatable[resource]}"
            )
    asked = ", ".join(f"{requests[resource]} of {resource}" for resource in sorted(wanted))
    return f"{asked} requested together for each replica, and no single node{among} has all of it"


def largest_memory_bytes(nodes: Iterable[NodeCapacity], node_selector: Mapping[str, str] | None = None) -> int | None:
    """Return the largest allocatable memory of a (selected) node, in bytes; None while no such node is known."""
    wanted = (node_selector or {}).items()
    found = [int(_has(n, "memory")) for n in nodes if all(n.labels.get(k) == v for k, v in wanted)]
    return max(found, default=0) or None


def _has(node: NodeCapacity, resource: str) -> Decimal:
    text = node.allocatable.get(resource)
    return _amount(text) if text is not None else Decimal(0)


def _amount(text: str) -> Decimal:
    try:
        return read_quantity(str(text))
    except ValueError:
        # The API server validates quantities of nodes and pods. An invalid one counts as 0.
        return Decimal(0)
