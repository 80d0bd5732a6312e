"""The resources that the pods of a service request, for quotas and policies. Pure.

Called by `automation.admission.quota` and `components.policies.workload_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal

from kubeapi.json_types import Json
from program.desired.accelerators import is_accelerator
from program.desired.errors import SpecInvalid
from program.desired.quantities import parse_quantity
from program.desired.workloads import PodSet

Amount = Callable[[Json], Decimal]


def stated(container: Json, name: str, *parts: str) -> Decimal:
    """Return the largest amount of resource `name` in the named parts of a container; 0 for none.

    The parts are `requests` and `limits`. Raises SpecInvalid for an amount that is not a quantity.
    """
    resources = container.get("resources") or {}
    amounts = [(resources.get(part) or {}).get(name) for part in parts]
    return max((parse_quantity(str(each), field=name) for each in amounts if each is not None), default=Decimal(0))


def requested(container: Json, name: str) -> Decimal:
    """Return the amount that the scheduler counts for a container: its request, or its limit where it has no request.

    An amount that is not a quantity counts as 0: the API server refuses such pods.
    """
    said = (container.get("resources") or {}).get("requests") or {}
    try:
        return stated(container, name, "requests" if name in said else "limits")
    except SpecInvalid:
        return Decimal(0)


def gpus(container: Json) -> Decimal:
    """Return the number of GPUs that a container requests."""
    resources = container.get("resources") or {}
    named = {name for part in ("requests", "limits") for name in resources.get(part) or {} if is_accelerator(name)}
    return sum((requested(container, name) for name in named), Decimal(0))


def memory(container: Json) -> Decimal:
    """Return the memory that a container requests, in bytes."""
    return requested(container, "memory")


def of_pod(pod: Json, of: Amount) -> Decimal:
    """Return the amount of a pod: its containers and sidecars together, or an init container if that needs more.

    An init container runs beside the sidecars that start before it
    (https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers).
    """
    sidecars, most = Decimal(0), Decimal(0)
    for each in pod.get("initContainers") or ():
        most = max(most, sidecars + of(each))
        if each.get("restartPolicy") == "Always":
            sidecars += of(each)
    return max(most, sidecars + _sum(of(each) for each in pod.get("containers") or ()))


def of_replica(pods: PodSet, of: Amount) -> Decimal:
    """Return the amount of one replica: one pod, or a whole group (the leader and its workers)."""
    worker = of_pod(pods.template.get("spec") or {}, of)
    if pods.group is None:
        return worker
    leader = pods.group.leader
    first = worker if leader is None else of_pod(leader.get("spec") or {}, of)
    return first + worker * (pods.group.size - 1)


def most_replicas(pods: PodSet) -> int:
    """Return the largest number of pods or groups; with an autoscaler this is its maximum."""
    return _bound(pods, "maxReplicas", "maxReplicaCount")


def least_replicas(pods: PodSet) -> int:
    """Return the smallest number of pods or groups; with an autoscaler this is its minimum."""
    return _bound(pods, "minReplicas", "minReplicaCount")


def _bound(pods: PodSet, *fields: str) -> int:
    asked = 1 if pods.replicas is None else pods.replicas
    if pods.scaler is None:
        return asked
    bound = next((pods.scaler.spec[field] for field in fields if field in pods.scaler.spec), asked)
    return bound if isinstance(bound, int) else asked


def _sum(amounts: Iterable[Decimal]) -> Decimal:
    return sum(amounts, Decimal(0))
