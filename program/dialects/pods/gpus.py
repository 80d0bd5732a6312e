"""Counts the GPUs of pods whose spec a user or a preset writes, for quotas and queues. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kubeapi.json_types import Json
from program.desired.accelerators import vendor_of
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.model import GPU_RESOURCES, Gpu, GpuVendor
from program.desired.quantities import parse_quantity
from program.desired.workloads import PodSet
from program.dialects.pods.engine import argv_of
from program.runtimes.ranks import misfit

_MORE_ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
"""Variable with further arguments, which the start scripts of KServe's presets read."""


def gpu_of(pods: PodSet) -> Gpu | None:
    """Return the GPUs of one replica: of a pod, or of a group's leader and workers together."""
    worker = _of_pod(pods.template)
    if pods.group is None:
        return worker
    leader = _of_pod(pods.group.leader) if pods.group.leader is not None else worker
    one = leader or worker
    if one is None:
        return None
    workers = (worker.count if worker is not None else 0) * (pods.group.size - 1)
    return one.model_copy(update={"count": (leader.count if leader is not None else 0) + workers})


def gpu_of_container(container: Json) -> Gpu | None:
    """Return the GPUs that a container requests. Raises SpecInvalid for an amount that is not a whole number."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    for resource, amount in asked.items():
        vendor = vendor_of(resource)
        if vendor is None:
            continue
        field = f"spec.template.containers[{container.get('name')}].resources.limits[{resource}]"
        count = parse_quantity(str(amount), field=field, example="`1`")
        if count != int(count):
            raise SpecInvalid(field=field, why=f"`{amount}` is not a whole number of GPUs")
        if count:
            default = resource == GPU_RESOURCES[GpuVendor.NVIDIA]
            return Gpu(count=int(count), vendor=vendor, resource="" if default else resource)
    return None


def ranks_problem(
    pods: PodSet, engine: str, container: str, *, field: str, named: Sequence[str] = ()
) -> Problem | None:
    """Return arguments of a container that create more or fewer ranks than its GPUs; None if they match, or set none.

    `named` are arguments that the container's start script adds. Groups are not checked: the group's own script spreads
    the ranks over its pods.
    """
    found = next(
        (each for each in pods.template["spec"].get("containers") or () if each.get("name") == container), None
    )
    gpu = gpu_of_container(found) if found is not None and pods.group is None else None
    if found is None or gpu is None:
        return None
    extra = next((each.get("value") or "" for each in found.get("env") or () if each["name"] == _MORE_ARGUMENTS), "")
    words = [*named, *argv_of(found), *extra.split()]
    why = misfit(engine, words, gpu.count)
    return unsupported_field(field, why) if why else None


def _of_pod(template: Json) -> Gpu | None:
    return _sum(gpu_of_container(container) for container in template["spec"].get("containers") or ())


def _sum(gpus: Iterable[Gpu | None]) -> Gpu | None:
    counted = [gpu for gpu in gpus if gpu is not None]
    if not counted:
        return None
    return counted[0].model_copy(update={"count": sum(gpu.count for gpu in counted)})
