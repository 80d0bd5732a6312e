"""The GPUs of the pods of an LLMInferenceService, as quotas and queues count them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from program.desired.base import JsonObject
from program.desired.errors import SpecInvalid
from program.desired.model import Gpu, GpuVendor
from program.desired.quantities import parse_quantity
from program.desired.workloads import PodSet

_VENDORS = {
    "nvidia.com/gpu": GpuVendor.NVIDIA,
    "amd.com/gpu": GpuVendor.AMD,
    "gpu.intel.com/i915": GpuVendor.INTEL,
    "gpu.intel.com/xe": GpuVendor.INTEL,
}
_PARTS = {"nvidia.com/mig-": GpuVendor.NVIDIA}
"""Resources that stand for a part of a GPU, by how they begin."""


def gpu_of(pods: PodSet) -> Gpu | None:
    """Count the GPUs of one replica: of a pod, or of a group's leader and workers together."""
    worker = _of_pod(pods.template)
    if pods.group is None:
        return worker
    leader = _of_pod(pods.group.leader) if pods.group.leader is not None else worker
    one = leader or worker
    if one is None:
        return None
    workers = (worker.count if worker is not None else 0) * (pods.group.size - 1)
    return one.model_copy(update={"count": (leader.count if leader is not None else 0) + workers})


def gpu_of_container(container: JsonObject) -> Gpu | None:
    """Read the GPUs that a container asks for. Raises SpecInvalid for a count that is no number."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    for resource, amount in asked.items():
        vendor = _VENDORS.get(resource) or next((v for p, v in _PARTS.items() if resource.startswith(p)), None)
        if vendor is None:
            continue
        field = f"spec.template.containers[{container.get('name')}].resources.limits[{resource}]"
        count = parse_quantity(str(amount), field=field, example="`1`")
        if count != int(count):
            raise SpecInvalid(field=field, why=f"`{amount}` is not a whole number of GPUs")
        if count:
            default = resource == "nvidia.com/gpu"
            return Gpu(count=int(count), vendor=vendor, resource="" if default else resource)
    return None


def _of_pod(template: JsonObject) -> Gpu | None:
    return _sum(gpu_of_container(container) for container in template["spec"].get("containers") or ())


def _sum(gpus: Iterable[Gpu | None]) -> Gpu | None:
    counted = [gpu for gpu in gpus if gpu is not None]
    if not counted:
        return None
    return counted[0].model_copy(update={"count": sum(gpu.count for gpu in counted)})
